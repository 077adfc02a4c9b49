"""The 95% limits of the difference of two models on the same samples.

Legend: U units: the images or, with groups, the groups.
"""

import math
from collections.abc import Callable

import numpy as np

from engine.evaluation.influence import KINDS, Units, freedom_of, units_of
from engine.evaluation.limits import Z, t_quantile
from engine.evaluation.results import SampleResults
from utils.errors import UserError
from utils.metric_table import Metric

_DRAWS = 1000  # of the bootstrap
LimitsAt = Callable[[float], tuple[float, float]]


def paired_limits(new: SampleResults, old: SampleResults, metric: Metric) -> LimitsAt:
    """The 95% limits by which a metric of `new` is better than of `old`, two models on the same readable samples: a
    function of the factor by which there are more images of each class, 1 for these.

    Student's limits of the differences of the two changes of each unit (`Figure.changes`): of single images the paired
    t interval of top-1 and the loss, DeLong's of the AUROC; of groups the jackknife by group, see `freedom_of`. Of
    fewer than 2 units they are infinite. Models that are equal on few images may differ on others: the variance is at
    least the one of two more images, each of which one model alone has right (Bonett and Price, 2012), 2 / (n + 2)²
    with Kish's number of images. They are groups only if no group differs. A loss has no such images. Without changes
    (a calibration error), the limits are of a bootstrap.

    Raises UserError: the groups of the images are not known.
    """
    if new.lacks_groups or old.lacks_groups:
        raise UserError("no interval: the groups of the images are not known; give DATA.GROUPS for all of them")
    units = units_of(old)
    difference = metric.gain(new, old)
    if metric.kind is None:
        return _bootstrap(metric.gain, new, old, units, difference)
    figures = [KINDS[metric.kind](results, metric.of, units) for results in (new, old)]
    changes = figures[0].changes - figures[1].changes
    variance = float(changes @ changes)
    kish = min(figure.kish for figure in figures)
    freedom = freedom_of(changes, kish, units)
    alike = kish * len(units.of_rows) / units.number if variance > 0 else kish
    largest = 200.0 if metric.kind == "agreement" else 100.0  # kappas are from -100 on

    def limits_at(factor: float) -> tuple[float, float]:
        distance = math.inf
        if factor * kish >= 2:
            least = 2 * metric.is_percent / (factor * alike + 2) ** 2
            quantile = float(t_quantile(max(factor * (freedom + 1) - 1, 1)))
            distance = quantile * math.sqrt(max(variance / factor, least))
        if not metric.is_percent:
            return difference - distance, difference + distance
        return max(difference - 100 * distance, -largest), min(difference + 100 * distance, largest)

    return limits_at


def _bootstrap(
    gain: Callable[[SampleResults, SampleResults], float],
    new: SampleResults,
    old: SampleResults,
    units: Units,
    difference: float,
) -> LimitsAt:
    """An expanded percentile bootstrap of pairs: the units are drawn for both models together (Efron and Tibshirani,
    1993), and the distances are times t / 1.96 * sqrt(U / (U - 1)) (Hesterberg, 2015). Of more images its limits are
    nearer by the square root.
    """
    number = units.number
    generator = np.random.default_rng(0)
    values = []
    for _ in range(_DRAWS):
        drawn = np.bincount(generator.integers(number, size=number), minlength=number)
        rows = np.repeat(old.readable, drawn[units.of_rows])
        values.append(gain(new.take(rows), old.take(rows)))
    low, high = np.nanquantile(values, (0.025, 0.975)).tolist()

    def limits_at(factor: float) -> tuple[float, float]:
        at_factor = number * factor
        if at_factor < 2:
            return -math.inf, math.inf
        expanded = float(t_quantile(at_factor - 1)) / Z * math.sqrt(at_factor / (at_factor - 1) / factor)
        return difference - expanded * (difference - low), difference + expanded * (high - difference)

    return limits_at
