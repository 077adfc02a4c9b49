"""The top-1 of several programs or precisions over several seeds, and whether it differs."""

import math
import statistics
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from scripts.benchmarks.common import failure_reason
from scripts.benchmarks.turns import Figures, figures_table
from utils.errors import UserError
from utils.tables import read_rows

NOISE = "A difference of less than two standard errors is within the noise of seeds."


def run_program(command: Sequence[str]) -> None:
    """Runs a training. Raises UserError with the reason if it failed."""
    process = subprocess.run(command, capture_output=True, text=True, errors="replace")
    if process.returncode:
        raise UserError(failure_reason(process.returncode, process.stderr.splitlines()))


def final_top1(command: Sequence[str], output: Path, table: str, column: str) -> float:
    """Runs a training and returns the top-1 of its last epoch in percent, from a CSV file of its run.

    Args:
        output: the program creates the folder of its run there, with the file `table`.

    Raises:
        UserError: the program failed, or the file has no such value.
    """
    run_program(command)
    paths = sorted(output.glob(f"*/{table}"), key=lambda path: path.stat().st_mtime)
    rows = read_rows(paths[-1]) if paths else []
    if not rows or not rows[-1].get(column):
        raise UserError(f"{paths[-1] if paths else output / '*' / table}: has no {column} of the last epoch")
    return float(rows[-1][column])


def seed_table(figures: Figures, baseline: str) -> str:
    """Mean and spread of the final top-1, and its difference from the baseline with the standard error."""
    values = {name: one["top1"] for name, one in figures.items() if "failed" not in one}

    def cell(compute: Callable[[list[float]], float], number_format: str) -> Callable[[dict[str, Any]], str]:
        return lambda one: f"{compute(one['top1']):{number_format}}"

    def spread(one: dict[str, Any]) -> str:
        return f"{statistics.stdev(one['top1']):.2f}" if len(one["top1"]) > 1 else ""

    def difference(one: dict[str, Any]) -> str:
        others = values.get(baseline, [])
        if one["top1"] is others or min(len(one["top1"]), len(others)) < 2:
            return ""
        mean = statistics.mean(one["top1"]) - statistics.mean(others)
        error = math.sqrt(sum(statistics.variance(ones) / len(ones) for ones in (one["top1"], others)))
        return f"{mean:+.2f} +- {error:.2f}"

    columns = {"seeds": cell(len, "d"), "mean top-1": cell(statistics.mean, ".2f"), "standard deviation": spread}
    columns |= {"min": cell(min, ".2f"), f"difference from {baseline} +- standard error": difference}
    return figures_table(figures, columns)
