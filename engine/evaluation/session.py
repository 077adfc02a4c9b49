"""The session of an evaluation or a prediction, and the parts that training shares with it."""

from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import nn

from configs.command_line import Command
from configs.schema import Config
from configs.schema.operating_point import TO_CHOOSE, Decision
from configs.weights import WeightsRecord
from datasets.transforms.device import Normalize
from engine.checkpoint.weights_record import weights_record
from engine.evaluation.evaluate import Evaluator
from engine.evaluation.fast import speed_up
from engine.evaluation.mean import MeanOfModels
from engine.parallel import Strategy
from engine.plan.decision import decide, decision_for, with_thresholds
from engine.plan.evaluation import EvaluationPlan, plan_evaluation
from engine.precision.policy import Precision, set_process_switches
from engine.run.cost import copy_to_meta, model_line
from engine.run.facts import Devices, place_of
from engine.run.folder import record_environment
from engine.run.log import RunLogger
from models.build import build_model
from models.kernels import AUTO, EXPLICIT, to_channels_last, use_attention
from models.weights.choose import EVALUATE, Purpose
from utils.distributed import ProcessContext
from utils.notes import Note


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
    decision: Decision | None = None,
) -> EvalModel:
    """purpose: EVALUATE or FEATURES. record: of the weights, if it has been read. decision: in place of theirs."""
    record = record or weights_record(config.model)
    set_process_switches(config, context.device)
    options = config.with_model(tune="full").model
    model, fitted = build_model(options, config.data, context.device, purpose, record.image_size)
    built = eval_model_of(model, config, context)
    notes = [note.on("Pretrained") for note in fitted.notes()]
    decision = decision or with_thresholds(decision_for(record, config)[0], config)
    return replace(built, evaluator=replace(built.evaluator, decision=decision), notes=notes)


def eval_model_of(model: nn.Module, config: Config, context: ProcessContext) -> EvalModel:
    """The fp32 `model` on its device, ready to be evaluated in the precision of `config`, without any fast path.

    `set_process_switches` comes before: it is about the first operation of the process.
    """
    if config.model.channels_last is True:
        to_channels_last(model)
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
        config = self.plan.config
        evaluator = self.evaluator
        context = evaluator.context
        precision = evaluator.precision.short_name
        return [
            f"{self.plan.images}{'' if self.plan.images.path else place_of(config.data)}",
            model_line(config, self.meta_model, f"{Devices(context.world_size, str(context.device), precision)}"),
            f"Weights: {self.weights}",
        ]


def build_evaluation_session(
    command: Command, context: ProcessContext, logger: RunLogger, plan: EvaluationPlan | None = None
) -> EvaluationSession:
    """The session of the weights of MODEL.PRETRAINED, or of the run that -resume names. plan: of the command, if there
    is one.

    Raises UserError: the weights do not fit the model; -threshold rejects no image; a workbook has fewer rows.
    """
    plan = plan or plan_evaluation(command, context, logger)
    decision, notes = decide(command, plan)
    of_model = None if command.runs else decision
    built = build_eval_model(plan.config, context, plan.purpose, plan.record, of_model)
    logger.note(*built.notes, *plan.notes, *notes)
    evaluator = replace(built.evaluator, merged=plan.merged)
    logger.note(Devices(context.world_size, str(context.device), evaluator.precision.describe()))
    for text in evaluator.precision.misfits():
        logger.warn(text)
    record_environment(context, logger)
    if plan.class_mask is not None:
        evaluator = replace(evaluator, class_mask=torch.from_numpy(plan.class_mask).to(context.device))
    meta_model = copy_to_meta(built.fp32)
    logger.note(*speed_up(built.compute, plan.config, evaluator.precision, len(plan.samples), plan.purpose))
    session = EvaluationSession(plan, built.compute, evaluator, meta_model)
    return _mean_session(session, decision) if command.runs else session


def _mean_session(session: EvaluationSession, decision: Decision) -> EvaluationSession:
    """The session of the mean of the models. decision: of their mean; each has the temperature of its own."""
    plan = session.plan
    evaluator = session.evaluator
    members = [(evaluator, session.model)]
    for config, record in plan.others:
        built = build_eval_model(config, evaluator.context, plan.purpose, record)
        own = replace(built.evaluator, class_mask=evaluator.class_mask, merged=evaluator.merged)
        speed_up(built.compute, config, own.precision, len(plan.samples))
        members.append((own, built.compute))
    of_mean = replace(evaluator, flips=False, class_mask=None, merged={}, decision=decision)
    return replace(session, model=MeanOfModels(members).eval(), evaluator=of_mean)


def build_evaluator(
    config: Config,
    precision: Precision,
    strategy: Strategy,
    context: ProcessContext,
    decision: Decision = TO_CHOOSE,
) -> Evaluator:
    return Evaluator(
        transform=Normalize(config.data).to(context.device),
        precision=precision,
        strategy=strategy,
        context=context,
        flips=config.eval.tta == "flip",
        multi_label=config.data.multi_label,
        best_metric=config.eval.best_metric,
        keeps_logits=config.eval.save_logits,
        decision=decision,
    )


def apply_op_lists(model: nn.Module, attention: str, precision: Precision) -> None:
    """Makes attention explicit if softmax is listed, as fused attention has none; MODEL.ATTENTION overrides it."""
    if attention == AUTO and "softmax" in precision.listed:
        use_attention(model, EXPLICIT)
    precision.apply_op_lists(model)
