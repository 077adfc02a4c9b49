"""Numbers and names as the page shows them. A value that is missing is ''."""

import math
from typing import Any

from configs.reading.yaml_io import format_value
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
