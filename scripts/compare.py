"""Says whether a model is worse than another one, on images that neither was trained on.

    python scripts/compare.py OLD NEW -data_path=DIR -margin=0.5
    python scripts/compare.py SWEEP/BASE_LR=1e-3 SWEEP/BASE_LR=2e-3    # two settings, over their seeds

OLD, NEW: folders of runs, or weight files; or settings of at least three seeds: a folder of runs that differ only in
their seed, or SWEEP/KEY=VALUE, the runs of a sweep with this value.

The images are those that OLD has held out, or with -split=all all images, without those that OLD or NEW was trained
on. The exit status is 0 if NEW is not worse, 10 if it is, and 11 if the images are too few to tell; 1 and 2 as of all
programs (docs/operation.md).
"""

import math
import sys
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from configs.command_line import Command, parse_command_line
from configs.flags import add_flag
from configs.schema.operating_point import OperatingPoint
from configs.weights import NO_RECORD, PLACE, SPLIT, WeightsRecord, keys_in_section
from configs.yaml_io import parse_value
from datasets.batch import is_padding
from datasets.loading.loader import build_eval_loader
from datasets.sources.class_names import list_names, names_of_labels
from datasets.sources.samples import Samples
from datasets.sources.split import hash_paths
from engine.checkpoint.weights_record import read_record
from engine.evaluation.images import IMAGES, read_trained
from engine.evaluation.intervals import OF_POINT, decide_at
from engine.evaluation.paired import LimitsAt, limits_at_goal, paired_limits
from engine.evaluation.results import SampleResults
from engine.evaluation.session import build_evaluation_session
from engine.plan.decision import operating_goal
from engine.plan.evaluation import EvaluationPlan, plan_evaluation
from engine.report.contents import RunContents, read_contents
from engine.report.settings import FEWEST_SEEDS
from engine.report.tables import compared_options
from engine.run.log import RunLogger
from engine.run.record import read_metrics, read_run
from scripts.flags import find_source, script_parser, split_flags, split_sources
from scripts.sweep import newest_runs, read_values
from scripts.weights.trained_model import locate_weights
from utils.distributed import ProcessContext, single_process
from utils.errors import UserError, print_escaped
from utils.metric_table import METRICS, Metric, best_metric
from utils.notes import run_name
from utils.processes.entry import run_script

SCRIPT = "scripts/compare.py"
# exit statuses
NOT_WORSE = 0
WORSE = 10
UNKNOWN = 11
POINT = "operating_point"
_MOST_SEEDS = 1000
NO_IMAGE = "no image is left to compare; train NEW with -held_out=OLD, or give others with -data_path"


def main(argv: list[str]) -> int:
    names, argv = split_sources(argv)
    usage = "OLD NEW [-data_path=DIR] [-metric=NAME] [-margin=X] [flags of main_single_gpu.py]"
    what = "Says whether NEW is worse than OLD, on images that neither was trained on: folders of runs, or weight files"
    parser = script_parser("compare.py", usage, f"{what}. Status 0: not worse; 10: worse; 11: too few images to tell.")
    what = f"metric to compare (default: top1, of several labels mean_ap); {POINT}: sensitivity and specificity of both"
    add_flag(parser, "metric", choices=[*METRICS, POINT], help=f"{what} models, each at its own threshold")
    margin = "a difference that does not matter, in points of the metric (default: 0.5; of a loss in nats)"
    add_flag(parser, "margin", type=float, default=0.5, metavar="X", help=margin)
    flags, rest = split_flags(parser, argv)
    if len(names) != 2:
        of_settings = f"python {SCRIPT} SWEEP/KEY=VALUE SWEEP/KEY=VALUE, without *, for two settings"
        raise UserError(f"give two models, not {len(names)}: python {SCRIPT} OLD NEW, or {of_settings}")
    if not flags.margin >= 0:
        raise UserError(f"-margin={flags.margin:g}: give a number from 0 on")
    if flags.metric in METRICS:
        rest += ["-opts", f"EVAL.BEST_METRIC={flags.metric}"]
    pairs = _pairs(names)
    context = single_process()
    of_old = read_record(str(pairs[0][0])) or NO_RECORD
    typed = _command(pairs[0][0], of_old, rest)
    goal = typed.is_typed("EVAL.OPERATING_POINT") and typed.config.eval.operating_point
    has_goal = bool(goal) and flags.metric in (None, POINT)
    if (has_goal or flags.metric == POINT) and len(pairs) > 1:
        raise UserError(f"-metric={POINT} compares two models; give two runs, or another metric for settings")

    def plan(file: Path) -> Planned:
        command = _command(file, of_old, rest)
        if has_goal:  # which the weights need not have
            config = command.config
            command = replace(command, config=config.changed(eval=config.eval.changed(operating_point=None)))
        return Planned(file, command, plan_evaluation(command, context, RunLogger(context)))

    planned = [[plan(file) for file in files] for files in pairs]
    old, new = planned[0]
    before, after = _results(planned, context)
    _note_on_choice(old, new)
    if has_goal:
        point = operating_goal(typed.config, names_of_labels(old.plan.samples, old.plan.config.model.num_logits))
        figures = [_at_goal(point, before[0], after[0])]
    elif flags.metric == POINT:
        figures = _at_points(before[0], after[0])
    else:
        figures = [_figure(best_metric(flags.metric, old.plan.config.data.multi_label), before, after)]
    sources = names if len(pairs) > 1 else [str(file) for file in pairs[0]]
    numbers = len(before[0].targets), len(before)
    statuses = [_compare(figure, sources, flags.margin, *numbers) for figure in figures]
    return min(filter(None, statuses), default=NOT_WORSE)  # of both figures of a point, worse counts first


