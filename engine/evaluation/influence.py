"""How a metric depends on each image or group: one function a kind of figure, the ground of its intervals.

Each figure is a mean of shares: of the sum of a part of each sample over the sum of its sizes, such as hits over
images. Where a sample changes the parts of others, too, its part is a pseudo-value: its own part and these changes.

Legend: M readable samples, C classes, U units: the images or, with groups, the groups.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from configs.yaml_io import Values
from datasets.sources.samples import UNKNOWN, is_multi_hot
from engine.evaluation.limits import Z, clopper_pearson, newcombe, t_quantile, wilson
from engine.evaluation.ranking import divide, read_labels, to_finite
from engine.evaluation.results import SampleResults

MIN_RANKED = 10  # images or groups of a class, and of the others, that the interval of an AUROC needs
_TINY = 1e-300
ROUNDING = 1e-24  # of a variance that is 0
Entries = tuple[np.ndarray, np.ndarray, Any, np.ndarray]  # rows of readable samples, their classes, parts and sizes


@dataclass(frozen=True)
class Units:
    """What is drawn. of_rows: the image or group of each readable sample, int64 (M,). name: 'images' or 'groups'."""

    of_rows: np.ndarray
    number: int
    are_groups: bool
    name: str


def units_of(results: SampleResults) -> Units:
    readable = results.readable
    if results.groups is None:
        return Units(np.arange(len(readable)), len(readable), False, results.unit)
    names, of_rows = np.unique(results.groups[readable], return_inverse=True)
    return Units(of_rows, len(names), True, results.unit.replace("images", "groups", 1))


def student_factor(freedom: Any) -> Any:
    """Of a variance: the squared ratio of Student's quantile to the normal one (Korn and Graubard, 1998)."""
    return (t_quantile(np.maximum(freedom, 1)) / Z) ** 2


class Shares(NamedTuple):
    """Shares of the used classes.

    shares; numbers: of single samples that say as much, for Wilson's interval; units: with a sample. All float64 (C,).
    changes: of the sum of shares * slope without each unit. weights: of each unit in the sums. Both float64 (U,).
    """

    shares: np.ndarray
    numbers: np.ndarray
    units: np.ndarray
    changes: np.ndarray
    weights: np.ndarray


class Figure(NamedTuple):
    """A metric as the mean of shares.

    values: the shares, float64 (C,). limits: the lower and the upper ones of each, which the interval of the mean has
    inside: it is at least as wide as they make it (Zou and Donner, 2008, who add the squares of the distances).
    changes: of the mean without each unit, float64 (U,).
    kish: the number of units of equal weight that say as much (Kish, 1965). reason: why there is no interval.
    is_binomial: single images change it as hits and misses do, whose few large changes Wilson's interval expects.
    step: of the value by the share of samples that are right in place of wrong.
    least: the lowest possible value, below 0 of a kappa; the highest one is 1.
    """

    values: np.ndarray
    limits: tuple[np.ndarray, np.ndarray]
    changes: np.ndarray
    kish: float
    reason: str = ""
    is_binomial: bool = True
    step: float = 1.0
    least: float = 0


def freedom_of(changes: np.ndarray, kish: float) -> float:
    """Degrees of freedom of the sum of the squared changes: as of units of equal weight, and at most those by which the
    sum itself varies (Pan and Wall, 2002), as few groups, or images of a rare class, may make most of it."""
    squares = changes**2
    spread = float(squares @ squares) / max(float(squares.sum()) ** 2, _TINY) - 1 / len(squares)
    return min(kish - 1, 2 / spread) if spread > 0 else kish - 1


