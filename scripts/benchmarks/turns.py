"""Measurements in turns, their ratios and their tables: the part that all benchmarks share.

The contenders (programs, precisions, loaders) take turns, so that slow changes of a machine's speed affect all of them.
A ratio compares two turns of the same round.
"""

import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from scripts.benchmarks.common import write_json
from utils.errors import UserError
from utils.tables import markdown_table

Figures = dict[str, dict[str, Any]]  # contender -> figure -> its value in each round; or the reason under "failed"
Measure = Callable[[str, int], dict[str, float]]
SPEED = "images_per_second"
PER_CPU = "images_per_cpu_second"  # other programs of a busy machine hardly change it


def take_turns(
    names: Sequence[str], rounds: int, measure: Measure, file: Path | None = None, figures: Figures | None = None
) -> Figures:
    """Measures each contender once per round, in reverse order in every second round.

    A contender that failed gets no more turns. The figures are written to `file` after every turn.

    Args:
        measure: called with the contender and the number of the round; raises UserError if the measurement failed.
        figures: receives the figures, for a caller that needs them during the measurements, or after a signal.

    Raises:
        UserError: all contenders failed.
    """
    figures = {} if figures is None else figures
    figures |= {name: {} for name in names}
    for number in range(rounds):
        for name in reversed(names) if number % 2 else names:
            if "failed" in figures[name]:
                continue
            try:
                measured = measure(name, number)
            except UserError as error:
                measured = {}
                figures[name]["failed"] = outcome = str(error)
            else:
                outcome = ", ".join(f"{key} {value:.4g}" for key, value in measured.items())
            for key, value in measured.items():
                figures[name].setdefault(key, []).append(value)
            print(f"round {number + 1} of {rounds}, {name}: {outcome}", file=sys.stderr, flush=True)
            write_json(file, {"figures": figures})
    if all("failed" in one for one in figures.values()):
        raise UserError(f"all measurements failed; {names[0]}: {figures[names[0]]['failed']}")
    return figures


def speed_ratios(figures: Figures, pairs: Iterable[tuple[str, str]], figure: str = SPEED) -> dict[str, list[float]]:
    """'one / other' -> the ratio of a figure in each round that both completed, for the pairs that were measured."""
    speeds = {name: one[figure] for name, one in figures.items() if figure in one}
    return {
        f"{one} / {other}": [mine / its for mine, its in zip(speeds[one], speeds[other], strict=False)]
        for one, other in pairs
        if one in speeds and other in speeds
    }


def figures_table(
    figures: Figures, columns: dict[str, Callable[[dict[str, Any]], str]], published: Sequence[str] = ()
) -> str:
    """A row per contender, with the reason if it failed.

    Args:
        columns: header -> the cell for the figures of a contender.
        published: the cells of a row below each contender's, separated by '|'.
    """
    rows = []
    for (name, one), line in zip_longest(figures.items(), published, fillvalue=""):
        failed = [f"failed: {one['failed']}".replace("|", "\\|"), *[""] * (len(columns) - 1)] if "failed" in one else []
        rows.append([name, *(failed or [cell(one) for cell in columns.values()])])
        if line:
            rows.append([f"{name}, published", *line.split("|")])
    return markdown_table(["", *columns], rows)


def ratio_table(ratios: dict[str, list[float]], of: str = "of images/s") -> str:
    return markdown_table(["ratio", of], [[name, median_and_range(ratios[name], ".3f")] for name in ratios])


def speed(one: dict[str, Any], figure: str = SPEED) -> str:
    """A cell with the images/s, or the images per CPU second."""
    return median_and_range(one[figure], ".1f")


def memory(one: dict[str, Any]) -> str:
    """A cell with the peak memory in GB; empty for a program that does not log it."""
    return f"{max(one['peak_memory_bytes']) / 1e9:.2f}" if "peak_memory_bytes" in one else ""


def data_wait(one: dict[str, Any]) -> str:
    """A cell with the share of the time in which the loop waited for data; empty for a program without a loader."""
    return f"{statistics.mean(one['data_wait_share']):.0%}" if "data_wait_share" in one else ""


def median_and_range(values: Sequence[float], number_format: str) -> str:
    """'median (minimum to maximum)'"""
    middle, low, high = (f"{value:{number_format}}" for value in (statistics.median(values), min(values), max(values)))
    return f"{middle} ({low} to {high})"
