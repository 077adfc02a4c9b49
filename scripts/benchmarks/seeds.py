"""The top-1 of several programs or precisions over several seeds: figures, table, differences.

A run is a dictionary with 'top1' in percent, or with the reason under 'failed'. Runs are in the order of their seeds.
"""

import math
import statistics
from typing import Any

from utils.tables import markdown_table

Runs = dict[str, list[dict[str, Any]]]  # name -> a run for each seed


def seed_figures(runs: Runs, baseline: str) -> dict[str, dict[str, Any]]:
    """The figures of each name over its finished runs, and its difference from the baseline."""
    finished = {name: [run["top1"] for run in ones if "top1" in run] for name, ones in runs.items()}
    return {
        name: {
            "top1": [run.get("top1") for run in ones],
            "mean": statistics.mean(finished[name]) if finished[name] else None,
            "standard_deviation": statistics.stdev(finished[name]) if len(finished[name]) > 1 else None,
            "difference": None if name == baseline else difference_of(finished[name], finished[baseline]),
            "failed": {seed: run["failed"] for seed, run in enumerate(ones) if "failed" in run},
        }
        for name, ones in runs.items()
    }


def difference_of(ones: list[float], others: list[float]) -> dict[str, float] | None:
    """The difference of the means and its standard error; None if one has fewer than two values."""
    if min(len(ones), len(others)) < 2:
        return None
    error = math.sqrt(sum(statistics.variance(values) / len(values) for values in (ones, others)))
    return {"mean": statistics.mean(ones) - statistics.mean(others), "standard_error": error}


def seed_table(figures: dict[str, dict[str, Any]]) -> str:
    seeds = range(max(len(one["top1"]) for one in figures.values()))
    rows = []
    for name, one in figures.items():
        finished = [top1 for top1 in one["top1"] if top1 is not None]
        cells = ["failed" if top1 is None else percent(top1) for top1 in one["top1"]]
        spread = "" if one["standard_deviation"] is None else f"{one['standard_deviation']:.2f}"
        cells += [percent(one["mean"]), spread, percent(min(finished, default=None))]
        rows.append([name, *cells])
    header = ["final top-1", *(f"seed {seed}" for seed in seeds), "mean", "standard deviation", "min"]
    return markdown_table(header, rows)


def seed_verdicts(figures: dict[str, dict[str, Any]], baseline: str) -> str:
    """A line for each difference, and for each failed run."""
    lines = []
    for name, one in figures.items():
        lines += [f"- {name}, seed {seed}: failed: {reason}" for seed, reason in one["failed"].items()]
        if one["difference"]:
            mean, error = one["difference"].values()
            verdict = "a difference beyond" if abs(mean) > 2 * error else "no difference beyond"
            lines.append(
                f"- {name} - {baseline}: {mean:+.2f} points, standard error {error:.2f}: {verdict} the noise of seeds"
            )
        elif name != baseline:
            lines.append(f"- {name} - {baseline}: no verdict; it needs two finished runs of each")
    return "\n".join(lines)


def percent(top1: float | None) -> str:
    return "" if top1 is None else f"{top1:.2f}%"
