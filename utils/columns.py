"""Lines for a terminal: wrapped between parts; durations and numbers of a few characters."""

from collections.abc import Iterable

MAX_COLUMNS = 120


def wrap_parts(parts: Iterable[str], indent: str = "  ", first_indent: str = "") -> list[str]:
    """Joins the parts with ', ' to lines of at most 120 columns. A part is never split; a longer one has its own line.

    indent: of every line but the first.
    """
    lines: list[str] = []
    for part in parts:
        if lines and len(lines[-1]) + len(f", {part}") <= MAX_COLUMNS:
            lines[-1] += f", {part}"
        else:
            lines.append(f"{indent if lines else first_indent}{part}")
    return lines


def format_duration(seconds: float) -> str:
    """The two largest units: '4.2s', '42s', '7m23s', '10h03m', '12d03h'."""
    if seconds < 9.95:
        return f"{seconds:.1f}s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    minutes, whole = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes}m{whole:02d}s"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours}h{minutes:02d}m"
    return f"{hours // 24}d{hours % 24:02d}h"


def three_digits(value: float) -> str:
    """Three significant digits; large values as whole numbers, without an exponent."""
    return f"{value:.3g}" if value < 999.5 else f"{value:.0f}"
