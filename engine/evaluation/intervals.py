"""The 95% confidence interval of a metric, from the results per sample.

Legend: N samples, M readable samples, C classes.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any

import numpy as np

from configs.schema.operating_point import OperatingPoint
from datasets.sources.samples import UNKNOWN, label_pairs
from engine.evaluation.ranking import RankingFigures, rank_outside_blocks, reaches, read_labels
from engine.evaluation.results import ClassFigures, SampleResults, choose_threshold, figures_of_counts, mean_f1
from utils.metric_table import METRICS, Metric

_BLOCKS = 20  # of the jackknife
MIN_RANKED = 10  # images or groups of a class, and of the others, that the jackknife of an AUROC needs
_DRAWS, _FEWEST_DRAWS = 2000, 400  # of the bootstrap; of so many images together, a minute on a CPU
_DRAWN_IMAGES = 200_000_000
OF_POINT = ("specificity", "sensitivity")  # the figures at an operating point, by the target of `decide_at`


def confidence_interval(results: SampleResults, metric: Metric) -> tuple[list[float] | None, str]:
    """The 95% interval of a metric in percent, of samples that are drawn one by one or, with groups, by group.

    Wilson's (1927) of a share of n samples, with n = share * (1 - share) / variance; the number of samples or groups
    where the variance is 0. The variance of top-k is the clustered one, and n at most the number of samples; of another
    metric a jackknife's that leaves out each of 20 blocks of groups. Of a mean over classes and of the worst class,
    each limit is also at least as far away as the limits of the classes are: the jackknife does not see that one image
    of a class may be right by chance.

    None for a loss or a calibration error, and with a reason for a value that is not a share, and where too few samples
    show the variance. A sample was read.
    """
    if results.lacks_groups:
        return None, "the groups of the images are not known"
    readable = results.readable
    units, unit = _units_of(results)
    number = int(units.max()) + 1
    share = metric.compute(results) / 100
    if metric.sign < 0:
        return None, ""
    if not 0 <= share <= 1:
        return None, f"the {metric.title} is undefined or below 0"
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
        below, above = _limits_of_classes(results, metric, units, with_class, without)
    n = max(share * (1 - share) / variance, 1.0) if variance > 0 else number
    low, high = wilson(share, min(n, largest_n), 1.96 + 2.4 / freedom)  # Student's t
    limits = max(min(low, share - below), 0.0), min(max(high, share + above), 1.0)
    return [100 * float(limit) for limit in limits], ""


def paired_limits(new: SampleResults, old: SampleResults, metric: Metric) -> Callable[[float], tuple[float, float]]:
    """The 95% limits by which a metric of `new` is better than of `old`, two models on the same readable samples: a
    function of the factor by which there are more images of each class, 1 for these.

    A percentile bootstrap of pairs: the images, or with groups the groups, are drawn for both models together (Efron
    and Tibshirani, 1993); of more images its limits are nearer by the square root. Models that are equal on few images
    may differ on others: each limit is at least as far away as the one of Bonett and Price (2012) for n units without a
    difference, 1.96 * sqrt(2) / (n + 2); but of top-k, as the one of the mean over the classes, or of the smallest
    class. They are groups only if no group differs. A loss has no such distance.
    """
    if metric.name != "auroc" and old.targets.ndim == 1:
        new, old = (replace(results, scores=None, logits=None) for results in (new, old))
    units, _ = _units_of(old)
    number = int(units.max()) + 1
    generator = np.random.default_rng(0)
    values = []
    for _ in range(min(_DRAWS, max(_FEWEST_DRAWS, _DRAWN_IMAGES // len(units)))):
        drawn = np.bincount(generator.integers(number, size=number), minlength=number)
        rows = np.repeat(old.readable, drawn[units])
        values.append(metric.gain(new.take(rows), old.take(rows)))
    low, high = np.nanquantile(values, (0.025, 0.975)).tolist()
    difference = metric.gain(new, old)
    if high > low:
        units = np.arange(len(units))
    counts = _units_of_classes(old, units)[0]
    counts = counts[counts > 0]
    total = [units.max() + 1]
    counts = np.array(
        {"top1": total, "top5": total, "min_recall": [counts.min()], "loss": [math.inf]}.get(metric.name, counts)
    )

    def limits_at(factor: float) -> tuple[float, float]:
        least = 196 * math.sqrt(2 * np.sum((factor * counts + 2.0) ** -2)) / len(counts)
        below, above = (max(distance / math.sqrt(factor), least) for distance in (difference - low, high - difference))
        return difference - below, difference + above

    return limits_at


def ranking_of(results: SampleResults, label: int, names: Sequence[str]) -> dict[str, Any] | None:
    """The AUROC of a class against the others, in percent, and its interval or why there is none; None if undefined."""
    if results.scores is None:
        return None
    scores, is_own = results.of_class(label)
    targets = is_own[:, None].astype(np.int8)
    others = replace(results, scores=None, logits=None, thresholds=None).take(results.rows_of_class(label))
    binary = replace(others, targets=targets, scores=scores[:, None])
    auroc = binary.ranking.mean_auroc
    if math.isnan(auroc):
        return None
    interval, reason = confidence_interval(binary, METRICS["auroc"])
    return {"class": names[label], "auroc": auroc, "interval": interval, "interval_missing": reason or None}


def figures_at(results: SampleResults, point: OperatingPoint) -> dict[str, Any]:
    """The sensitivity and the specificity at a chosen point, in percent, None if not defined; their intervals, or why
    there is none.

    goal: in words. confusion: samples by the true (row) and the predicted class (column): the others, the class; None
    without a threshold.
    """
    binary = decide_at(results, point)
    found: dict[str, Any] = {**point.model_dump(by_alias=True), "goal": point.title, "confusion": None}
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
            share = part.accuracy(1)
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


def wilson(shares: Any, n: Any, z: float = 1.96) -> tuple[Any, Any]:
    """The limits of shares of n samples each; arrays or numbers."""
    middle, width = shares + z**2 / (2 * n), z * np.sqrt(shares * (1 - shares) / n + z**2 / (4 * n**2))
    return (middle - width) / (1 + z**2 / n), (middle + width) / (1 + z**2 / n)


def _units_of(results: SampleResults) -> tuple[np.ndarray, str]:
    """The number of the image or group of each readable sample, int64 (M,); and what it is."""
    readable = results.readable
    if results.groups is None:
        return np.arange(len(readable)), results.unit
    return np.unique(results.groups[readable], return_inverse=True)[1], results.unit.replace("images", "groups", 1)


def _units_of_classes(results: SampleResults, units: np.ndarray) -> np.ndarray:
    """The numbers of images or groups with an image of each class, and with one of another class, int64 (2, C).

    units: the number of the image or group of each readable sample, int64 (M,).
    """
    number = int(units.max()) + 1
    classes = len(results.per_class.count)
    targets = results.targets[results.readable]
    with_class, _ = _count_units(label_pairs(targets), units, classes)
    others = label_pairs(targets) if targets.ndim == 1 else np.nonzero(targets)  # also of unknown labels
    _, whole = _count_units(others, units, classes)
    return np.stack([with_class, number - whole])


def _count_units(found: tuple[np.ndarray, ...], units: np.ndarray, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """The units with one of the samples of each label, and those all of whose samples are among them, int64 (C,).

    found: as of `label_pairs`.
    """
    samples, labels = found
    number = int(units.max()) + 1
    pairs, counts = np.unique(labels * number + units[samples], return_counts=True)
    of_pairs = pairs // number
    is_whole = counts == np.bincount(units)[pairs % number]
    return np.bincount(of_pairs, minlength=classes), np.bincount(of_pairs[is_whole], minlength=classes)


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
    if metric.name == "auroc" or results.targets.ndim == 2:
        parts: Iterable[Any] = _ranked_parts(results, metric, blocks)
    else:
        kept = (results.readable[blocks != block] for block in range(min(number, _BLOCKS)))
        parts = map(results.take, kept)
    values = np.array([metric.compute(part) / 100 for part in parts])
    return (len(values) - 1) * float(values.var()), len(values) - 1


@dataclass(frozen=True)
class _RankedPart:
    """The figures of the samples outside a block, for metrics of the order and of several labels.

    f1: of the axis of `SampleResults.f1_of_labels`.
    """

    ranking: RankingFigures
    per_class: ClassFigures
    f1: dict[int | None, float]

    def f1_of_labels(self, axis: int | None) -> float:
        return self.f1[axis]


def _ranked_parts(results: SampleResults, metric: Metric, blocks: np.ndarray) -> list[_RankedPart]:
    """The figures without each block that `metric` needs. All scores are read once, a label at a time.

    blocks: of each readable sample, int64 (M,).
    """
    assert results.scores is not None
    rows = results.readable[np.argsort(blocks, kind="stable")]
    sizes = np.bincount(blocks)
    ends = np.cumsum(sizes)
    of_blocks = [slice(end - size, end) for end, size in zip(ends, sizes, strict=True)]
    shape = (len(ends), results.scores.shape[1])
    ranked = np.full((2, *shape), np.nan)
    counts = np.zeros((4, *shape), np.int64)  # outside the block: of the class, predicted, both, and of known label
    labels = np.zeros((3, len(rows)), np.int32)  # of a sample: its own, predicted ones, both
    is_labelled = np.zeros(len(rows), bool)  # with a known label
    for label, values, is_own, is_known in read_labels(results.targets, results.scores, rows):
        is_labelled |= is_known
        if metric.name in ("mean_ap", "auroc"):
            if is_own.any():
                known_ends = np.append(0, np.cumsum(is_known))[ends]
                ranked[:, :, label] = rank_outside_blocks(values[is_known], is_own[is_known], known_ends)
            continue
        is_predicted = reaches(values, results.used_thresholds[label]) & is_known
        found = (is_own, is_predicted, is_own & is_predicted, is_known)
        labels += found[:3]
        for block, rows_of_block in enumerate(of_blocks):
            counts[:, block, label] = [np.count_nonzero(x) - np.count_nonzero(x[rows_of_block]) for x in found]
    parts = []
    for block, rows_of_block in enumerate(of_blocks):
        precision, auroc = ranked[:, block]
        ranking = replace(results.ranking, average_precision=precision, auroc=auroc)
        true, predicted, hits, known = counts[:, block]
        is_used = is_labelled.copy()
        is_used[rows_of_block] = False
        f1 = {None: mean_f1(true.sum(), predicted.sum(), hits.sum()), 1: mean_f1(*labels[:, is_used])}
        per_class = figures_of_counts(true, predicted, hits, hits, known)
        parts.append(_RankedPart(ranking, per_class, f1))
    return parts


def _limits_of_classes(
    results: SampleResults, metric: Metric, units: np.ndarray, with_class: np.ndarray, without: np.ndarray
) -> tuple[float, float]:
    """The distances of a metric from its lower and upper limit that Wilson's limits of the classes alone give it.

    Of a mean by Zou and Donner (2008), who add the squares of the distances. 0 for a metric that is not of classes.
    units, with_class, without: of `_units_of_classes`.
    """
    figures = results.per_class
    of_classes = {
        "balanced_accuracy": (figures.recall, with_class),
        "recall": (figures.recall, with_class),
        "min_recall": (figures.recall, with_class),
        "macro_f1": (figures.f1, with_class),
        "mean_ap": (results.ranking.average_precision, with_class),
        "specificity": (figures.specificity, without),
    }
    if metric.name == "precision":  # half of all scores may be pairs: gigabytes, which other metrics need not take
        labels = results.labels[results.readable, 0]
        if results.targets.ndim == 2:
            labels = (results.predicted & (results.targets != UNKNOWN))[results.readable]
        predicted, _ = _count_units(label_pairs(labels), units, len(figures.count))
        of_classes["precision"] = np.nan_to_num(figures.precision), np.maximum(predicted, 1)
    if metric.name not in of_classes:
        return 0.0, 0.0
    values, counts = of_classes[metric.name]
    is_used = (figures.count > 0) & ~np.isnan(values)
    shares = values[is_used] / 100
    counts = counts[is_used]
    if metric.name == "min_recall":  # another class may be the worst one: limits that hold for all classes together
        low, high = wilson(shares, counts, NormalDist().inv_cdf(1 - 0.025 / len(shares)))
        worst = np.lexsort((counts, shares))[0]  # of equal ones the smallest
        return shares[worst] - low.min(), high[worst] - shares[worst]
    low, high = wilson(shares, counts)
    below, above = (math.sqrt(np.mean((limit - shares) ** 2) / len(shares)) for limit in (low, high))
    return below, above