def read_shares(entries: Iterable[Entries], units: Units, is_used: np.ndarray, slope: Any = np.ones_like) -> Shares:
    """Of the used ones of all classes, bool (C,), each of which is in one of the entries.

    The changes are to first order of single images, of groups exact (the jackknife by group, CR3: Bell and McCaffrey,
    2002). With groups the number of samples is the effective one of Korn and Graubard (1998): share * (1 - share) /
    variance, no more than of single images; where all are right, or none, Kish's number of groups. slope: of the value
    of a class by its share.
    """
    number = len(is_used)
    shares, numbers, sides = np.zeros((3, number))
    changes, weights = np.zeros((2, units.number))
    for rows, labels, parts, sizes in entries:
        pairs, of_pair = np.unique(labels * units.number + units.of_rows[rows], return_inverse=True)
        classes, places = np.divmod(pairs, units.number)
        count = np.bincount(labels, sizes, number)
        share = np.nan_to_num(divide(np.bincount(labels, parts, number), count))
        residuals = (parts - share[labels] * sizes) / count[labels]
        weight: np.ndarray = np.bincount(of_pair, sizes) / count[classes]
        kish = np.nan_to_num(divide(np.ones(number), np.bincount(classes, weight**2, number)))
        change: np.ndarray = np.bincount(of_pair, residuals)
        factor = 1.0
        if units.are_groups:
            change = change / np.maximum(1 - weight, 1e-9)
            factor = student_factor(kish - 1)
        variance = np.bincount(classes, change**2, number) * factor
        variance = np.maximum(variance, np.bincount(labels, residuals**2, number))
        numbers += np.divide(share * (1 - share), variance, out=kish, where=variance > ROUNDING)
        shares += share
        sides += np.bincount(classes, weight > 0, number)
        gradient = slope(share) * is_used
        changes += np.bincount(places, change * gradient[classes], units.number)
        weights += np.bincount(places, weight * (gradient > 0)[classes], units.number)
    return Shares(shares[is_used], np.maximum(numbers, 1)[is_used], sides[is_used], changes, weights)


def _mean_of(found: Shares, values: np.ndarray, limits: Any, reason: str = "") -> Figure:
    kish = found.weights.sum() ** 2 / max(float(found.weights @ found.weights), _TINY)
    return Figure(values, limits, found.changes / max(len(values), 1), kish, reason)


def _share(results: SampleResults, of: Callable[[SampleResults], Any], units: Units) -> Figure:
    """Few errors do not show how many of its labels an image may lose: the lower limit is at least as far below the
    share, relative to it, as where all images are right."""
    parts, sizes = of(results)
    rows = np.flatnonzero(sizes)
    found = read_shares([(rows, 0 * rows, parts[rows], sizes[rows])], units, np.ones(1, bool))
    shares = np.minimum(found.shares, 1)  # a loss has no limits
    low, high = wilson(shares, found.numbers)
    figure = _mean_of(found, found.shares, (low, high), f"fewer than 2 {units.name}" * bool(found.units[0] < 2))
    if not units.are_groups:
        low = np.minimum(low, shares * wilson(1.0, figure.kish)[0])
    return figure._replace(limits=(low, high))


def _entries_of_classes(results: SampleResults, of: str) -> Iterator[Entries]:
    """The samples in the denominator of the recall, precision, specificity, or for `f1` Jaccard's index of each class,
    and whether they are hits."""
    readable = results.readable
    targets = results.targets[readable]
    number = len(results.per_class.count)
    several = is_multi_hot(targets)
    predicted = results.predicted[readable] if several else results.labels[readable, 0]
    if of == "specificity":
        for label in range(number):
            others = np.flatnonzero(targets[:, label] == 0 if several else targets != label)
            is_called = predicted[others, label] if several else predicted[others] == label
            yield others, np.full(len(others), label), ~is_called, np.ones(len(others))
        return
    if several:
        is_own = targets > 0
        is_called = predicted & (targets != UNKNOWN)
        sides = (is_own, is_called, is_own | is_called, is_own & is_called)
        own, called, either, hits = map(np.flatnonzero, sides)
    else:
        own = number * np.arange(len(targets)) + targets
        called = own - targets + predicted
        either = np.append(own, called[own != called])  # a wrong image counts in two classes
        hits = own[own == called]
    cells = {"recall": own, "precision": called, "f1": either}[of]
    rows, labels = np.divmod(cells, number)
    yield rows, labels, np.isin(cells, hits, assume_unique=True), np.ones(len(cells))


def _mean_over_classes(results: SampleResults, of: str, units: Units) -> Figure:
    """Of the classes with samples. Wilson's limits of each class. F1 is 2 J / (1 + J) of Jaccard's index J, the share
    of TP of TP + FP + FN."""
    weight = 1 if of == "f1" else 0
    is_used = results.per_class.count > 0
    if of == "specificity":
        is_used &= ~np.isnan(results.per_class.specificity)

    def value(shares: np.ndarray) -> np.ndarray:
        return (1 + weight) * shares / (1 + weight * shares)

    def slope(shares: np.ndarray) -> np.ndarray:
        return (1 + weight) / (1 + weight * shares) ** 2

    found = read_shares(_entries_of_classes(results, of), units, is_used, slope)
    low, high = wilson(found.shares, found.numbers)
    return _mean_of(found, value(found.shares), (value(low), value(high)))


