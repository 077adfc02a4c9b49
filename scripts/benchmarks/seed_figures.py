"""The top-1 of one program or precision over several seeds: figures, table cells, failures.

A run is a dictionary with 'top1' in percent, or with the reason under 'failed'. Runs are in the order of their seeds.
"""

import statistics
from typing import Any


def seed_figures(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """`top1` has None for a failed run, which the other figures leave out."""
    top1 = [run["top1"] for run in runs if "top1" in run]
    return {
        "top1": [run.get("top1") for run in runs],
        "mean": statistics.mean(top1) if top1 else None,
        "standard_deviation": statistics.stdev(top1) if len(top1) > 1 else None,
        "min": min(top1, default=None),
        "max": max(top1, default=None),
        "failed": {seed: run["failed"] for seed, run in enumerate(runs) if "failed" in run},
    }


def seed_header(figures: dict[str, dict[str, Any]]) -> list[str]:
    seeds = max(len(one["top1"]) for one in figures.values())
    return [*(f"seed {seed}" for seed in range(seeds)), "mean", "standard deviation", "min", "max"]


def seed_cells(one: dict[str, Any]) -> list[str]:
    cells = ["failed" if top1 is None else percent(top1) for top1 in one["top1"]]
    spread = "" if one["standard_deviation"] is None else f"{one['standard_deviation']:.2f}"
    return [*cells, percent(one["mean"]), spread, percent(one["min"]), percent(one["max"])]


def failure_lines(name: str, one: dict[str, Any]) -> list[str]:
    return [f"- {name}, seed {seed}: failed: {reason}" for seed, reason in one["failed"].items()]


def percent(top1: float | None) -> str:
    return "" if top1 is None else f"{top1:.2f}%"
