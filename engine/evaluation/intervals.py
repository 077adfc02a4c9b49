"""The 95% confidence interval of a metric, from the results per sample.

Legend: N samples, M readable samples, C classes.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from configs.schema.operating_point import OperatingPoint
from configs.yaml_io import Values
from engine.evaluation.influence import KINDS, ROUNDING, freedom_of, student_factor, units_of
from engine.evaluation.limits import wilson
from engine.evaluation.ranking import reaches
from engine.evaluation.results import SampleResults, choose_threshold
from utils.metric_table import METRICS, Metric

OF_POINT = ("specificity", "sensitivity")  # the figures at an operating point, by the target of `decide_at`
_FEWEST_DEGREES = 2  # of freedom of groups


def confidence_interval(results: SampleResults, metric: Metric) -> tuple[list[float] | None, str]:
    """The 95% interval of a metric in percent, of samples that are drawn one by one or, with groups, by group.

    Wilson's (1927) of a share of n samples, with n = share * (1 - share) / variance. The variance is the sum of the
    squared changes of the metric without each unit (`engine/evaluation/influence.py`, one function a kind of figure,
    which sets limits that may be farther away), of groups, mean APs and kappas of several grades times (t / 1.96)²
    (Korn and Graubard, 1998; `freedom_of`). A kappa is a share from its least value on.

    None for a loss or a calibration error, and with a reason for an undefined value, and where too few samples show the
    variance. A sample was read.
    """
    if results.lacks_groups:
        return None, "the groups of the images are not known"
    if metric.sign < 0 or metric.kind is None:
        return None, ""
    if math.isnan(results.value(metric)):
        return None, f"the {metric.title} is undefined"
    units = units_of(results)
    figure = KINDS[metric.kind](results, metric.of, units)
    if figure.reason:
        return None, figure.reason
    if units.number < 2:
        return None, f"fewer than 2 {units.name}"
    if units.are_groups and figure.kish < 1 + _FEWEST_DEGREES:
        return None, f"too few {units.name}, or one with most of the images"
    value = float(figure.values.mean())
    scale = 1 - figure.least
    share = min(max((value - figure.least) / scale, 0.0), 1.0)  # rounding
    variance = float(figure.changes @ figure.changes) / scale**2
    ends = (share, share)
    if variance > ROUNDING:
        if units.are_groups or not figure.is_binomial:
            variance *= student_factor(freedom_of(figure.changes, figure.kish))
        ends = wilson(share, max(share * (1 - share) / variance, 1.0))
    low, high = (figure.least + scale * end for end in ends)
    number = len(figure.values)
    below, above = (math.sqrt(np.sum((limits - figure.values) ** 2)) / number for limits in figure.limits)
    return [100 * max(min(low, value - below), figure.least), 100 * min(max(high, value + above), 1.0)], ""


def ranking_of(results: SampleResults, label: int, names: Sequence[str]) -> Values | None:
    """The AUROC of a class against the others, in percent, and its interval or why there is none; None if undefined."""
    if results.scores is None:
        return None
    scores, is_own = results.of_class(label)
    targets = is_own[:, None].astype(np.int8)
    others = replace(results, scores=None, logits=None, thresholds=None).take(results.rows_of_class(label))
    binary = replace(others, targets=targets, scores=scores[:, None])
    auroc = binary.value(METRICS["auroc"])
    if math.isnan(auroc):
        return None
    interval, reason = confidence_interval(binary, METRICS["auroc"])
    return {"class": names[label], "auroc": auroc, "interval": interval, "interval_missing": reason or None}


def figures_at(results: SampleResults, point: OperatingPoint) -> Values:
    """The sensitivity and the specificity at a chosen point, in percent, None if not defined; their intervals, or why
    there is none.

    goal: in words. confusion: samples by the true (row) and the predicted class (column): the others, the class; None
    without a threshold.
    """
    binary = decide_at(results, point)
    found: Values = {**point.model_dump(by_alias=True), "goal": point.title, "confusion": None}
    if point.threshold is not None:
        confusion = np.bincount(2 * binary.targets + binary.labels[:, 0], minlength=4).reshape(2, 2)
        found["confusion"] = confusion.tolist()
    for label, name in enumerate(OF_POINT):
        unit = f"{results.unit} {('without', 'with')[label]} {point.name}"
        part = replace(binary.take(np.flatnonzero(binary.targets == label)), unit=unit)
        share = None
        interval = None
        reason = f"no {unit}"
        if point.threshold is None:
            reason = _why_no_threshold(results, point)
        elif len(part.targets):
            share = part.value(METRICS["top1"])
            interval, reason = confidence_interval(part, METRICS["top1"])
        found |= {name: share, f"{name}_interval": interval, f"{name}_interval_missing": reason or None}
    return found


def _why_no_threshold(results: SampleResults, point: OperatingPoint) -> str:
    """What the samples show: others may have decided."""
    _, is_own = results.of_class(point.label)
    if is_own.all() or not is_own.any():
        kind = "without" if is_own.any() else "with"
        return f"no threshold: no {results.unit} {kind} {point.name}"
    if choose_threshold(results, point) is not None:
        return "no threshold: the weights have none"
    number = "none" if point.specificity else "all"
    return f"no threshold: {point.title} is reached only with {number} called {point.name}"


def decide_at(results: SampleResults, point: OperatingPoint) -> SampleResults:
    """The samples of which it is known whether they have the class of a chosen point: targets and labels are 1 for the
    class, 0 for the others. top-1 of the targets 0 is the specificity, of the targets 1 the sensitivity (`OF_POINT`).
    """
    scores, is_own = results.of_class(point.label)
    predicted = np.zeros((len(scores), 1), np.int32)
    if point.threshold is not None:
        predicted[:, 0] = reaches(scores, point.threshold)
    others = replace(results, scores=None, logits=None).take(results.rows_of_class(point.label))
    return replace(others, targets=is_own.astype(np.int64), labels=predicted)