def _worst_class(results: SampleResults, of: str, units: Units) -> Figure:
    """Clopper and Pearson's limits: the lowest lower one, since the worst class is one of them, and the lowest upper
    one of limits that hold for all classes together (Bonferroni).
    """
    count = results.per_class.count
    is_worst = np.arange(len(count)) == np.lexsort((count, getattr(results.per_class, of)))[0]
    found = read_shares(_entries_of_classes(results, of), units, count > 0, lambda _: is_worst)
    hits = (found.shares * found.numbers).round(6)  # whole numbers of images
    low, _ = clopper_pearson(hits, found.numbers, 0.025)
    _, high = clopper_pearson(hits, found.numbers, 0.025 / len(hits))
    return _mean_of(found, found.shares.min(keepdims=True), (low.min(), high.min()))


def _ranking(results: SampleResults, of: str, units: Units) -> Figure:
    """The mean over the classes of the AUROC or of the average precision.

    The variance of the AUROC is the one of DeLong et al. (1988), of groups of Obuchowski (1997): the AUROC is a share
    of the samples of a class, and of the others. The limits of the classes are Newcombe's (2006, method 5), of the
    average precision Wilson's of the samples of the class (Boyd, Eng and Page, 2013).
    """
    is_used = ~np.isnan(getattr(results.ranking, of))
    if of == "average_precision":
        found = read_shares(_precisions(results), units, is_used)
        figure = _mean_of(found, found.shares, wilson(found.shares, found.units))
        return figure._replace(is_binomial=False)
    if len(is_used) == 2 and not is_multi_hot(results.targets):
        is_used[0] = False  # both have one AUROC
    found = read_shares(_placements(results), units, np.repeat(is_used, 2))
    values = found.shares[::2]
    sides = found.units.reshape(-1, 2).T
    reason = f"fewer than {MIN_RANKED} {units.name} of a class, or of the others" * bool(sides.min() < MIN_RANKED)
    return _mean_of(found, values, newcombe(values, *sides), reason)


def _placements(results: SampleResults) -> Iterator[Entries]:
    """The share of the others below each sample of a class, and of the class above each other sample; equal scores
    count half."""
    assert results.scores is not None
    for label, scores, is_own, is_known in read_labels(results.targets, results.scores, results.readable):
        sides = (np.flatnonzero(is_own), np.flatnonzero(is_known & ~is_own))
        if not all(map(len, sides)):
            continue
        own, others = (to_finite(scores[side]) for side in sides)
        for place, parts in enumerate((_below(others, own), 1 - _below(own, others))):
            yield sides[place], np.full(len(parts), 2 * label + place), parts, np.ones(len(parts))


def _below(others: np.ndarray, scores: np.ndarray) -> np.ndarray:
    ordered = np.sort(others)
    return (np.searchsorted(ordered, scores) + np.searchsorted(ordered, scores, "right")) / 2 / len(ordered)


def _precisions(results: SampleResults) -> Iterator[Entries]:
    """Of each sample of a class the share of hits among the selected samples, which have a score at least as high; the
    others add their derivatives by the weight of the sample."""
    assert results.scores is not None
    for label, unsorted, is_own, is_known in read_labels(results.targets, results.scores, results.readable):
        if not is_own.any():
            continue
        scores = to_finite(unsorted)
        own = np.sort(scores[is_own])
        every = np.sort(scores[is_known])
        hits = len(own) - np.searchsorted(own, own)
        selected = len(every) - np.searchsorted(every, own)
        up_to = np.searchsorted(own, scores, "right")  # own samples at or below a score
        as_hit = np.append(0, hits / selected + np.cumsum(1 / selected))[up_to]
        as_selected = np.append(0, np.cumsum(hits / selected**2))[up_to]
        rows = np.flatnonzero(is_known)
        parts = is_own * as_hit - as_selected
        yield rows, np.full(len(rows), label), parts[rows], is_own[rows]


