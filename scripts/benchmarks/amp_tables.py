"""Figures, tables and bar charts of benchmark_amp.py."""

import statistics
from pathlib import Path
from typing import Any, NamedTuple

from scripts.benchmarks.amp_worker import LINEAR_ACCUMULATION, LINEAR_BATCH, LINEAR_WIDTH, OUT_OF_MEMORY
from scripts.benchmarks.common import baseline_of
from utils.device import visible_gpus
from utils.packages import require
from utils.tables import markdown_table

Answers = dict[str, list[dict[str, Any]]]  # mode -> the figures of each repeat


class Report(NamedTuple):
    """A result as JSON, as texts in Markdown, and as bar charts (title -> bars)."""

    result: dict[str, Any]
    texts: list[str]
    bars: dict[str, dict[str, float]]


def measured(answers: Answers) -> Answers:
    """The modes without a failed repeat."""
    return {mode: repeats for mode, repeats in answers.items() if not failure(repeats)}


def failure(repeats: list[dict[str, Any]]) -> str | None:
    """The reason of the first failed repeat."""
    return next((answer["failed"] for answer in repeats if "failed" in answer), None)


def report_training(answers: Answers, iterations: int, batch_size: int) -> Report:
    figures = mode_figures(answers, iterations, batch_size)
    good = {mode: one for mode, one in figures.items() if "failed" not in one}
    texts = [
        f"Seconds per 100 iterations ({iterations} measured):",
        seconds_table({mode: one["seconds_per_100_iterations"] for mode, one in good.items()}),
        mode_table(figures),
        _memory_note()
        + " A speedup is the median of the ratios within the rounds. The measured peak is the speed of a "
        "square matrix product in the mode's dtype; a training step counts as 3 forward passes.",
        *(f"{mode}: the loss is not finite." for mode, one in good.items() if one["loss"] is None),
    ]
    bars = {
        "images/s": {mode: one["images_per_second"] for mode, one in good.items()},
        "peak memory (GB)": {mode: one["peak_memory_bytes"] / 1e9 for mode, one in good.items()},
    }
    repeats = max(map(len, answers.values()))
    return Report({"iterations": iterations, "repeats": repeats, "modes": figures}, texts, bars)


def mode_figures(answers: Answers, iterations: int, batch_size: int) -> dict[str, dict[str, Any]]:
    """The figures of each mode, or the reason under 'failed'."""
    good = measured(answers)
    seconds = {mode: [answer["seconds"] for answer in repeats] for mode, repeats in good.items()}
    memory = {mode: max(answer["peak_memory_bytes"] for answer in repeats) for mode, repeats in good.items()}
    figures = {}
    for mode, repeats in answers.items():
        if reason := failure(repeats):
            figures[mode] = {"failed": reason, "out_of_memory": reason == OUT_OF_MEMORY}
            continue
        average = statistics.mean(seconds[mode])
        images_per_second = iterations * batch_size / average
        flops_per_second = 3 * repeats[0]["forward_flops"] * images_per_second
        peak = max(answer["matmul_flops_per_second"] for answer in repeats)
        figures[mode] = {
            "seconds_per_100_iterations": [value * 100 / iterations for value in seconds[mode]],
            "average_seconds_per_100_iterations": average * 100 / iterations,
            "speedup": {baseline: speedup(seconds[baseline], seconds[mode]) for baseline in baselines(good)},
            "peak_memory_bytes": memory[mode],
            "memory_ratio": memory[mode] / memory[baseline_of(good)],
            "iterations_per_second": iterations / average,
            "images_per_second": images_per_second,
            "flops_per_second": flops_per_second,
            "matmul_flops_per_second": peak,
            "share_of_peak": flops_per_second / peak,
            "loss": repeats[-1]["loss"],
        }
    return figures


def baselines(names: dict[str, Any]) -> list[str]:
    """The modes that speedups refer to: fp32 (or the first mode), and TF32 if it was measured."""
    return [baseline for baseline in dict.fromkeys((baseline_of(names), "tf32")) if baseline in names]


