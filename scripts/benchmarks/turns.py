"""Measurements in turns, their ratios, and the tables and files of results: the part that all benchmarks share.

The contenders (programs, precisions, loaders) take turns, so that slow changes of a machine's speed affect all of them.
A ratio compares two turns of the same round.
"""

import os
import shlex
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import median

import torch

from configs.yaml_io import Values
from utils.device import device_name, visible_gpus
from utils.errors import UserError
from utils.files import atomic_write, indented_json
from utils.tables import markdown_table

_LOAD = os.getloadavg()[0]  # before the measurements, which add to it
Figures = dict[str, Values]  # contender -> figure -> its value in each round; or the reason under "failed"
Measure = Callable[[str], dict[str, float]]
Columns = dict[str, Callable[[Values], str]]  # header -> the cell for the figures of a contender
Pairs = Iterable[tuple[str, str]]
SPEED = "images_per_second"
CORES = "cpu_seconds_per_second"
PER_CPU = "images_per_cpu_second"  # other programs of a busy machine hardly change it


def compare(
    batch_size: int,
    names: Iterable[str],
    rounds: int,
    measure: Measure,
    texts: Callable[[Figures], list[str]],
    file: Path | None,
    pairs: Pairs,
) -> Figures:
    """Takes turns, prints the environment and the tables, writes the JSON file, and returns the figures.

    Initializes CUDA at its end only. texts: the tables; the ratios of `pairs` are printed below the first one.
    """
    figures = {name: {} for name in names}
    take_turns(figures, rounds, measure, file)
    environment = {
        "device": device_name(torch.device("cuda" if visible_gpus() else "cpu")),
        "threads": torch.get_num_threads(),
        "load before": f"{_LOAD:.1f} on {os.cpu_count() or 1} cores",
        "torch": torch.__version__,
        "batch size": batch_size,
        "command": shlex.join(["python", *sys.argv]),
    }
    table, *others = texts(figures)
    ratios = speed_ratios(figures, pairs)
    about = ", ".join(f"{name} {value}" for name, value in environment.items())
    print(about, table, *([ratio_table(ratios)] if ratios else []), *others, sep="\n\n")
    write_json(file, {"environment": environment, "figures": figures, "ratios": ratios})
    return figures


def take_turns(figures: Figures, rounds: int, measure: Measure, file: Path | None) -> None:
    """Measures each contender once per round, in reverse order in every second round.

    A contender that failed gets no more turns. The figures are written to `file` after every turn.

    figures: contender -> {}; receives the figures. measure: called with the contender and the number of the round;
    raises UserError if the measurement failed. Raises UserError if all contenders failed.
    """
    for number in range(rounds):
        for name, one in reversed(figures.items()) if number % 2 else figures.items():
            if "failed" in one:
                continue
            try:
                measured = measure(name)
                outcome = ", ".join(f"{key} {value:.4g}" for key, value in measured.items())
                for key, value in measured.items():
                    one.setdefault(key, []).append(value)
            except UserError as error:
                one["failed"] = outcome = str(error)
            print(f"round {number + 1} of {rounds}, {name}: {outcome}", file=sys.stderr, flush=True)
            write_json(file, {"figures": figures})
    if all("failed" in one for one in figures.values()):
        name, one = next(iter(figures.items()))
        raise UserError(f"all measurements failed; {name}: {one['failed']}")


def speed_ratios(figures: Figures, pairs: Pairs, figure: str = SPEED) -> dict[str, list[float]]:
    """'one / other' -> the ratio of a figure in each round that both completed, for the pairs that were measured."""
    speeds = {name: one[figure] for name, one in figures.items() if figure in one}
    return {
        f"{one} / {other}": [mine / its for mine, its in zip(speeds[one], speeds[other], strict=False)]
        for one, other in pairs
        if one in speeds and other in speeds
    }


def figures_table(figures: Figures, columns: Columns) -> str:
    """A row per contender, with the reason if it failed."""
    rows = []
    for name, one in figures.items():
        if "failed" in one:
            cells = [f"failed: {one['failed']}".replace("|", "\\|"), *[""] * (len(columns) - 1)]
        else:
            cells = [cell(one) for cell in columns.values()]
        rows.append([name, *cells])
    return markdown_table(["", *columns], rows)


def ratio_table(ratios: dict[str, list[float]], of: str = "of images/s") -> str:
    return markdown_table(["ratio", of], [[name, median_and_range(ratios[name], ".3f")] for name in ratios])


def speed(one: Values, figure: str = SPEED) -> str:
    """A cell with the images/s, or another figure; empty for a program that does not have it."""
    return median_and_range(one[figure], ".1f") if figure in one else ""


def memory(one: Values) -> str:
    """A cell with the peak memory in GB; empty for a program that does not log it."""
    return f"{max(one['peak_memory_bytes']) / 1e9:.2f}" if "peak_memory_bytes" in one else ""


def median_and_range(values: Sequence[float], number_format: str) -> str:
    """'median (minimum to maximum)'"""
    middle, low, high = (f"{value:{number_format}}" for value in (median(values), min(values), max(values)))
    return f"{middle} ({low} to {high})"


def write_json(path: Path | None, result: Values) -> None:
    """Does nothing without a path."""
    if path:
        atomic_write(path, indented_json(result))