def _agreement(results: SampleResults, of: int, units: Units) -> Figure:
    """Weighted kappa, whose variance is the one of Fleiss, Cohen and Everitt (1969), by group.

    The share is the place of kappa on the scale from its least value with these numbers of true and predicted grades
    to 1: of two equal grades (1 + kappa) / 2. Few errors do not show how far from the true grade an error may be. n
    samples say at most as much as n * scale / r, with r the ratio of the squared costs to the costs, both relative to
    the cost by chance, of all samples and of two by chance, whose errors have one cost. The lower limit is at least as
    far below kappa, relative to it, as where all n samples are right.
    """
    readable = results.readable
    true = results.targets[readable]
    predicted = results.labels[readable, 0]
    rows = np.arange(len(true))
    number = 1 + max(true.max(), predicted.max())
    grades = np.arange(number)
    costs = np.abs(grades[:, None] - grades).astype(float) ** of
    of_true = np.bincount(true, minlength=number) / len(rows)
    of_predicted = np.bincount(predicted, minlength=number) / len(rows)
    relative = costs / (of_true @ costs @ of_predicted)
    found = relative[true, predicted]
    means = (relative @ of_predicted)[:, None] + of_true @ relative - 2
    parts = 1 - found + found.mean() * means[true, predicted]
    least = min(1 - relative[np.sort(true), np.sort(predicted)[::-1]].mean(), 0.0)  # the highest costs
    scale = 1 - least
    entries = (rows, 0 * rows, (parts - least) / scale, np.ones(len(rows)))
    shares = read_shares([entries], units, np.ones(1, bool))
    of_chance = 1 / (1 - float(of_true @ of_predicted))
    ratio = (found @ found + 2 * of_chance) / (found.sum() + 2)
    most = scale * len(rows) / ratio
    numbers = np.minimum(shares.numbers, most) if found.any() else scale * shares.numbers / ratio
    low, high = (least + scale * limit for limit in wilson(np.clip(shares.shares, 0, 1), numbers))
    kappa = least + scale * shares.shares
    all_right = least + scale * wilson(1.0, scale * len(rows) / of_chance)[0]
    figure = _mean_of(shares, kappa, (np.minimum(low, kappa * all_right), high))
    step = math.sqrt(found @ found / np.count_nonzero(found)) if found.any() else of_chance
    is_binomial = number == 2  # else errors have several costs
    return figure._replace(changes=scale * shares.changes, is_binomial=is_binomial, step=step, least=least)


KINDS: dict[str, Callable[[SampleResults, Any, Units], Figure]] = {
    "share": _share,
    "mean": _mean_over_classes,
    "worst": _worst_class,
    "ranking": _ranking,
    "agreement": _agreement,
}


def limits_of_classes(results: SampleResults, columns: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """`recall_low`, `recall_high`, ...: the 95% limits of columns of figures of each class, percent; NaN if the figure
    is not defined or the groups are not known.

    Of recall, precision and F1 Wilson's, with groups at the effective number of samples; of the average precision
    Wilson's, and of the AUROC Newcombe's, of the samples or groups of the class.
    """
    units = units_of(results)
    limits = Values()
    for name in ("precision", "recall", "f1"):
        limits[name] = np.full((2, len(columns[name])), np.nan)
        limits[name][:, np.flatnonzero(results.per_class.count)] = _mean_over_classes(results, name, units).limits
    if results.scores is not None:
        sides = np.zeros((2, results.scores.shape[1]))
        for label, _, is_own, is_known in read_labels(results.targets, results.scores, results.readable):
            for place, side in enumerate((is_own, is_known & ~is_own)):
                sides[place, label] = np.count_nonzero(np.bincount(units.of_rows[side]))
        sides = np.maximum(sides, 1)
        if "ap" in columns:
            limits["ap"] = wilson(columns["ap"] / 100, sides[0])
        limits["auroc"] = newcombe(columns["auroc"] / 100, *sides)
    found = dict[str, np.ndarray]()
    for name, ends in limits.items():
        is_open = np.isnan(columns[name]) | results.lacks_groups
        for end, values in zip(("low", "high"), ends, strict=True):
            found[f"{name}_{end}"] = np.where(is_open, np.nan, 100 * values)
    return found
