"""The 95% limits of the difference of two models, or of two settings over seeds, on the same samples.

Legend: U units: the images or, with groups, the groups.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from configs.schema.operating_point import OperatingPoint
from engine.evaluation.influence import KINDS, ROUNDING, Units, freedom_of, units_of
from engine.evaluation.limits import Z, difference_of, t_quantile
from engine.evaluation.ranking import figure_at
from engine.evaluation.results import SampleResults
from utils.errors import UserError
from utils.metric_table import Metric

_DRAWS = 1000  # of the bootstrap
LimitsAt = Callable[..., tuple[float, float]]


def _no_limits(*_: float) -> tuple[float, float]:
    """Of fewer than 2 units, which show no variance."""
    return -math.inf, math.inf


def paired_limits(new: Sequence[SampleResults], old: Sequence[SampleResults], metric: Metric) -> LimitsAt:
    """The 95% limits by which a metric of `new` is better than of `old`, of two models, or of two settings with a model
    of each seed, on the same readable samples: a function of the factors by which there are more images of each class,
    and more seeds, 1 for these.

    For two models, these are Student's limits of the difference between the changes of each unit (`Figure.changes`):
    for single images the paired t interval of top-1 and the loss, and DeLong's of the AUROC; for groups the jackknife
    by group, see `freedom_of`. For settings, the seeds are the readers and the images the cases of Dorfman, Berbaum and
    Metz (1992), with the jackknife's pseudo-values of each image or group; more images do not narrow the part of the
    seeds.

    With fewer than 2 units, the limits are infinite at each factor. Models that are equal on few images may differ on
    others: the variance is at least the variance of two more images, each of which one model alone has right (Bonett
    and Price, 2012), 2 / (n + 2)², where n is Kish's number: of images, or of groups if no group differs. A loss has no
    such images. For a metric without changes (a calibration error), the limits are of a bootstrap.

    Raises UserError: the groups of the images are not known; over seeds a metric without changes.
    """
    _check_groups(*new, *old)
    units = units_of(old[0])
    pairs = [*zip(new, old, strict=True)]
    if metric.kind is None:
        if len(pairs) > 1:
            raise UserError(f"no interval of the {metric.title} over seeds; compare single runs")
        rows = old[0].readable
        return _bootstrap(lambda drawn: metric.gain(*(one.take(rows[drawn]) for one in pairs[0])), units)
    figures = [[KINDS[metric.kind](results, metric.of, units) for results in pair] for pair in pairs]
    kish = min(figure.kish for pair in figures for figure in pair)
    if round(kish, 6) < 2:
        return _no_limits
    scale = 100.0 if metric.is_percent else 1.0
    steps = 2 * float(np.mean([figure.step**2 for pair in figures for figure in pair]))
    gains = np.array([metric.gain(*pair) for pair in pairs])
    changes = scale * np.stack([after.changes - before.changes for after, before in figures])
    freedom = freedom_of(changes[0], kish) if units.are_groups else kish - 1
    of_images = float(np.sum(changes.mean(0) ** 2))
    of_seeds = 0.0
    images = kish * len(units.of_rows) / units.number if of_images > ROUNDING else kish
    if len(pairs) > 1:
        found = difference_of(gains[:, None] + units.number * changes)
        of_seeds = found.of_seeds
        of_images = found.error**2 - of_seeds

    def limits_at(factor: float, of_more_seeds: float = 1) -> tuple[float, float]:
        least = steps * (100 * metric.is_percent / (factor * images + 2)) ** 2
        degrees = of_more_seeds * len(pairs) - 1 or max(factor * (freedom + 1) - 1, 1)
        variance = of_seeds / of_more_seeds + of_images / factor
        distance = float(t_quantile(degrees)) * math.sqrt(max(variance, least))
        return _around(float(gains.mean()), distance, metric)

    return limits_at


def _around(difference: float, distance: float, metric: Metric) -> tuple[float, float]:
    """A figure in percent has a difference of at most 100, kappas, which are from -100 on, of 200."""
    if not metric.is_percent:
        return difference - distance, difference + distance
    largest = 200.0 if metric.kind == "agreement" else 100.0
    return max(difference - distance, -largest), min(difference + distance, largest)


def limits_at_goal(new: SampleResults, old: SampleResults, point: OperatingPoint) -> tuple[list[float], LimitsAt]:
    """The `figure_at` a goal of `old` and of `new`, and the limits of their difference: of a bootstrap that draws the
    samples with and without the class apart, and chooses both thresholds again in each draw (as R's pROC).

    Raises UserError: as `paired_limits`.
    """
    _check_groups(new, old)
    rows = old.rows_of_class(point.label)
    pair = [results.take(rows).of_class(point.label) for results in (old, new)]
    is_own = pair[0][1]

    def figures(drawn: Any) -> list[float]:
        return [figure_at(point, scores[drawn], is_own[drawn]) for scores, _ in pair]

    def gain(drawn: np.ndarray) -> float:
        before, after = figures(drawn)
        return after - before

    units = units_of(old.take(rows))
    strata = np.zeros(units.number, bool) if units.are_groups else is_own
    images = float(np.sum(is_own if point.specificity else ~is_own))
    return figures(slice(None)), _bootstrap(gain, units, strata, images)


def _check_groups(*models: SampleResults) -> None:
    if any(results.lacks_groups for results in models):
        raise UserError("no interval: the groups of the images are not known; give DATA.GROUPS for all of them")


def _bootstrap(
    gain: Callable[[np.ndarray], float], units: Units, strata: np.ndarray | None = None, images: float = math.inf
) -> LimitsAt:
    """An expanded percentile bootstrap of pairs: the units are drawn for both models together, of each stratum its
    number (Efron and Tibshirani, 1993), and the distances are times t / 1.96 * sqrt(U / (U - 1)) (Hesterberg, 2015) of
    the smallest stratum. Of more images its limits are nearer by the square root.

    gain: of the samples drawn, int64 (M,). images: the ones of the figure, for the least distance of `paired_limits`.
    """
    sides = [np.arange(units.number)]
    if strata is not None:
        sides = [side for side in (np.flatnonzero(strata), np.flatnonzero(~strata)) if len(side)]
    number = min(map(len, sides))
    if number < 2:
        return _no_limits
    generator = np.random.default_rng(0)
    rows = np.arange(len(units.of_rows))
    difference = gain(rows)
    values = []
    for _ in range(_DRAWS):
        chosen = np.concatenate([generator.choice(side, len(side)) for side in sides])
        drawn = np.bincount(chosen, minlength=units.number)
        values.append(gain(np.repeat(rows, drawn[units.of_rows])))
    ends = np.nanquantile(values, (0.025, 0.975)) - difference

    def limits_at(factor: float) -> tuple[float, float]:
        at_factor = number * factor
        quantile = float(t_quantile(at_factor - 1))
        expanded = quantile / Z * math.sqrt(at_factor / (at_factor - 1) / factor)
        least = 100 * quantile * math.sqrt(2) / (factor * images + 2)
        low, high = expanded * ends
        return max(difference + min(low, -least), -100), min(difference + max(high, least), 100)

    return limits_at
