"""What an evaluation or a prediction decides by: thresholds, operating point and temperature of the weights for the
logits that chose them; for other logits none, or the ones that these images choose.
"""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from configs.command_line import Command
from configs.schema import Config
from configs.schema.operating_point import UNDECIDED, Decision, Goal, OperatingPoint, probability_of
from configs.weights import WeightsRecord
from configs.yaml_io import find_name, format_value, shorten
from datasets.sources.class_names import list_names, names_of_labels, new_names
from datasets.sources.samples import UNKNOWN, Samples, has_label, is_multi_hot
from datasets.sources.shared_arrays import to_nfc
from engine.checkpoint.weights_record import decision_to_entries, read_decision
from engine.plan.evaluation import EvaluationPlan
from engine.run.record import read_run
from utils.errors import UserError, did_you_mean
from utils.files import atomic_write, indented_json, read_json
from utils.metric_table import MAX_SCORED_CLASSES
from utils.notes import Note

MEAN = "mean.json"  # in the folder of a sweep
_KEY = "EVAL.OPERATING_POINT"


def decision_for(record: WeightsRecord, config: Config, names: Sequence[str] = ()) -> tuple[Decision, list[str]]:
    """The decision of the weights for their logits with these options; and the options that make them other logits than
    those that chose it: then it is the goal of its operating point alone.

    names: of all labels, after DATA.RENAME; by default of the record. Pixels of another preprocessing have a warning of
    their own.
    """
    decision = record.decision
    if not record.is_own:
        return decision, []
    compared = {
        "MODEL.WEIGHTS_ENTRY": (config.model.weights_entry, decision.entries),
        "EVAL.TTA": (config.eval.tta, [decision.tta]),
        "DATA.MULTI_LABEL": (config.data.multi_label, [record.data.get("MULTI_LABEL") is True]),
    }
    others = []
    for key, (now, then) in compared.items():
        if now not in then:
            others.append(f"{key}={format_value(now)} in place of {format_value(then[-1])}")
    if others:
        decision = Decision(point=decision.goal)
    if point := decision.point:
        names = names or record.class_names or [*map(str, range(config.model.num_logits))]
        decision = decision._replace(point=point.model_copy(update={"name": names[point.label]}))
    return decision, others


def with_thresholds(decision: Decision, config: Config) -> Decision:
    """The decision with a threshold of each label, 0.5 where the weights have none."""
    if config.data.multi_label and decision.thresholds is None:
        return decision._replace(thresholds=(0.0,) * config.model.num_logits)
    return decision


def decide(command: Command, plan: EvaluationPlan) -> tuple[Decision, list[Note]]:
    """The decision of the weights, or the one that was measured for the mean of the models of a sweep; lines about it.

    The images of an evaluation choose what is left open: the threshold of a point, the thresholds of a mean.
    Raises UserError: as `operating_goal`; the option is given, and the point of the weights, or of a prediction, is
    another.
    """
    config = plan.config
    record = plan.record
    if command.runs:
        record = replace(record, decision=read_measured(command.runs))
    names = names_of_labels(plan.samples, config.model.num_logits)
    decision, others = decision_for(record, config, names)
    notes = []
    if others and decided(record.decision):
        text = "Left out, as other logits chose them: thresholds and temperature"
        notes.append(Note("screen", f"{text} ({', '.join(others)})"))
    if command.prediction and command.runs and not decided(decision) and decided(plan.record.decision):
        text = "The thresholds are of single models, and none was measured for the mean"
        result = "0.5 decides" if config.data.multi_label else "there is no column decision"
        fix = f"-eval -data_path=DIR -resume={shlex.quote(str(command.runs[0].parent))} measures one"
        notes.append(Note("screen", f"{text}: {result}; {fix}"))
    point, more = _point(command, plan, decision.point, names)
    decision = decision._replace(point=point)
    chooses = command.runs and not command.prediction and not decided(decision)
    if not chooses:
        decision = with_thresholds(decision, config)
    return decision, [*notes, *_describe(record.decision, decision), *more]


def decided(decision: Decision) -> bool:
    """Whether images have chosen something."""
    has_point = decision.point is not None and decision.point.is_chosen
    return has_point or decision.thresholds is not None or decision.temperature != 1