class Planned(NamedTuple):
    """A model before its evaluation. file: of its weights."""

    file: Path
    command: Command
    plan: EvaluationPlan


def _note_on_choice(old: Planned, new: Planned) -> None:
    chosen = []
    for name, model in (("OLD", old), ("NEW", new)):
        is_held_out = model.plan.images.split == "val" and model.plan.record.is_of(model.plan.config.data)
        if is_held_out and _has_choice(model):
            chosen.append(name)
    if chosen:
        has_test = read_run(old.file.parent).get("result", {}).get("test")
        fix = "; -split=test compares on test images" if has_test else ""
        print(f"These images chose the epoch or thresholds of {' and '.join(chosen)}: such figures are too good{fix}")


def _has_choice(model: Planned) -> bool:
    """Whether held-out images chose thresholds, or one of several epochs; also if the epochs are not known."""
    decision = model.plan.record.decision
    has_point = decision.point is not None and decision.point.is_chosen
    rows, _ = read_metrics(model.file.parent)
    epochs = {row["epoch"] for row in rows if row["kind"] == "evaluation"}
    return has_point or decision.thresholds is not None or len(epochs) != 1


def _results(planned: Sequence[Sequence[Planned]], context: ProcessContext) -> list[list[SampleResults]]:
    """The results of OLD and of NEW, of each pair, on the samples that all have read and none was trained on."""
    samples = planned[0][0].plan.samples
    samples.hash_content()
    found: list[list[SampleResults]] = [[], []]
    is_compared = np.ones(len(samples), bool)
    logger = RunLogger(context)
    logger.begin()
    for pair in planned:
        for name, model, results in zip(("OLD", "NEW"), pair, found, strict=True):
            results.append(_evaluate(model, samples, context, logger))
            logger = RunLogger(context)  # which shows nothing: the notes of the others are on other images
            is_compared &= ~is_padding(results[-1].targets) & ~_are_trained(name, samples, model)
    rows = np.flatnonzero(is_compared)
    print(f"Compared: {len(rows)} images")
    return [[one.take(rows) for one in results] for results in found]


def _pairs(names: list[str]) -> list[tuple[Path, Path]]:
    """The weight files of both models, or, of two settings, of both models of each seed in common.

    Raises UserError: a model beside a setting, or fewer than 3 seeds.
    """
    old, new = (_by_seed(name) for name in names)
    if len(old) == len(new) == 1:
        return [*zip(old.values(), new.values(), strict=True)]
    seeds = [seed for seed in old if seed in new]
    if len(seeds) < FEWEST_SEEDS:
        raise UserError(
            f"two settings need {FEWEST_SEEDS} seeds in common; {names[0]} has {[*old]}, {names[1]} has {[*new]}"
        )
    return [(old[seed], new[seed]) for seed in seeds]


