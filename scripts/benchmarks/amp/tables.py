"""Figures and tables of benchmark_amp.py."""

import statistics
from typing import Any

from scripts.benchmarks.common import median_and_range
from utils.device import visible_gpus
from utils.tables import markdown_table

Answers = dict[str, list[dict[str, Any]]]  # mode -> the figures of each repeat


def baseline_of(modes: list[str]) -> str:
    """The mode that the others are compared with: fp32, or the first mode if fp32 is missing."""
    return "fp32" if "fp32" in modes else modes[0]


def failure(repeats: list[dict[str, Any]]) -> str | None:
    """The reason of the first failed repeat."""
    return next((answer["failed"] for answer in repeats if "failed" in answer), None)


def mode_figures(answers: Answers, iterations: int, batch_size: int) -> dict[str, dict[str, Any]]:
    """The figures of each mode, or the reason under 'failed'."""
    baseline = answers[baseline_of([mode for mode, repeats in answers.items() if not failure(repeats)])]
    baseline_memory = max(answer["peak_memory_bytes"] for answer in baseline)
    figures = {}
    for mode, repeats in answers.items():
        if reason := failure(repeats):
            figures[mode] = {"failed": reason}
            continue
        seconds = [answer["seconds"] for answer in repeats]
        memory = max(answer["peak_memory_bytes"] for answer in repeats)
        figures[mode] = {
            "seconds_per_100_iterations": [value * 100 / iterations for value in seconds],
            "speedups": [slow["seconds"] / fast for slow, fast in zip(baseline, seconds, strict=True)],
            "peak_memory_bytes": memory,
            "memory_ratio": memory / baseline_memory,
            "images_per_second": iterations * batch_size / statistics.mean(seconds),
            "loss": repeats[-1]["loss"],
        }
    return figures


def texts(figures: dict[str, dict[str, Any]]) -> list[str]:
    good = {mode: one for mode, one in figures.items() if "failed" not in one}
    memory = "torch's peak allocation on the GPU"
    if not visible_gpus():
        memory = "the peak host memory of the process; Python and torch need about 0.5 GB of it"
    return [
        "Seconds per 100 iterations:",
        seconds_table({mode: one["seconds_per_100_iterations"] for mode, one in good.items()}),
        mode_table(figures, baseline_of(list(good))),
        f"Memory is {memory}. A speedup is the median of the ratios within the rounds.",
        *(f"{mode}: the loss is not finite." for mode, one in good.items() if one["loss"] is None),
    ]


def seconds_table(seconds: dict[str, list[float]]) -> str:
    """One row per repeat, then the averages."""
    rows = [[str(number), *row] for number, row in enumerate(zip(*seconds.values(), strict=True), 1)]
    rows.append(["average", *map(statistics.mean, seconds.values())])
    return markdown_table(["repeat", *seconds], [[name, *(f"{value:.2f}" for value in row)] for name, *row in rows])


def mode_table(figures: dict[str, dict[str, Any]], baseline: str) -> str:
    rows = []
    for mode, one in figures.items():
        if "failed" in one:
            rows.append([mode, one["failed"], "", "", ""])
            continue
        memory = [f"{one['peak_memory_bytes'] / 1e9:.2f}", f"{one['memory_ratio']:.2f}"]
        rows.append([mode, *memory, f"{one['images_per_second']:.1f}", median_and_range(one["speedups"], ".2f")])
    return markdown_table(["mode", "peak memory (GB)", f"/ {baseline}", "images/s", f"speedup over {baseline}"], rows)
