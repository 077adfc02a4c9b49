"""Numbers, names and axes of charts as the page shows them. A value that is missing is ''."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from configs.yaml_io import format_value
from engine.report.contents import LARGEST
from utils.tables import format_duration

MAX_NAME_CHARS = 60


def number(value: float | None) -> str:
    """Four significant digits, thousands separated: '0.09312', '12.5', '12,500'; exponents below 0.0001."""
    if value is None or not math.isfinite(value):
        return ""
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}" if abs(value) >= 0.0001 else f"{value:.3e}".replace("e-0", "e-")


def percent(value: float | None) -> str:
    """'99.17%' of 99.17."""
    return "" if value is None else f"{value:.2f}%"


def duration(seconds: float | None) -> str:
    return "" if seconds is None else format_duration(seconds)


def gigabytes(value: float | None) -> str:
    return "" if value is None else f"{value / 1e9:.2f} GB"


def option(value: Any) -> str:
    """The value of an option, numbers with six significant digits."""
    if isinstance(value, list):
        return f"[{', '.join(map(option, value))}]"
    return f"{value:.6g}" if isinstance(value, float) else format_value(value)


Point = tuple[float, float]

MAX_POINTS = 400  # of a curve: the page is a pixel or two per point wide
_LOG_RANGE = 100.0  # curves of positive values that vary more than this are drawn on a logarithmic axis


@dataclass(frozen=True)
class Axis:
    """Maps the values low to high to a position from 0 to 1. Logarithmic axes have positive limits."""

    low: float
    high: float
    ticks: tuple[float, ...]
    is_log: bool = False

    def position(self, value: float) -> float:
        scale: Callable[[float], float] = math.log if self.is_log else float
        return (scale(value) - scale(self.low)) / (scale(self.high) - scale(self.low))


def axis_of(values: Sequence[float], max_ticks: int, integers: bool = False, log_base: int | None = None) -> Axis:
    """An axis whose limits are round numbers around the values.

    Args:
        integers: all ticks are whole numbers, and the limits are the lowest and the highest value.
        log_base: logarithmic, if all values are positive and vary by more than a factor of 100; base 2 or 10.
    """
    low, high = min(values), max(values)
    if log_base and low > 1 / LARGEST and high / low > _LOG_RANGE:
        return _log_axis(low, high, max_ticks, log_base)
    if high - low < 1e-12 * max(abs(low), abs(high), 1e-300):
        margin = abs(low) / 2 or 1.0
        low, high = (low, high + max(1, 1e-9 * high)) if integers else (low - margin, high + margin)
    step = _round_step((high - low) / max_ticks)
    if integers:
        step = max(step, 1)
        return Axis(low, high, _multiples(math.ceil(low / step), math.floor(high / step), step))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return Axis(first * step, last * step, _multiples(first, last, step))


def _multiples(first: int, last: int, step: float) -> tuple[float, ...]:
    """The multiples, rounded so that 3 * 0.1 is 0.3."""
    digits = max(0, 3 - math.floor(math.log10(step)))
    return tuple(round(index * step, digits) for index in range(first, last + 1))


def _round_step(at_least: float) -> float:
    """The next of 1, 2, 5, 10, 20, 50 and so on."""
    power = 10.0 ** math.floor(math.log10(at_least))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= at_least * (1 - 1e-9))


def _log_axis(low: float, high: float, max_ticks: int, base: int) -> Axis:
    first, last = math.floor(math.log(low, base) + 1e-9), math.ceil(math.log(high, base) - 1e-9)
    step = max(1, math.ceil((last - first) / max_ticks))
    ticks = tuple(float(base) ** exponent for exponent in range(first, last + 1, step))
    return Axis(float(base) ** first, float(base) ** last, ticks, is_log=True)


def tick_label(value: float) -> str:
    """The number in at most six characters: '0.05', '1,200', '20k', '3.5M', '1e-5'."""
    if abs(value) >= 1e12:
        return f"{value:.0e}".replace("e+", "e")
    for limit, divisor, unit in ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if abs(value) >= limit:
            return f"{value / divisor:.3g}{unit}"
    if 0 < abs(value) < 0.0001:
        mantissa, exponent = f"{value:.2e}".split("e")
        return f"{float(mantissa):g}e{int(exponent)}"
    return number(value)


def downsample(points: Sequence[Point]) -> list[Point]:
    """Keeps at most `MAX_POINTS` points, in order: the first, the last, and the extremes of each part between."""
    if len(points) <= MAX_POINTS:
        return list(points)
    inner = points[1:-1]
    parts = (MAX_POINTS - 2) // 2
    kept = [points[0]]
    for part in range(parts):
        chunk = inner[len(inner) * part // parts : len(inner) * (part + 1) // parts]
        kept += sorted({min(chunk, key=itemgetter(1)), max(chunk, key=itemgetter(1))})
    return [*kept, points[-1]]