def _by_seed(name: str) -> dict[Any, Path]:
    """The weight file of each seed of a setting, or of one model by None. Raises UserError: its runs differ in more."""
    folder = Path(name)
    setting = ""
    if not folder.exists():
        folder, setting = folder.parent, folder.name
    runs = {} if any(folder.glob("*.pth")) else newest_runs(folder)
    contents = [read_contents(path) for path, state in runs.values() if state in ("finished", "stopped")]
    if setting:
        contents = [run for run in contents if _has_values(run, setting)]
    if not contents and runs and "=" in setting:
        raise UserError(f"{name}: no finished run of the sweep has this value; they are {list_names([*runs])}")
    if not contents:
        return {None: locate_weights(find_source(name))}
    others = [key for key in compared_options(contents) if key != "SEED"]
    if others:
        raise UserError(f"{name}: its runs differ in {list_names(others)}; give SWEEP/KEY=VALUE")
    return {one.options["SEED"]: locate_weights(one.folder) for one in contents}


def _has_values(run: RunContents, setting: str) -> bool:
    """Whether a run has all KEY=VALUE of a setting: TRAIN.BASE_LR=1e-3 among its options, BASE_LR=1e-3 in its name."""
    in_name = read_values(run_name(run.folder))
    for word in read_values(setting):
        key, _, value = word.partition("=")
        has_value = word in in_name
        if key in run.options:
            has_value = run.options[key] == parse_value(value)
        if not has_value:
            return False
    return True


class Compared(NamedTuple):
    """A figure of OLD and of NEW, as texts, and the limits of NEW - OLD in favor of NEW. images: of the figure."""

    title: str
    texts: Sequence[str]
    order: str
    difference: float
    limits_at: LimitsAt


def _figure(metric: Metric, before: list[SampleResults], after: list[SampleResults]) -> Compared:
    """Of two models, or the mean over the seeds of two settings. Raises UserError: no images; it is undefined."""
    if not len(before[0].targets):
        raise UserError(NO_IMAGE)
    order = "NEW - OLD" if metric.sign > 0 else "OLD - NEW"
    values = [[results.value(metric) for results in one] for one in (before, after)]
    if np.isnan(values).any():
        raise UserError(f"the {metric.title} of these images is undefined; give another -metric, or other images")
    difference = metric.sign * float(np.mean(values[1]) - np.mean(values[0]))
    texts = [metric.text(float(np.mean(one))) for one in values]
    if len(before) > 1:
        for place, one in enumerate(values):
            texts[place] += f", mean of {len(one)} seeds, deviation {np.std(one, ddof=1):.4g}"
    return Compared(metric.title, texts, order, difference, paired_limits(after, before, metric))


def _compare(figure: Compared, sources: list[str], margin: float, images: int, seeds: int) -> int:
    """Prints the figures of both models and their difference; returns the exit status.

    images: the number of the compared ones, of which a figure at a point has a part. seeds: of each setting, 1 of
    models.
    """
    for name, text, source in zip(("OLD", "NEW"), figure.texts, sources, strict=True):
        print_escaped(f"{name}: {figure.title} {text} ({source})")
    low, high = figure.limits_at(1)
    print(f"Difference, {figure.order}: {figure.difference:+.4g}, 95% interval {low:+.4g} to {high:+.4g}")
    status, verdict = judge(figure.limits_at, margin, images, seeds)
    print(f"{verdict} (margin {margin:g})")
    return status


def _at_points(before: SampleResults, after: SampleResults) -> list[Compared]:
    """Specificity and sensitivity at the thresholds of the weights.

    Raises UserError: a model has no threshold, or one of another class.
    """
    points = [before.point, after.point]
    names = [point.name for point in points if point and point.threshold is not None]
    if len(names) < 2 or names[0] != names[1]:
        raise UserError(
            f"-metric={POINT}: OLD and NEW need a threshold of one class, not {names}; "
            "train both with one EVAL.OPERATING_POINT, or give it here with -opts, or give another metric"
        )
    print("Each model decides at the threshold of its weights; -opts EVAL.OPERATING_POINT compares at one goal")
    was, now = (decide_at(found.calibrated, point) for found, point in zip((before, after), points, strict=True))
    figures = []
    for target, name in enumerate(OF_POINT):
        rows = np.flatnonzero(was.targets == target)
        metric = replace(METRICS["top1"], title=f"{name} of {names[0]}")
        figures.append(_figure(metric, [was.take(rows)], [now.take(rows)]))
    return figures


def _at_goal(point: OperatingPoint | None, before: SampleResults, after: SampleResults) -> Compared:
    """The sensitivity at a specificity, or the reverse."""
    assert point
    _, is_own = before.of_class(point.label)
    if is_own.all() or not is_own.any():
        raise UserError(NO_IMAGE)
    print(f"These images choose both thresholds; -metric={POINT} alone takes the thresholds of the weights")
    values, limits_at = limits_at_goal(after, before, point)
    title = f"{OF_POINT[bool(point.specificity)]} of {point.name} at {point.title}"
    texts = [METRICS["top1"].text(value) for value in values]
    return Compared(title, texts, "NEW - OLD", values[1] - values[0], limits_at)


