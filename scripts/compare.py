"""Says whether a model is worse than another one, on images that neither was trained on.

    python scripts/compare.py OLD NEW -data_path=DIR -margin=0.5

OLD, NEW: folders of runs, or weight files. The images are those that OLD has held out, or with -split=all all images,
without those that OLD or NEW was trained on. The exit status is 0 if NEW is not worse, 10 if it is, and 11 if the
images are too few to tell; 1 and 2 as of all programs (docs/operation.md).
"""

import sys
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from configs.command_line import Command, parse_command_line
from configs.weights import NO_RECORD, PLACE, SPLIT, WeightsRecord, keys_in_section
from datasets.loading.loader import build_eval_loader
from datasets.sources.samples import Samples
from datasets.sources.split import hash_paths
from engine.checkpoint.weights_record import read_record
from engine.evaluation.images import IMAGES, read_trained
from engine.evaluation.intervals import OF_POINT, decide_at
from engine.evaluation.paired import paired_limits
from engine.evaluation.results import SampleResults
from engine.evaluation.session import EvaluationSession, build_evaluation_session
from engine.run.log import RunLogger
from engine.run.record import read_run
from scripts.flags import add_flag, find_source, script_parser, split_flags, split_sources
from scripts.weights.trained_model import locate_weights
from utils.distributed import ProcessContext, single_process
from utils.errors import UserError, print_escaped
from utils.metric_table import METRICS, Metric, best_metric
from utils.processes.entry import run_script

SCRIPT = "scripts/compare.py"
NOT_WORSE, WORSE, UNKNOWN = 0, 10, 11  # exit statuses
POINT = "operating_point"


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
    if len(names) != 2 or not flags.margin >= 0:
        raise UserError(f"give two models and a margin from 0 on: python {SCRIPT} OLD NEW -data_path=DIR -margin=0.5")
    if flags.metric in METRICS:
        rest += ["-opts", f"EVAL.BEST_METRIC={flags.metric}"]
    files = [locate_weights(find_source(name)) for name in names]
    of_old = read_record(str(files[0])) or NO_RECORD
    context = single_process()
    new = build_evaluation_session(
        _command(files[1], of_old, rest), context, RunLogger(context)
    )  # its notes: on other images
    logger = RunLogger(context)
    old = build_evaluation_session(_command(files[0], of_old, rest), context, logger)
    logger.begin()
    samples = old.plan.samples
    samples.hash_content()
    results = [_evaluate(session, samples, context) for session in (old, new)]
    is_read = np.intersect1d(*(found.readable for found in results))
    is_trained = _are_trained("OLD", samples, old, files[0]) | _are_trained("NEW", samples, new, files[1])
    is_read = is_read[~is_trained[is_read]]
    print(f"Compared: {len(is_read)} images")
    if old.plan.images.split == "val" and old.plan.record.is_of(old.plan.config.data):
        has_test = read_run(files[0].parent).get("result", {}).get("test")
        fix = "; -split=test compares on test images" if has_test else ""
        print(f"These images chose the epoch and thresholds of OLD: its figures are too good{fix}")
    before, after = (found.take(is_read) for found in results)
    metric = best_metric(flags.metric, old.evaluator.multi_label)
    figures = [(metric, before, after)]
    if flags.metric == POINT:
        figures = _figures_at_points(old, new, before, after)
    statuses = [_compare(*figure, files, flags.margin, len(is_read)) for figure in figures]
    return min(filter(None, statuses), default=NOT_WORSE)  # of both figures of a point, worse counts first


