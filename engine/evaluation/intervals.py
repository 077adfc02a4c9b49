"""The 95% confidence interval of a metric, from the results per sample.

Legend: N samples, M readable samples, C classes.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import NormalDist
from typing import Any

import numpy as np

from configs.schema.operating_point import OperatingPoint
from engine.evaluation.ranking import has_label, reaches
from engine.evaluation.results import SampleResults
from utils.metric_table import METRICS, Metric

_BLOCKS = 20  # of the jackknife
MIN_RANKED = 10  # images or groups of a class, and of the others, that the jackknife of an AUROC needs


def confidence_interval(results: SampleResults, metric: Metric) -> tuple[list[float] | None, str]:
    """The 95% interval of a metric in percent, of samples that are drawn one by one or, with groups, by group.

    Wilson's (1927) of a share of n samples, with n = share * (1 - share) / variance; the number of samples or groups
    where the variance is 0. The variance of top-k is the clustered one, and n at most the number of samples; of another
    metric a jackknife's that leaves out each of 20 blocks of groups. Of a mean over classes and of the worst class,
    each limit is also at least as far away as the limits of the classes are: the jackknife does not see that one image
    of a class may be right by chance.

    None for a loss, for a value that is not a share, and where too few samples show the variance; then the reason, too.
    """
    if results.lacks_groups:
        return None, "the groups of the images are not known"
    readable = results.readable
    units = np.arange(len(readable))
    unit = results.unit
    if results.groups is not None:
        units = np.unique(results.groups[readable], return_inverse=True)[1]
        unit = "groups"
    number = int(units.max(initial=-1)) + 1
    share = metric.compute(results) / 100 if number else math.nan
    if metric.name == "loss" or not 0 <= share <= 1:
        return None, ""
    if number == 1:
        return None, f"fewer than 2 {unit}"
    freedom = math.inf if results.groups is None else number - 1
    below = above = 0.0
    largest_n = math.inf
    if top_k := {"top1": 1, "top5": 5}.get(metric.name):
        sums = np.bincount(units, results.hits(top_k)[readable] - share)
        variance = float(sums @ sums) / len(readable) ** 2
        largest_n = len(readable)  # the images of few groups may differ as if drawn one by one, by chance
        if variance == 0:  # n is the number of groups, and nothing is estimated
            freedom = math.inf
    else:
        with_class, without = _units_of_classes(results, units)
        sides = np.minimum(with_class, without)
        if metric.name == "auroc" and sides[sides > 0].min() < MIN_RANKED:
            return None, f"fewer than {MIN_RANKED} {unit} of a class, or of the others"
        if metric.name == "balanced_accuracy":
            variance = _variance_of_recalls(results, units, with_class)
        else:
            variance, freedom = _jackknife(results, metric, units)
        if math.isnan(variance):
            return None, f"too few {unit} of a class"
        below, above = _limits_of_classes(results, metric, with_class, without)
    n = max(share * (1 - share) / variance, 1.0) if variance > 0 else number
    low, high = _wilson(share, min(n, largest_n), 1.96 + 2.4 / freedom)  # Student's t
    limits = max(min(low, share - below), 0.0), min(max(high, share + above), 1.0)
    return [100 * float(limit) for limit in limits], ""


def ranking_of(results: SampleResults, label: int, names: Sequence[str]) -> dict[str, Any] | None:
    """The AUROC of a class against the others, in percent, and its interval or why there is none; None if undefined."""
    if results.scores is None:
        return None
    scores, is_own = results.of_class(label)
    targets = is_own[:, None].astype(np.int8)
    binary = replace(results.take(results.readable), targets=targets, scores=scores[:, None], thresholds=None)
    auroc = binary.ranking.mean_auroc
    if math.isnan(auroc):
        return None
    interval, reason = confidence_interval(binary, METRICS["auroc"])
    return {"class": names[label], "auroc": auroc, "interval": interval, "interval_missing": reason or None}


def figures_at(results: SampleResults, point: OperatingPoint) -> dict[str, Any]:
    """The sensitivity and the specificity at a chosen point, in percent, None if not defined; their intervals.

    goal: in words. confusion: samples by the true (row) and the predicted class (column): the others, the class.
    """
    scores, is_own = results.of_class(point.label)
    targets = is_own.astype(np.int64)
    predicted = np.zeros(len(targets), np.int32)
    if point.threshold is not None:
        predicted = reaches(scores, point.threshold).astype(np.int32)
    confusion = np.bincount(2 * targets + predicted, minlength=4).reshape(2, 2)
    binary = replace(results.take(results.readable), targets=targets, labels=predicted[:, None])
    found: dict[str, Any] = {**point.model_dump(by_alias=True), "goal": point.title, "confusion": confusion.tolist()}
    for label, name in enumerate(("specificity", "sensitivity")):
        part = binary.take(np.flatnonzero(targets == label))
        share = None
        interval = None
        if point.threshold is not None and len(part.targets):
            share = part.accuracy(1)
            interval, _ = confidence_interval(part, METRICS["top1"])
        found |= {name: share, f"{name}_interval": interval}
    return found


def _wilson(shares: Any, n: Any, z: float = 1.96) -> tuple[Any, Any]:
    """The limits of shares of n samples each; arrays or numbers."""
    middle, width = shares + z**2 / (2 * n), z * np.sqrt(shares * (1 - shares) / n + z**2 / (4 * n**2))
    return (middle - width) / (1 + z**2 / n), (middle + width) / (1 + z**2 / n)


def _units_of_classes(results: SampleResults, units: np.ndarray) -> np.ndarray:
    """The numbers of images or groups with an image of each class, and with one of another class, int64 (2, C).

    units: the number of the image or group of each readable sample, int64 (M,).
    """
    targets = results.targets[results.readable]
    has_class = (has_label(targets, label) for label in range(len(results.per_class.count)))
    counts = [[np.count_nonzero(np.bincount(units[one])) for one in (is_own, ~is_own)] for is_own in has_class]
    return np.array(counts).T


def _variance_of_recalls(results: SampleResults, units: np.ndarray, with_class: np.ndarray) -> float:
    """The variance of the mean of the recalls, as shares: each class has its own, of its images or groups.

    It is at least the one of recalls that two more images of mean recall draw to their mean: the images of a class with
    one are always all right or all wrong.
    """
    figures, readable = results.per_class, results.readable
    recalls = figures.recall / 100
    is_used = figures.count > 0
    number = np.count_nonzero(is_used)
    targets = results.targets[readable]
    sums = np.bincount(units, (results.hits(1)[readable] - recalls[targets]) / figures.count[targets])
    recalls = recalls[is_used]
    counts = with_class[is_used]
    drawn = (recalls * counts + 2 * recalls.mean()) / (counts + 2)
    return float(max(sums @ sums, np.sum(drawn * (1 - drawn) / counts))) / number**2


def _jackknife(results: SampleResults, metric: Metric, units: np.ndarray) -> tuple[float, int]:
    """The variance of a metric, as a share, and its degrees of freedom; NaN if a block leaves it undefined."""
    number = int(units.max()) + 1
    blocks = np.random.default_rng(0).permutation(number)[units] % _BLOCKS
    kept = (results.readable[blocks != block] for block in range(min(number, _BLOCKS)))
    values = np.array([metric.compute(results.take(rows)) / 100 for rows in kept])
    return (len(values) - 1) * float(values.var()), len(values) - 1


def _limits_of_classes(
    results: SampleResults, metric: Metric, with_class: np.ndarray, without: np.ndarray
) -> tuple[float, float]:
    """The distances of a metric from its lower and upper limit that Wilson's limits of the classes alone give it.

    Of a mean by Zou and Donner (2008), who add the squares of the distances. 0 for a metric that is not of classes.
    with_class, without: of `_units_of_classes`.
    """
    figures = results.per_class
    of_classes = {
        "balanced_accuracy": (figures.recall, with_class),
        "min_recall": (figures.recall, with_class),
        "macro_f1": (figures.f1, with_class),
        "mean_ap": (results.ranking.average_precision, with_class),
        "specificity": (figures.specificity, without),
    }
    if metric.name not in of_classes:
        return 0.0, 0.0
    values, counts = of_classes[metric.name]
    is_used = (figures.count > 0) & ~np.isnan(values)
    shares = values[is_used] / 100
    counts = counts[is_used]
    if metric.name == "min_recall":  # another class may be the worst one: limits that hold for all classes together
        low, high = _wilson(shares, counts, NormalDist().inv_cdf(1 - 0.025 / len(shares)))
        worst = np.lexsort((counts, shares))[0]  # of equal ones the smallest
        return shares[worst] - low.min(), high[worst] - shares[worst]
    low, high = _wilson(shares, counts)
    below, above = (math.sqrt(np.mean((limit - shares) ** 2) / len(shares)) for limit in (low, high))
    return below, above