def _command(file: Path, of_old: WeightsRecord, rest: list[str]) -> Command:
    """The command that evaluates `file` on the images that OLD has held out, wherever the data are."""
    command = parse_command_line(["-eval", f"-pretrained={file}", "-split=val", *rest], SCRIPT)
    given = keys_in_section("DATA", command.given)
    keys = SPLIT if "DATA_PATH" in given else (*PLACE, *SPLIT)
    of_data = {key.lower(): of_old.data[key] for key in {*keys} & of_old.data.keys() - given}
    return replace(command, config=command.config.with_data(**of_data))


def _are_trained(name: str, samples: Samples, model: Planned) -> np.ndarray:
    """Whether a model was trained on each sample, bool (N,); prints how many they are.

    Beside its weights is the table of the images that it has read, which a run that was killed lacks.
    """
    file = model.file
    split = model.plan.record.split
    assert samples.hashes
    digests = [row.tobytes().hex().encode() for row in samples.hashes.rows]  # zeros of one that was not read
    trained, number, known = read_trained(file.parent, {*digests})
    is_trained = np.zeros(len(samples), bool)
    ways = []
    if known:
        is_trained = np.array([digest in trained for digest in digests])
        partial = f", of which {file.parent / IMAGES} has {known:,} of {number:,}" if known < number else ""
        ways.append(f"by content{partial}")
    if split and len(split.trained):
        is_trained |= np.isin(hash_paths(samples.names_for_split), split.trained)
        ways.append("by path")
    way = " or ".join(ways) or f"not known: {name} has no list of its training images"
    number = np.count_nonzero(is_trained)
    print_escaped(f"Images: {len(samples)}; training images of {name} among them, left out: {number} ({way})")
    return is_trained


def _evaluate(model: Planned, samples: Samples, context: ProcessContext, logger: RunLogger) -> SampleResults:
    """The results of the samples, with the model's numbers of their classes, which it has: it has read the data. One
    model after the other is in memory."""
    _, command, plan = model
    config = plan.config
    session = build_evaluation_session(command, context, logger, plan)
    names = plan.samples.class_names
    labels = np.array([names.index(name) if name in names else -1 for name in samples.class_names])
    if (labels < 0).all():
        shown = list_names(samples.class_names, 3)
        raise UserError(
            f"{model.file}: has none of the classes of OLD's images, {shown}; compare models of one data set"
        )
    batches = build_eval_loader(config, samples.with_classes(labels, names), context)
    results = session.evaluator.evaluate(session.model, batches)[1]
    assert results  # of one process
    return results


def judge(limits_at: LimitsAt, margin: float, images: int, seeds: int = 1) -> tuple[int, str]:
    """The exit status and the verdict.

    limits_at: of the difference, above 0 if the new model is better, with these factors times as many images and seeds.
    """
    low, high = limits_at(1)
    if high < 0:
        return WORSE, "Worse, but within the margin" if low > -margin else "Worse"
    if low > -margin:
        return NOT_WORSE, "Not worse"
    if low == -math.inf:
        return UNKNOWN, "Cannot be told: fewer than 2 images, or groups of like size, show no variance"

    def is_told(*factors: float) -> bool:
        low, high = limits_at(*factors)
        return high < 0 or low > -margin

    numbers = range(images, 10**12)
    needed = bisect_left(numbers, True, key=lambda number: is_told(number / images))
    if needed < len(numbers):
        return UNKNOWN, f"Cannot be told: about {numbers[needed]:,} images like these are needed in all"
    fix = f"no number of images is enough for a margin of {margin:g}; give a larger -margin"
    counts = range(seeds, _MOST_SEEDS)
    needed = bisect_left(counts, True, key=lambda count: seeds > 1 and is_told(1, count / seeds))
    if needed < len(counts):
        fix = f"about {counts[needed]} seeds of each setting are needed; repeat the command of the sweep with as many "
        fix += "values in -set SEED, which trains the missing ones"
    elif seeds > 1 and is_told(len(numbers) / images, _MOST_SEEDS / seeds):
        fix = f"more images alone, or more seeds alone, are not enough for a margin of {margin:g}; give more of both"
    return UNKNOWN, f"Cannot be told: {fix}"


if __name__ == "__main__":
    run_script(main)
