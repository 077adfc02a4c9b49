"""How a metric depends on each image or group, one function a kind of figure: the ground of its intervals.

Legend: M readable samples, C classes, U units: the images or, with groups, the groups.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from datasets.sources.samples import UNKNOWN, is_multi_hot
from engine.evaluation.limits import Z, clopper_pearson, newcombe, t_quantile, wilson
from engine.evaluation.ranking import divide, read_labels, to_finite
from engine.evaluation.results import SampleResults

MIN_RANKED = 10  # images or groups of a class, and of the others, that the interval of an AUROC needs
_CELLS = 1 << 22  # pairs of a sample and a class that are read at a time


@dataclass(frozen=True)
class Units:
    """What is drawn. of_rows: the image or group of each readable sample, int64 (M,). name: 'images' or 'groups'."""

    of_rows: np.ndarray
    number: int
    are_groups: bool
    name: str

    def sums(self, values: np.ndarray) -> np.ndarray:
        return np.bincount(self.of_rows, values, minlength=self.number)

    def count(self, is_chosen: np.ndarray) -> int:
        """The units with a chosen sample; is_chosen: bool (M,)."""
        return len(np.unique(self.of_rows[is_chosen]))

    def changes(self, residuals: np.ndarray, shares: np.ndarray) -> np.ndarray:
        """The loss of a ratio without each unit, float64 (U,): of single images to first order, of groups exactly
        (the jackknife by group, CR3: Bell and McCaffrey, 2002).

        residuals, shares (M,): of each sample, (part - ratio * count) / total, and count / total.
        """
        sums = self.sums(residuals)
        return sums / np.maximum(1 - self.sums(shares), 1e-9) if self.are_groups else sums


def units_of(results: SampleResults) -> Units:
    readable = results.readable
    if results.groups is None:
        return Units(np.arange(len(readable)), len(readable), False, results.unit)
    names, of_rows = np.unique(results.groups[readable], return_inverse=True)
    return Units(of_rows, len(names), True, results.unit.replace("images", "groups", 1))


@dataclass(frozen=True)
class Figure:
    """A metric as a share.

    changes: of the value without each unit, float64 (U,). weights: the part of each unit in the value, which sum to 1.
    least: the least variance. below, above: the least distances of the limits from the value.
    most, unseen: of so many single samples a share says as much, at most; where no change is seen.
    is_bounded: the parts of samples are from 0 to 1, so that groups differ by no more than groups of equal samples.
    counts, slopes: the samples of each part, and the change of the value by the share of a part, for two models.
    reason: why there is no interval.
    """

    value: float
    changes: np.ndarray
    weights: np.ndarray
    counts: Any
    slopes: Any = 1.0
    least: float = 0.0
    below: float = 0.0
    above: float = 0.0
    most: float = math.inf
    unseen: float = math.inf
    is_bounded: bool = False
    reason: str = ""

    @property
    def kish(self) -> float:
        """The number of units of equal weight that say as much (Kish, 1965)."""
        return 1 / max(float(self.weights @ self.weights), 1e-300)


def _share(results: SampleResults, of: Callable[[SampleResults], Any], units: Units) -> Figure:
    """The sum of a part of each sample over the sum of its counts."""
    parts, counts = of(results)
    total = max(float(counts.sum()), 1e-300)
    value = float(parts.sum() / total) if counts.any() else math.nan
    shares = counts / total
    residuals = (parts - value * counts) / total
    changes = units.changes(residuals, shares)
    single = float(residuals @ residuals)
    return Figure(
        value, changes, units.sums(shares), [len(parts)],
        most=value * (1 - value) / single if single else math.inf, unseen=units.number, is_bounded=True,
    )  # fmt: skip


@dataclass(frozen=True)
class ClassShares:
    """The shares of the classes that count, float64 (C,), each as of `numbers` single samples for Wilson's interval.

    labels: of these classes. counts: the samples of each share. changes: of the sum of shares * slope without each
    unit, float64 (U,). weights: the part of each unit (U,).
    """

    labels: np.ndarray
    shares: np.ndarray
    numbers: np.ndarray
    counts: np.ndarray
    changes: np.ndarray
    weights: np.ndarray


def shares_of_classes(
    results: SampleResults, of: str, units: Units, slope: Callable[[np.ndarray], np.ndarray] = np.ones_like
) -> ClassShares:
    """Of each class with samples the recall, precision or specificity, or for `f1` Jaccard's index.

    With groups the number is the effective one of Korn and Graubard (1998): share * (1 - share) / variance, times the
    squared ratio of the normal quantile to Student's; as many samples as there are at most, and at least as if the
    samples of each group were equal. slope: of the value of a class by its share.
    """
    number = len(results.per_class.count)
    shares, counts, numbers = np.zeros((3, number))
    changes, weights = np.zeros((2, units.number))
    is_used = results.per_class.count > 0
    if of == "specificity":
        is_used &= ~np.isnan(results.per_class.specificity)
    for rows, labels, is_hit in _parts_of_classes(results, of):
        pairs, of_pair = np.unique(labels * units.number + units.of_rows[rows], return_inverse=True)
        classes, places = np.divmod(pairs, units.number)
        found = np.bincount(of_pair).astype(float)
        hits = np.bincount(of_pair, is_hit)
        total = np.bincount(classes, found, number)
        share = np.nan_to_num(divide(np.bincount(classes, hits, number), total))
        parts = found / total[classes]
        residuals = (hits - share[classes] * found) / total[classes]
        effective = total
        if units.are_groups:
            residuals /= np.maximum(1 - parts, 1e-9)
            effective = _effective(share, total, classes, parts, residuals)
        is_own = is_used[classes]
        changes += np.bincount(places, residuals * slope(share)[classes] * is_own, units.number)
        weights += np.bincount(places, parts * is_own, units.number)
        shares += share
        counts += total
        numbers += effective
    weights /= max(weights.sum(), 1e-300)
    shown = (one[is_used] for one in (shares, np.maximum(numbers, 1), counts))
    shares, numbers, counts = shown
    return ClassShares(np.flatnonzero(is_used), shares, numbers, counts, changes, weights)


def _effective(
    share: np.ndarray, total: np.ndarray, classes: np.ndarray, parts: np.ndarray, residuals: np.ndarray
) -> np.ndarray:
    number = len(share)
    kish = np.nan_to_num(divide(np.ones(number), np.bincount(classes, parts**2, number)))
    variance = np.bincount(classes, residuals**2, number)
    effective = np.where(variance > 0, share * (1 - share) / np.maximum(variance, 1e-300), kish)
    has_degrees = kish >= 3
    effective[has_degrees] *= (Z / t_quantile(kish[has_degrees] - 1)) ** 2
    return np.minimum(np.maximum(effective, kish), total)


def _parts_of_classes(results: SampleResults, of: str) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """The readable samples in the denominator of the figure of each class, the class, and whether it is a hit."""
    readable = results.readable
    targets = results.targets[readable]
    number = len(results.per_class.count)
    if not is_multi_hot(targets) and of != "specificity":
        rows = np.arange(len(targets))
        predicted = results.labels[readable, 0]
        is_hit = targets == predicted
        if of != "f1":
            yield rows, {"recall": targets, "precision": predicted}[of], is_hit
            return
        wrong = np.flatnonzero(~is_hit)
        labels = np.append(targets, predicted[wrong])
        yield np.append(rows, wrong), labels, np.append(is_hit, np.zeros(len(wrong), bool))
        return
    step = max(1, _CELLS // len(targets))
    for start in range(0, number, step):
        block = np.arange(start, min(start + step, number))
        if not is_multi_hot(targets):
            is_own = targets[:, None] == block
            is_predicted = results.labels[readable, :1] == block
            is_known = True
        else:
            is_own = targets[:, block] > 0
            is_known = targets[:, block] != UNKNOWN
            is_predicted = results.predicted[readable][:, block] & is_known
        of_figure = {
            "recall": is_own,
            "precision": is_predicted,
            "specificity": ~is_own & is_known,
            "f1": is_own | is_predicted,
        }
        rows, labels = np.nonzero(of_figure[of])
        yield rows, labels + start, (is_own == is_predicted)[rows, labels]


def _mean_over_classes(results: SampleResults, of: str, units: Units) -> Figure:
    """The limits are at least as far away as Wilson's of the classes make them (Zou and Donner, 2008, who add the
    squares of the distances), and the variance at least the one of shares that two more samples of the mean share draw
    to it: the samples of a class with one are always all right or all wrong.

    F1 is 2 J / (1 + J) of Jaccard's index J, the share of TP of TP + FP + FN.
    """
    value: Callable[[np.ndarray], np.ndarray] = np.asarray
    slope: Callable[[np.ndarray], np.ndarray] = np.ones_like
    if of == "f1":
        value = f1_of_jaccard
        slope = _slope_of_f1
    classes = shares_of_classes(results, of, units, slope)
    shares, numbers = classes.shares, classes.numbers
    values = value(shares)
    number = len(values)
    if not number:
        return Figure(math.nan, classes.changes, classes.weights, [])
    below, above = (math.sqrt(np.sum((value(limit) - values) ** 2)) / number for limit in wilson(shares, numbers))
    drawn = (shares * numbers + 2 * shares.mean()) / (numbers + 2)
    least = np.sum(slope(drawn) ** 2 * drawn * (1 - drawn) / numbers) / number**2
    return Figure(
        float(values.mean()), classes.changes / number, classes.weights, classes.counts, slope(shares) / number,
        least=float(least), below=below, above=above,
    )  # fmt: skip


def limits_of_classes(results: SampleResults, number: int) -> dict[str, np.ndarray]:
    """`recall_low`, `recall_high`, ...: the 95% limits of the figures of each of so many classes, percent; NaN if the
    figure is not defined or the groups are not known.

    Of recall, precision and F1 Wilson's, with groups at the effective number of samples; of the average precision
    Wilson's, and of the AUROC Newcombe's, of the samples or groups of the class.
    """
    found = dict[str, np.ndarray]()
    units = units_of(results)

    def add(name: str, labels: np.ndarray, limits: tuple[np.ndarray, np.ndarray]) -> None:
        for end, values in zip(("low", "high"), limits, strict=True):
            found[f"{name}_{end}"] = np.full(number, np.nan)
            if not results.lacks_groups:
                found[f"{name}_{end}"][labels] = 100 * values

    for name in ("precision", "recall", "f1"):
        classes = shares_of_classes(results, name, units)
        is_defined = classes.counts > 0
        low, high = wilson(classes.shares[is_defined], classes.numbers[is_defined])
        if name == "f1":
            low, high = f1_of_jaccard(low), f1_of_jaccard(high)
        add(name, classes.labels[is_defined], (low, high))
    if results.scores is not None:
        sides = np.zeros((2, number))
        for label, _, is_own, is_known in read_labels(results.targets, results.scores, results.readable):
            sides[:, label] = units.count(is_own), units.count(is_known & ~is_own)
        ap, auroc = results.ranking.average_precision / 100, results.ranking.auroc / 100
        labels = np.flatnonzero(sides[0])
        add("ap", labels, wilson(ap[labels], sides[0, labels]))
        labels = np.flatnonzero(sides.all(0))
        add("auroc", labels, newcombe(auroc[labels], *sides[:, labels]))
    return found


def _slope_of_f1(jaccard: np.ndarray) -> np.ndarray:
    return 2 / (1 + jaccard) ** 2


def f1_of_jaccard(jaccard: np.ndarray) -> np.ndarray:
    return 2 * jaccard / (1 + jaccard)


def _worst_class(results: SampleResults, of: str, units: Units) -> Figure:
    """Clopper and Pearson's limits: the lowest lower one, since the worst class is one of them, and the lowest upper
    one of limits that hold for all classes together (Bonferroni).
    """
    classes = shares_of_classes(results, of, units)
    shares = classes.shares
    hits = shares * classes.numbers
    low, _ = clopper_pearson(hits, classes.numbers, 0.025)
    _, high = clopper_pearson(hits, classes.numbers, 0.025 / len(shares))
    value = shares.min()
    worst = classes.labels[np.lexsort((classes.numbers, shares))[0]]
    is_own = (results.targets[results.readable] == worst).astype(float)
    of_worst = _share(results, lambda found: (found.hits(1)[found.readable] * is_own, is_own), units)
    return Figure(
        float(value), of_worst.changes, classes.weights, [classes.counts.min()],
        below=value - low.min(), above=high.min() - value,
    )  # fmt: skip


def _ranking(results: SampleResults, of: str, units: Units) -> Figure:
    """The mean over the classes of the AUROC or of the average precision.

    The variance of the AUROC is the one of DeLong et al. (1988), of groups of Obuchowski (1997). The limits are at
    least as far away as the ones of the classes by Newcombe (2006, method 5), of the average precision by Wilson of
    the samples of the class (Boyd, Eng and Page, 2013).
    """
    assert results.scores is not None
    is_auroc = of == "auroc"
    values = list[float]()
    counts = list[int]()
    of_sides = list[tuple[int, int]]()  # units
    changes, weights = np.zeros((2, units.number))
    is_binary = not is_multi_hot(results.targets) and results.scores.shape[1] == 2  # both classes have one AUROC
    for label, scores, is_own, is_known in read_labels(results.targets, results.scores, results.readable):
        is_other = is_known & ~is_own
        if not is_own.any() or (is_auroc and (not is_other.any() or (is_binary and not label))):
            continue
        value, residuals = (_auroc if is_auroc else _average_precision)(to_finite(scores), is_own, is_other)
        for side in (is_own, is_other):
            changes += units.changes(residuals * side, side / max(np.count_nonzero(side), 1))
            if side is is_own or is_auroc:
                weights += units.sums(side / np.count_nonzero(side))
        values.append(value)
        counts.append(int(np.count_nonzero(is_own)))
        of_sides.append((units.count(is_own), units.count(is_other)))
    if not values:
        return Figure(math.nan, changes, weights, [])
    number = len(values)
    shares = np.array(values)
    own, others = np.array(of_sides, float).T
    reason = ""
    limits = wilson(shares, own)
    slope = 1.0
    if is_auroc:
        slope = 0.5  # a sample in the middle of the others
        limits = newcombe(shares, own, others)
        if min(own.min(), others.min()) < MIN_RANKED:
            reason = f"fewer than {MIN_RANKED} {units.name} of a class, or of the others"
    below, above = (math.sqrt(np.sum((limit - shares) ** 2)) / number for limit in limits)
    return Figure(
        float(shares.mean()), changes / number, weights / weights.sum(), counts, slope / number,
        below=below, above=above, reason=reason,
    )  # fmt: skip


def _auroc(scores: np.ndarray, is_own: np.ndarray, is_other: np.ndarray) -> tuple[float, np.ndarray]:
    """The area, and what each sample adds to it (M,): DeLong's components."""
    own = np.sort(scores[is_own])
    others = np.sort(scores[is_other])
    residuals = np.zeros(len(scores))
    residuals[is_own] = _below(others, scores[is_own]) / len(others)
    residuals[is_other] = 1 - _below(own, scores[is_other]) / len(own)
    value = float(residuals[is_own].mean())
    residuals[is_own] = (residuals[is_own] - value) / len(own)
    residuals[is_other] = (residuals[is_other] - value) / len(others)
    return value, residuals