def _describe(stored: Decision, used: Decision) -> list[Note]:
    """Lines for the log."""
    notes = []
    if (point := used.point) and point.is_chosen:
        start = "no threshold" if point.threshold is None else f"from p {probability_of(point.threshold):.4g} on"
        notes.append(Note("log", f"Operating point of {point.name}, from the weights: {point.title}, {start}"))
    if used.temperature != 1:
        text = f"Temperature of the probabilities, from the weights: {used.temperature:.3g}"
        notes.append(Note("screen" if used.temperature in (0.25, 4) else "log", f"{text}, of 0.25 to 4"))
    if used.thresholds is not None:
        source = "0.5, as the weights have none"
        if used.thresholds == stored.thresholds:
            source = "from the weights, chosen on validation images"
        notes.append(Note("log", f"Thresholds of the classes: {source}"))
    return notes


def _point(
    command: Command, plan: EvaluationPlan, of_weights: OperatingPoint | None, names: Sequence[str]
) -> tuple[OperatingPoint | None, list[Note]]:
    """The point of the weights; without a chosen one, the images of an evaluation choose EVAL.OPERATING_POINT."""
    goal = operating_goal(plan.config, names)
    wanted = goal or of_weights
    is_option = command.is_typed(_KEY)
    if wanted is None or (goal is None and is_option):
        return None, []  # the option leaves the point out
    if why := _why_no_point(plan):
        return None, [Note("screen", f"{_KEY}: left out, as {why}")]
    chosen = of_weights if of_weights and of_weights.is_chosen else None
    if chosen and all(getattr(wanted, key) == getattr(chosen, key) for key in Goal.model_fields):
        return chosen, []
    if not chosen and not command.prediction:
        text = f"{_KEY}: the weights have none; its threshold is chosen on these images"
        return wanted, [Note("screen", text), *note_on_goal(wanted, plan.samples)]
    if goal and (command.flags.cfg or is_option):
        raise _other_goal(chosen)
    return chosen, []


def _other_goal(chosen: OperatingPoint | None) -> UserError:
    has = f"{chosen.title} of {chosen.name}" if chosen else "none"
    fix = "remove it here, or start a new run with it (-cfg=RUN/config.yaml)"
    return UserError(f"{_KEY}: the weights have {has}, and validation images choose a point; {fix}")


def _why_no_point(plan: EvaluationPlan) -> str:
    """Why the probabilities do not follow from the logits of the weights alone; '' if they do."""
    if plan.merged:
        return "DATA.RENAME merges classes"
    is_masked = plan.class_mask is not None and not plan.class_mask.all()
    return "the logits of other classes are masked" if is_masked else ""


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


def point_of(goal: Goal, names: Sequence[str], renamed: Mapping[str, str] | None) -> OperatingPoint:
    """The goal with the label of its class, after DATA.RENAME. names: of all labels.

    Raises UserError: there is no such class.
    """
    (name,) = new_names([to_nfc(goal.name)], renamed)
    name = find_name(name, names)
    if name not in names:
        fix = did_you_mean(name, names) or f"; give one of {list_names(names)}"
        raise UserError(f"{_KEY}: no class is {shorten(name)}{fix}")
    return OperatingPoint(label=names.index(name), **{**goal.model_dump(), "name": name})


def note_on_goal(goal: OperatingPoint | None, samples: Samples) -> list[Note]:
    """Notes if one image, or one group, of these is more than the goal leaves: it is then 100%."""
    if goal is None:
        return []
    is_own = has_label(samples.targets, goal.label)
    is_other = ~is_own
    if is_multi_hot(samples.targets):
        is_other &= samples.targets[:, goal.label] != UNKNOWN
    wanted = is_other
    rest = is_own
    if goal.sensitivity:
        wanted = is_own
        rest = is_other & (goal.groups is None)
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


def read_measured(runs: Sequence[Path]) -> Decision:
    """The decision that an evaluation has measured for the mean of these runs; none for other runs, or other epochs."""
    stored = read_json(runs[0].parent / MEAN)
    models = _models(runs)
    if "runs" not in stored or any(stored.get(key, value) != value for key, value in models.items()):
        return UNDECIDED
    return read_decision(stored)._replace(tta=stored["tta"], entries=(stored.get("weights_entry"),))


def write_measured(runs: Sequence[Path], decision: Decision, config: Config) -> None:
    """Raises OSError."""
    options = {"tta": config.eval.tta, "weights_entry": config.model.weights_entry}
    atomic_write(runs[0].parent / MEAN, indented_json(_models(runs) | options | decision_to_entries(decision)))


def _models(runs: Sequence[Path]) -> dict[str, list[object]]:
    """The names of the runs, and the epochs of their best weights, which a longer training replaces."""
    epochs = [read_run(run).get("result", {}).get("epoch") for run in runs]
    return {"runs": [run.name for run in runs], "epochs": epochs}
