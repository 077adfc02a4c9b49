"""The session of an evaluation or a prediction, and the parts that training shares with it."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from configs.command_line import Command
from configs.flags import Prediction
from configs.schema import Config, Data
from configs.schema.data import properties_of
from configs.schema.operating_point import Decision, Goal, OperatingPoint, probability_of
from configs.weights import WeightsRecord
from datasets.sources.class_names import names_of_labels
from datasets.sources.samples import UNKNOWN, Samples
from datasets.sources.split import hash_paths
from datasets.transforms.device import Normalize
from engine.checkpoint.files import find_checkpoint
from engine.checkpoint.weights_record import weights_record
from engine.evaluation.evaluate import Evaluator
from engine.evaluation.intervals import point_of
from engine.evaluation.mean import MeanOfModels, read_measured
from engine.evaluation.ranking import has_label
from engine.parallel import Strategy
from engine.plan.evaluation import EvaluationPlan, options_of_weights, plan_evaluation
from engine.precision.policy import Precision, set_process_switches
from engine.run.cost import copy_to_meta, count_parameters
from engine.run.facts import Devices
from engine.run.folder import record_environment
from engine.run.log import RunLogger
from models.build import build_model
from models.kernels import (
    AUTO,
    EXPLICIT,
    fold_batch_norms,
    fuse_plain_attention,
    prepare_convolutions,
    skip_unread_tokens,
    use_attention,
)
from models.weights.choose import EVALUATE, Purpose
from utils.distributed import ProcessContext
from utils.errors import UserError
from utils.metric_table import MAX_SCORED_CLASSES
from utils.notes import Note
from utils.system import require
from utils.tables import MAX_ROWS

_KEY = "EVAL.OPERATING_POINT"
_FOLDED_FROM = 200  # images; in most networks folding takes as long as 15 to 161 of them save (docs/log.md)


@dataclass(frozen=True)
class EvalModel:
    """The model of `MODEL.PRETRAINED`. `compute` runs the forward passes; `fp32` may be the same module."""

    compute: nn.Module
    fp32: nn.Module
    evaluator: Evaluator
    notes: list[Note] = field(default_factory=list)


def build_eval_model(
    config: Config,
    context: ProcessContext,
    purpose: Purpose = EVALUATE,
    record: WeightsRecord | None = None,
) -> EvalModel:
    """purpose: EVALUATE or FEATURES. record: of the weights, if it has been read."""
    record = record or weights_record(config.model)
    set_process_switches(config, context.device)
    options = config.with_model(tune="full").model
    model, fitted = build_model(options, config.data, context.device, purpose, record.image_size)
    built = eval_model_of(model, config, context)
    notes = [note.on("Pretrained") for note in fitted.notes()]
    classes = config.model.num_logits
    decision = record.decision
    point = decision.point
    temperature = decision.temperature
    if point and point.label >= classes:
        point = None
    if point:
        start = "no threshold" if point.threshold is None else f"from p {probability_of(point.threshold):.4g} on"
        notes.append(Note("log", f"Operating point of {point.name}, from the weights: {point.title}, {start}"))
    if temperature != 1:
        text = f"Temperature of the probabilities, from the weights: {temperature:.3g}"
        notes.append(Note("screen" if temperature in (0.25, 4) else "log", f"{text}, of 0.25 to 4"))
    thresholds = None
    if config.data.multi_label:
        thresholds = np.array(decision.thresholds or ())
        source = "from the weights, chosen on validation images"
        if len(thresholds) != classes:
            thresholds = np.zeros(classes)
            source = "0.5, as the weights have none"
        notes.append(Note("log", f"Thresholds of the classes: {source}"))
    evaluator = replace(built.evaluator, point=point, temperature=temperature, thresholds=thresholds)
    return replace(built, evaluator=evaluator, notes=notes)


def eval_model_of(model: nn.Module, config: Config, context: ProcessContext) -> EvalModel:
    """The fp32 `model` on its device, ready to be evaluated in the precision of `config`.

    `set_process_switches` comes before: it is about the first operation of the process.
    """
    prepare_convolutions(model, config.model.channels_last)
    precision = Precision(config.amp, context.device)
    apply_op_lists(model, config.model.attention, precision)
    evaluator = build_evaluator(config, precision, Strategy(), context)  # all ranks have the same buffers
    return EvalModel(compute=precision.compute_copy(model).eval(), fp32=model, evaluator=evaluator)


@dataclass(frozen=True)
class EvaluationSession:
    """An evaluation or a prediction: the model of the plan, ready for `evaluator`. It decides no option.

    meta_model: a copy in fp32 without memory, for its number of parameters and FLOPs.
    """

    plan: EvaluationPlan
    model: nn.Module
    evaluator: Evaluator
    meta_model: nn.Module

    @property
    def weights(self) -> str:
        """Their file, or the folder of the sweep whose models are averaged."""
        file = str(self.plan.config.model.pretrained)
        return str(Path(file).parents[1]) if isinstance(self.model, MeanOfModels) else file

    @property
    def lines(self) -> list[str]:
        """About the evaluation, on the screen."""
        config, evaluator = self.plan.config, self.evaluator
        context, precision = evaluator.context, evaluator.precision.short_name
        return [
            f"{self.plan.images}{'' if self.plan.images.path else place_of(config.data)}",
            model_line(config, self.meta_model, f"{Devices(context.world_size, str(context.device), precision)}"),
            f"Weights: {self.weights}",
        ]


def build_session(command: Command, context: ProcessContext, logger: RunLogger) -> EvaluationSession:
    """The session of the weights of MODEL.PRETRAINED, or of the run that -resume names.

    Raises UserError: the weights do not fit the model; -threshold rejects no image; a workbook has fewer rows.
    """
    plan = plan_evaluation(command, context, logger)
    others = []
    if command.runs:
        others = _other_models(command, plan, context, logger)
        plan = _without_decision(command, plan)
    if command.prediction:
        _check_prediction(command.prediction, plan.config, len(plan.samples))
    built = build_eval_model(plan.config, context, plan.purpose, plan.record)
    logger.note(*built.notes, *plan.notes)
    decision = plan.record.decision
    tta = plan.config.eval.tta
    if (decision.point or decision.thresholds) and decision.tta != tta:
        chosen = f"the weights' thresholds were chosen with EVAL.TTA={decision.tta}"
        logger.warn(f"{chosen}, and are used with EVAL.TTA={tta}: they may miss their goal")
    evaluator = built.evaluator
    logger.note(Devices(context.world_size, str(context.device), evaluator.precision.describe()))
    for text in evaluator.precision.misfits():
        logger.warn(text)
    record_environment(context, logger)
    if plan.class_mask is not None:
        evaluator = replace(evaluator, class_mask=torch.from_numpy(plan.class_mask).to(context.device))
    point = _operating_point(command, plan, evaluator.point, logger)
    evaluator = replace(evaluator, merged=plan.merged, point=point)
    meta_model = copy_to_meta(built.fp32)
    session = EvaluationSession(plan, _fast_model(built, plan), evaluator, meta_model)
    return _mean_session(command, session, others) if command.runs else session


def _fast_model(built: EvalModel, plan: EvaluationPlan) -> nn.Module:
    """`compute`; on a CPU without tokens that nothing reads, and of many images in float32 with folded batch norms."""
    precision = built.evaluator.precision
    if precision.device.type != "cpu":
        return built.compute
    skip_unread_tokens(built.compute)
    if precision.dtype != torch.float32 or plan.purpose != EVALUATE or len(plan.samples) < _FOLDED_FROM:
        return built.compute
    return fold_batch_norms(built.compute, torch.ones(1, *plan.config.data.image_shape))


def _without_decision(command: Command, plan: EvaluationPlan) -> EvaluationPlan:
    """The plan with the thresholds that were measured for the mean of the models of a sweep, not with a model's own.

    Raises UserError: a map or features of several models.
    """
    if command.embeds or (command.prediction and command.prediction.explain):
        raise UserError(
            f"-embed and -explain are of one model; give one with -resume={shlex.quote(str(command.runs[0]))}"
        )
    of_model = plan.record.decision
    decision = read_measured(command.runs)._replace(temperature=of_model.temperature)  # of the first model's logits
    notes = [Note("screen", f"The mean of {len(command.runs)} models: {', '.join(run.name for run in command.runs)}")]
    if command.prediction and not _decides(decision) and _decides(of_model):
        text = "The thresholds are of single models, and none was measured for the mean"
        result = "0.5 decides" if plan.config.data.multi_label else "there is no column decision"
        fix = f"-eval -data_path=DIR -resume={shlex.quote(str(command.runs[0].parent))} measures one"
        notes.append(Note("screen", f"{text}: {result}; {fix}"))
    return replace(plan, notes=[*plan.notes, *notes], record=replace(plan.record, decision=decision))


def _decides(decision: Decision) -> bool:
    return decision.point is not None or decision.thresholds is not None


def _other_models(
    command: Command, plan: EvaluationPlan, context: ProcessContext, logger: RunLogger
) -> list[tuple[Config, WeightsRecord]]:
    """The options and the records of all models of a mean but the first, of which the plan is.

    Raises UserError: their classes or their preprocessing differ; these images trained some of them.
    """
    is_compared = not command.path and plan.split != "test"
    is_of_training = plan.record.is_of(plan.config.data) or plan.images.trained
    paths = hash_paths(plan.samples.names_for_split)
    others = []
    for run in command.runs[1:]:
        found = find_checkpoint(str(run), context, best_first=True)
        assert found
        for note in found.notes:
            logger.warn(f"Resume: skipped: {note}")
        config, record, _ = options_of_weights(command.with_weights(found.path))
        if (record.class_names, record.preprocessing) != (plan.record.class_names, plan.record.preprocessing):
            raise UserError(f"{run}: has other classes, or another preprocessing, than {command.runs[0]}")
        has_trained = record.split and np.isin(paths, record.split.trained).all()
        if is_compared and record.split != plan.record.split and (is_of_training or has_trained):
            problem = f"-resume={run.parent}: the runs hold out different images, which trained the others"
            fix = f"python scripts/report.py {shlex.quote(str(run.parent))} has the figures out of fold"
            raise UserError(f"{problem}; give images of other paths with -data_path; {fix}")
        others.append((config, record))
    return others


def _mean_session(
    command: Command, session: EvaluationSession, others: list[tuple[Config, WeightsRecord]]
) -> EvaluationSession:
    """The session of the mean of the models. others: of `_other_models`."""
    plan, evaluator = session.plan, session.evaluator
    members = [(evaluator, session.model)]
    for config, record in others:
        built = build_eval_model(config, evaluator.context, plan.purpose, record)
        own = replace(built.evaluator, class_mask=evaluator.class_mask, merged=evaluator.merged)
        members.append((own, _fast_model(built, plan)))
    of_mean = replace(evaluator, flips=False, class_mask=None, merged={}, temperature=1.0)
    if not _decides(plan.record.decision) and not command.prediction:
        of_mean = replace(of_mean, thresholds=None)  # these images choose them
    return replace(session, model=MeanOfModels(members).eval(), evaluator=of_mean)


def _operating_point(
    command: Command, plan: EvaluationPlan, of_weights: OperatingPoint | None, logger: RunLogger
) -> OperatingPoint | None:
    """The point of the weights; without one, the images of an evaluation choose EVAL.OPERATING_POINT.

    Raises UserError: as `operating_goal`; the option is given, and the point of the weights, or of a prediction, is
    another.
    """
    if plan.merged:
        if of_weights:
            logger.note(Note("screen", f"{_KEY}: left out, as DATA.RENAME merges classes"))
        return None
    names = names_of_labels(plan.samples, plan.config.model.num_logits)
    goal = operating_goal(plan.config, names)
    if of_weights:
        of_weights = of_weights.model_copy(update={"name": names[of_weights.label]})
    is_option = any(option.startswith(_KEY) for option in command.flags.opts)
    if goal is None and is_option:
        return None  # leaves the point out
    if goal is None or (of_weights and _goal_of(goal) == _goal_of(of_weights)):
        return of_weights
    if of_weights is None and not command.prediction:
        logger.note(Note("screen", f"{_KEY}: the weights have none; its threshold is chosen on these images"))
        logger.note(*note_on_goal(goal, plan.samples))
        return goal
    if command.flags.cfg or is_option:
        has = f"{of_weights.title} of {of_weights.name}" if of_weights else "none"
        fix = "remove it here, or start a new run with it (-cfg=RUN/config.yaml)"
        raise UserError(f"{_KEY}: the weights have {has}, and validation images choose a point; {fix}")
    return of_weights


def _goal_of(point: OperatingPoint) -> dict[str, Any]:
    return point.model_dump(include={*Goal.model_fields})


def operating_goal(config: Config, names: Sequence[str]) -> OperatingPoint | None:
    """EVAL.OPERATING_POINT as `point_of`.

    Raises UserError: also one label per image of more classes than have scores.
    """
    goal = config.eval.operating_point
    if goal is None:
        return None
    if not config.data.multi_label and len(names) > MAX_SCORED_CLASSES:
        raise UserError(f"{_KEY}: {len(names)} classes, more than {MAX_SCORED_CLASSES}; remove it")
    return point_of(goal, names, config.data.rename)


def note_on_goal(goal: OperatingPoint | None, samples: Samples) -> list[Note]:
    """Notes if one image, or one group, of these is more than the goal leaves: it is then 100%."""
    if goal is None:
        return []
    is_own = has_label(samples.targets, goal.label)
    is_other = ~is_own
    if samples.targets.ndim == 2:
        is_other &= samples.targets[:, goal.label] != UNKNOWN
    wanted, rest = is_other, is_own
    if goal.sensitivity:
        wanted, rest = is_own, is_other & (goal.groups is None)
    numbers = {"images": len(np.flatnonzero(wanted))}
    if samples.groups is not None:
        groups = np.array([*samples.groups])
        numbers["groups"] = len(np.setdiff1d(groups[wanted], groups[rest]))
    needed = round(1 / (1 - (goal.specificity or goal.sensitivity or 0)))
    notes = []
    for unit, number in numbers.items():
        text = f"{goal.title} needs {needed} {unit}, else it is 100%; give more than {number}, or a lower goal"
        if not number:
            text = f"no {unit} to choose {goal.title} on, so no threshold; give {needed}"
            if goal.sensitivity and wanted.any():
                text = (
                    f"all groups with the class have other labels, too, and do not count; give {needed}, or groups: any"
                )
        if number < needed:
            notes.append(Note("screen", f"{_KEY}: {text}"))
    return notes


def _check_prediction(options: Prediction, config: Config, number: int) -> None:
    """Raises UserError: -threshold is at most 1 / classes, which the most probable class always has; a workbook has
    fewer rows than `number`, the images.
    """
    least = 1 / config.model.num_logits
    if options.threshold is not None and options.threshold <= least and not config.data.multi_label:
        raise UserError(
            f"-threshold={options.threshold:g}: labels no image unknown, as the most probable class "
            f"has a probability of at least {least:.3g}; give a higher one, or leave it out"
        )
    if options.excel:
        require("-format excel", "xlsxwriter")
        if number >= MAX_ROWS:
            raise UserError(f"-format excel: {number:,} images, but a sheet has {MAX_ROWS:,} rows; use -format csv")


def place_of(data: Data) -> str:
    """' (PATH)' of the files of the data, or ' (NAME)'."""
    return f" ({data.data_path if properties_of(data.dataset).has_files else data.dataset})"


def model_line(config: Config, meta_model: nn.Module, more: str) -> str:
    """The line of the screen about a model."""
    parameters, trained = (f"{number / 1e6:.3f} M" for number in count_parameters(meta_model))
    trained = f", {trained} trained" if trained != parameters and not config.eval.enabled else ""
    size = " x ".join(map(str, dict.fromkeys(config.data.input_size)))
    return f"Model: {config.model.name}, {parameters} parameters{trained}, {size} pixels, {more}"


def build_evaluator(config: Config, precision: Precision, strategy: Strategy, context: ProcessContext) -> Evaluator:
    return Evaluator(
        transform=Normalize(config.data).to(context.device),
        precision=precision,
        strategy=strategy,
        context=context,
        flips=config.eval.tta == "flip",
        multi_label=config.data.multi_label,
        best_metric=config.eval.best_metric,
        keeps_logits=config.eval.save_logits,
    )


def apply_op_lists(model: nn.Module, attention: str, precision: Precision) -> None:
    """Makes attention explicit if softmax is listed, as fused attention has none; MODEL.ATTENTION overrides it.

    In float32 on a CPU, timm's plain attention without dropout is fused.
    """
    if attention == AUTO:
        if "softmax" in precision.listed:
            use_attention(model, EXPLICIT)
        elif precision.device.type == "cpu" and precision.dtype == torch.float32:
            fuse_plain_attention(model)
    precision.apply_op_lists(model)