def _compare(
    metric: Metric, before: SampleResults, after: SampleResults, files: list[Path], margin: float, images: int
) -> int:
    """Prints the figures of both models and their difference; returns the exit status. Raises UserError: no images.

    images: the number of the compared ones, of which a figure at a point has a part.
    """
    if not len(before.targets):
        raise UserError("no image is left to compare; train NEW with -held_out=OLD, or give others with -data_path")
    for name, found, file in (("OLD", before, files[0]), ("NEW", after, files[1])):
        print_escaped(f"{name}: {metric.title} {metric.text(metric.compute(found))} ({file})")
    difference = metric.gain(after, before)
    limits_at = paired_limits(after, before, metric)
    low, high = limits_at(1)
    order = "NEW - OLD" if metric.sign > 0 else "OLD - NEW"  # positive in favor of NEW
    print(f"Difference, {order}: {difference:+.4g}, 95% interval {low:+.4g} to {high:+.4g}")
    status, verdict = judge(limits_at, margin, images)
    print(f"{verdict} (margin {margin:g})")
    return status


def _figures_at_points(
    old: EvaluationSession, new: EvaluationSession, before: SampleResults, after: SampleResults
) -> list[tuple[Metric, SampleResults, SampleResults]]:
    """Specificity and sensitivity at the operating points, as arguments of `_compare`.

    Raises UserError: a model has no threshold, or one of another class.
    """
    points = [session.evaluator.decision.point for session in (old, new)]
    names = [point.name for point in points if point and point.threshold is not None]
    if len(names) < 2 or names[0] != names[1]:
        raise UserError(
            f"-metric={POINT}: OLD and NEW need a threshold of one class, not {names}; "
            "train both with one EVAL.OPERATING_POINT, or give another metric"
        )
    was, now = (decide_at(found.calibrated, point) for found, point in zip((before, after), points, strict=True))
    figures = []
    for target, name in enumerate(OF_POINT):
        rows = np.flatnonzero(was.targets == target)
        metric = replace(METRICS["top1"], title=f"{name} of {names[0]}")
        figures.append((metric, was.take(rows), now.take(rows)))
    return figures


def _command(file: Path, of_old: WeightsRecord, rest: list[str]) -> Command:
    """The command that evaluates `file` on the images that OLD has held out, wherever the data are."""
    command = parse_command_line(["-eval", f"-pretrained={file}", "-split=val", *rest], SCRIPT)
    given = keys_in_section("DATA", command.given)
    keys = SPLIT if "DATA_PATH" in given else (*PLACE, *SPLIT)
    of_data = {key.lower(): of_old.data[key] for key in {*keys} & of_old.data.keys() - given}
    return replace(command, config=command.config.with_data(**of_data))


def _are_trained(name: str, samples: Samples, session: EvaluationSession, file: Path) -> np.ndarray:
    """Whether a model was trained on each sample, bool (N,); prints how many they are.

    file: of its weights, beside the table of the images that it has read, which a run that was killed lacks.
    """
    split = session.plan.record.split
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


def _evaluate(session: EvaluationSession, samples: Samples, context: ProcessContext) -> SampleResults:
    """The results of the samples, with the model's numbers of their classes, which it has: it has read the data."""
    config = session.plan.config
    names = session.plan.samples.class_names
    labels = np.array([names.index(name) if name in names else -1 for name in samples.class_names])
    batches = build_eval_loader(config.data, samples.with_classes(labels, names), context, config.timeout_seconds)
    results = session.evaluator.evaluate(session.model, batches)[1]
    assert results  # of one process
    return results


def judge(limits_at: Callable[[float], tuple[float, float]], margin: float, images: int) -> tuple[int, str]:
    """The exit status and the verdict.

    limits_at: of the difference, above 0 if the new model is better, with this factor times as many images.
    """
    low, high = limits_at(1)
    if high < 0:
        return WORSE, "Worse, but within the margin" if low > -margin else "Worse"
    if low > -margin:
        return NOT_WORSE, "Not worse"

    def is_told(number: int) -> bool:
        low, high = limits_at(number / images)
        return high < 0 or low > -margin

    numbers = range(images, 10**12)
    needed = bisect_left(numbers, True, key=is_told)
    fix = "no number of images shows a difference of 0 within a margin of 0"
    if needed < len(numbers):
        fix = f"about {numbers[needed]:,} images like these are needed in all"
    return UNKNOWN, f"Cannot be told: {fix}"


if __name__ == "__main__":
    run_script(main)