def speedup(baseline: list[float], seconds: list[float]) -> float:
    return statistics.median(slow / fast for slow, fast in zip(baseline, seconds, strict=True))


def seconds_table(seconds: dict[str, list[float]]) -> str:
    """One row per repeat, then the averages and the speedups."""
    rows = zip(*seconds.values(), strict=True)
    repeats = [[str(number), *map(format_seconds, row)] for number, row in enumerate(rows, 1)]
    averages = ["average", *(format_seconds(statistics.mean(values)) for values in seconds.values())]
    speedups = [
        [f"speedup over {baseline}", *(f"{speedup(seconds[baseline], values):.2f}" for values in seconds.values())]
        for baseline in baselines(seconds)
    ]
    return markdown_table(["repeat", *seconds], [*repeats, averages, *speedups])


def format_seconds(value: float) -> str:
    return f"{value:.2f}" if value >= 1 else f"{value:.4f}"


def mode_table(figures: dict[str, dict[str, Any]]) -> str:
    good = {mode: one for mode, one in figures.items() if "failed" not in one}
    names = baselines(good)
    header = ["mode", "peak memory (GB)", f"/ {names[0]}", "iterations/s", "images/s"]
    header += [*(f"speedup over {baseline}" for baseline in names), "share of measured peak"]
    rows = []
    for mode, one in figures.items():
        if mode not in good:
            rows.append([mode, one["failed"], *[""] * (len(header) - 2)])
            continue
        cells = [f"{one['peak_memory_bytes'] / 1e9:.2f}", f"{one['memory_ratio']:.2f}"]
        cells += [f"{one['iterations_per_second']:.3g}", f"{one['images_per_second']:.1f}"]
        cells += [*(f"{one['speedup'][baseline]:.2f}" for baseline in names), f"{one['share_of_peak']:.1%}"]
        rows.append([mode, *cells])
    return markdown_table(header, rows)


def _memory_note() -> str:
    if visible_gpus():
        return "Memory is torch's peak allocation on the GPU."
    return "Memory is the peak host memory of the process; Python and torch need about 0.5 GB of it."


def report_linear(answers: Answers, iterations: int) -> Report:
    good = measured(answers)
    accumulating = f"x{LINEAR_ACCUMULATION}"
    seconds = {
        f"{mode}{suffix}": [answer[key] for answer in repeats]
        for key, suffix in (("seconds", ""), ("accumulating_seconds", f" {accumulating}"))
        for mode, repeats in good.items()
    }
    texts = [
        f"Three linear layers of {LINEAR_WIDTH}, seconds per {iterations} batches of {LINEAR_BATCH}"
        f" ({accumulating}: one optimizer step per {LINEAR_ACCUMULATION} batches):",
        seconds_table(seconds),
        "PaddlePaddle's tutorial reports for 250 batches on a GPU: 2.943 s in fp32, 1.222 s in O1 (2.4 times), "
        "1.006 s in O1 with accumulation.",
        *(f"{mode}: {failure(repeats)}." for mode, repeats in answers.items() if mode not in good),
    ]
    average = {name: statistics.mean(values) for name, values in seconds.items()}
    speedups = {
        baseline: {name: speedup(seconds[baseline], values) for name, values in seconds.items()}
        for baseline in baselines(seconds)
    }
    result = {"iterations": iterations, "seconds": seconds, "average_seconds": average, "speedup": speedups}
    return Report(result, texts, {f"seconds per {iterations} batches": average})


def draw(path: Path, bars: dict[str, dict[str, float]]) -> None:
    """Draws one bar chart per title, side by side; raises UserError if matplotlib is not installed."""
    require("-picture", "matplotlib")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6 * len(bars), 4), layout="constrained")
    for axes, (title, values) in zip(figure.subplots(1, len(bars), squeeze=False)[0], bars.items(), strict=True):
        axes.bar_label(axes.bar(list(values), list(values.values())), fmt="%.4g")
        axes.set_ylabel(title)
        axes.tick_params(axis="x", rotation=30)
    FigureCanvasAgg(figure).print_figure(path)
