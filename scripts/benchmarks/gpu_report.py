"""The tables of benchmark_gpu.py."""

import shlex
from pathlib import Path
from statistics import median
from typing import Any

from scripts.benchmarks.common import write_json
from scripts.benchmarks.gpu_parts import Part
from utils.tables import markdown_table

TRAINING_HEADER = [
    *("mode", "batch size", "compiled", "program", "images/s"),
    *("TFLOP/s", "of the measured peak", "data wait", "memory (GB)"),
]


def write_figures(folder: Path, parts: list[Part], script: str, argv: list[str]) -> dict[str, Any]:
    """Writes `figures.md` and `figures.json`; returns the content of the JSON file."""
    machine = next((part.result for part in parts if part.name == "machine"), None) or {}
    trained = [part for part in parts if part.settings and part.result]
    texts = [f"# GPU figures\n\n`python scripts/{script} {shlex.join(argv)}`"]
    if machine:
        texts.append(f"{machine['device']}, torch {machine['torch']}, {machine['model']}. {_peaks(machine)}")
    texts.append(markdown_table(TRAINING_HEADER, [row for part in trained for row in training_rows(part, machine)]))
    texts.append(markdown_table(["target, for ViT-B/16 on an H200", "target", "here"], target_rows(trained)))
    outcomes = [[part.name, part.outcome, f"{part.seconds:.0f}"] for part in parts]
    texts.append(markdown_table(["part", "outcome", "seconds"], outcomes))
    texts.append("The output of each part is in its .txt file; `loaders.txt` has the tables of the loaders.")
    (folder / "figures.md").write_text("\n\n".join(texts) + "\n")
    rows = [
        {"name": part.name, "outcome": part.outcome, "seconds": part.seconds} | part.settings | {"result": part.result}
        for part in parts
    ]
    figures = {"argv": argv, "parts": rows}
    write_json(folder / "figures.json", figures)
    return figures


def _peaks(machine: dict[str, Any]) -> str:
    peaks = ", ".join(f"{mode} {peak / 1e12:.4g}" for mode, peak in machine["peak_flops_per_second"].items())
    gigaflops = machine["training_flops_per_image"] / 1e9
    return f"Matrix products, TFLOP/s: {peaks}. A training step takes {gigaflops:.4g} GFLOP per image."


def training_rows(part: Part, machine: dict[str, Any]) -> list[list[str]]:
    mode, rows = part.settings["mode"], []
    for name, one in part.result["programs"].items():
        head = [mode, str(part.settings["batch_size"]), "yes" if part.settings["compiled"] else "no", name]
        if "failed" in one:
            rows.append([*head, f"failed: {one['failed']}", "", "", "", ""])
            continue
        speed, memory = median(one["images_per_second"]), one["peak_memory_bytes"]
        wait = "" if name == "bare" else f"{median(one['data_wait_share']):.1%}"
        memory_cell = f"{memory / 1e9:.2f}" if memory else ""
        rows.append([*head, f"{speed:.1f}", *_flops_cells(speed, mode, machine), wait, memory_cell])
    return rows


def _flops_cells(images_per_second: float, mode: str, machine: dict[str, Any]) -> list[str]:
    """TFLOP/s and their share of the measured peak; empty if the machine was not measured."""
    if not machine:
        return ["", ""]
    flops = images_per_second * machine["training_flops_per_image"]
    return [f"{flops / 1e12:.4g}", f"{flops / machine['peak_flops_per_second'][mode]:.1%}"]


def target_rows(trained: list[Part]) -> list[list[str]]:
    """Each target with the measured value, empty if it was not measured."""
    measured = [
        (part.settings["mode"], name, one)
        for part in trained
        for name, one in part.result["programs"].items()
        if name in ("jpeg", "ready") and "failed" not in one
    ]
    half = max((median(one["images_per_second"]) for mode, _, one in measured if mode.startswith("O")), default=None)
    fp32 = max((median(one["images_per_second"]) for mode, _, one in measured if mode == "fp32"), default=None)
    wait = max((median(one["data_wait_share"]) for _, name, one in measured if name == "jpeg"), default=None)
    over_timm = [part.result["ratios"]["jpeg / timm"] for part in trained if "jpeg / timm" in part.result["ratios"]]
    return [
        ["images/s in half precision (40% of the dense peak)", "3,750 or more", f"{half:,.0f}" if half else ""],
        ["`jpeg / timm`, both compiled", "1.25 or more", f"{median(over_timm[0]):.2f}" if over_timm else ""],
        ["half precision / fp32", "7 or more", f"{half / fp32:.2f}" if half and fp32 else ""],
        ["data wait of `jpeg`", "5% or less", "" if wait is None else f"{wait:.1%}"],
    ]