def _below(ordered: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """The number of ordered scores below each score; equal ones count half."""
    return (np.searchsorted(ordered, scores) + np.searchsorted(ordered, scores, "right")) / 2


def _average_precision(scores: np.ndarray, is_own: np.ndarray, is_other: np.ndarray) -> tuple[float, np.ndarray]:
    """The average precision, and what each sample adds to it (M,): its derivative by the weight of the sample.

    It is the mean over the samples of the class of hits / selected, the samples with a score at least as high.
    """
    own = np.sort(scores[is_own])
    every = np.sort(scores[is_own | is_other])
    hits = len(own) - np.searchsorted(own, own)
    selected = len(every) - np.searchsorted(every, own)
    value = float(np.mean(hits / selected))
    up_to = np.searchsorted(own, scores, "right")  # own samples at or below a score
    as_hit = np.append(0, np.cumsum(1 / selected))[up_to]
    as_selected = np.append(0, np.cumsum(hits / selected**2))[up_to]
    precision = np.append(0, hits / selected)[up_to]
    residuals = is_own * (precision - value + as_hit) - (is_own | is_other) * as_selected
    return value, residuals / len(own)


def _agreement(results: SampleResults, of: int, units: Units) -> Figure:
    """Weighted kappa, whose variance is the one of Fleiss, Cohen and Everitt (1969), by group.

    Few errors do not show how far from the true grade an error may be. n samples say at most as much as n / r of a
    share, with r the ratio of the squared costs of all errors and of two by chance to their costs times the cost by
    chance; and the lower limit is at least as far below kappa, relative to it, as where all n samples are right.
    """
    readable = results.readable
    true = results.targets[readable]
    predicted = results.labels[readable, 0]
    number = 1 + max(true.max(), predicted.max())
    grades = np.arange(number)
    costs = np.abs(grades[:, None] - grades).astype(float) ** of
    of_true = np.bincount(true, minlength=number) / len(true)
    of_predicted = np.bincount(predicted, minlength=number) / len(true)
    by_chance = of_true @ costs @ of_predicted
    if by_chance == 0:
        return Figure(math.nan, np.zeros(units.number), np.zeros(units.number), [])
    cost = costs[true, predicted].mean()
    means = (costs @ of_predicted)[:, None] + of_true @ costs - 2 * by_chance
    influence = (cost - costs) / by_chance + cost / by_chance**2 * means
    weights = units.sums(np.full(len(true), 1 / len(true)))
    changes = units.changes(influence[true, predicted] / len(true), np.full(len(true), 1 / len(true)))
    found = costs[true, predicted] / by_chance
    squared = of_true @ costs**2 @ of_predicted / by_chance**2
    ratio = (found @ found + 2 * squared) / (found.sum() + 2)
    errors = np.count_nonzero(found)
    value = 1 - cost / by_chance
    return Figure(
        value, changes, weights, [len(true)], math.sqrt(found @ found / errors if errors else squared),
        most=len(true) / ratio, unseen=units.number / squared, below=value * (1 - wilson(1.0, len(true) / squared)[0]),
    )  # fmt: skip


KINDS: dict[str, Callable[[SampleResults, Any, Units], Figure]] = {
    "share": _share,
    "mean": _mean_over_classes,
    "worst": _worst_class,
    "ranking": _ranking,
    "agreement": _agreement,
}
