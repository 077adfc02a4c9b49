"""The tables of benchmark_gpu.py."""

import shlex
from pathlib import Path
from statistics import median
from typing import Any

from scripts.benchmarks.common import replace_text, write_json
from scripts.benchmarks.gpu_parts import Part
from scripts.benchmarks.parallel_report import HEADER as PARALLEL_HEADER
from scripts.benchmarks.parallel_report import PARALLEL, parallel_target_rows, variant_rows
from utils.tables import markdown_table

TRAINING_HEADER = [
    *("mode", "batch size", "compiled", "program", "images/s", "roofline (images/s)"),
    *("TFLOP/s", "of the measured peak", "data wait", "memory (GB)"),
]
ROOFLINE = "Roofline: the measured speed of matrix products / the FLOPs per image, without memory traffic."


def write_figures(folder: Path, parts: list[Part], script: str, argv: list[str]) -> dict[str, Any]:
    """Writes `figures.md` and `figures.json`; returns the content of the JSON file."""
    machine = next((part.result for part in parts if part.name == "machine"), None) or {}
    trained = [part for part in parts if part.settings and part.result]
    texts = [f"# GPU figures\n\n`python scripts/{script} {shlex.join(argv)}`"]
    if machine:
        texts.append(_machine_text(machine))
    texts.append(markdown_table(TRAINING_HEADER, [row for part in trained for row in training_rows(part, machine)]))
    texts.append(ROOFLINE)
    if parallel := next((part.result for part in parts if part.name == PARALLEL), None):
        texts.append(f"Strategies of PARALLEL, {parallel['ranks']} process(es); the planner's error in brackets:")
        texts.append(markdown_table(PARALLEL_HEADER, variant_rows(parallel)))
    targets = [*target_rows(trained), *parallel_target_rows(parts)]
    texts.append(markdown_table(["for ViT-B/16 on an H200", "expected or target", "here"], targets))
    outcomes = [[part.name, part.outcome, f"{part.seconds:.0f}"] for part in parts]
    texts.append(markdown_table(["part", "outcome", "seconds"], outcomes))
    texts.append("The output of each part is in its .txt file; `loaders.txt` has the tables of the loaders.")
    replace_text(folder / "figures.md", "\n\n".join(texts) + "\n")
    rows = [
        {"name": part.name, "outcome": part.outcome, "seconds": part.seconds} | part.settings | {"result": part.result}
        for part in parts
    ]
    figures = {"argv": argv, "parts": rows}
    write_json(folder / "figures.json", figures)
    return figures


def _machine_text(machine: dict[str, Any]) -> str:
    texts = [f"{machine['device']}, torch {machine['torch']}, {machine['model']}."]
    if kernel := machine.get("attention"):
        texts.append(f"Attention in evaluation: {kernel}.")
    if peaks := machine["peak_flops_per_second"]:
        texts.append(f"Matrix products, TFLOP/s: {', '.join(f'{mode} {peaks[mode] / 1e12:.4g}' for mode in peaks)}.")
    if speed := machine.get("copy_bytes_per_second"):
        texts.append(f"Copies within its memory, read and written: {speed / 1e12:.3g} TB/s.")
    if flops := machine.get("training_flops_per_image"):
        texts.append(f"A training step takes {flops / 1e9:.4g} GFLOP per image.")
    return " ".join(texts)


def training_rows(part: Part, machine: dict[str, Any]) -> list[list[str]]:
    """A row for each program, also if it failed or completed no turn."""
    mode, rows = part.settings["mode"], []
    mode_cell = ", ".join(filter(None, (mode, part.settings["variant"])))
    for name in part.settings["programs"]:
        head = [mode_cell, str(part.settings["batch_size"]), _compiled_cell(name, part.settings["compiled"]), name]
        one = part.result["programs"].get(name)
        if one is None or "failed" in one:
            rows.append([*head, f"failed: {one['failed']}" if one else "no complete turn", "", "", "", "", ""])
            continue
        speed, memory = median(one["images_per_second"]), one["peak_memory_bytes"]
        wait = "" if name == "bare" else f"{median(one['data_wait_share']):.1%}"
        memory_cell = f"{memory / 1e9:.2f}" if memory else ""
        rows.append([*head, f"{speed:.1f}", *_flops_cells(speed, mode, machine), wait, memory_cell])
    return rows


def _compiled_cell(program: str, is_compiled: bool) -> str:
    if not is_compiled:
        return "no"
    return "whole model" if program in ("jpeg_whole", "timm") else "blocks"


def _flops_cells(images_per_second: float, mode: str, machine: dict[str, Any]) -> list[str]:
    """The roofline, TFLOP/s, and their share of the measured peak; empty if the machine was not measured."""
    flops_per_image = machine.get("training_flops_per_image")
    peak = machine.get("peak_flops_per_second", {}).get(mode)
    flops = images_per_second * flops_per_image if flops_per_image else None
    return [
        f"{peak / flops_per_image:,.0f}" if peak and flops_per_image else "",
        f"{flops / 1e12:.4g}" if flops else "",
        f"{flops / peak:.1%}" if flops and peak else "",
    ]


def target_rows(trained: list[Part]) -> list[list[str]]:
    """Each target with the measured value, empty if it was not measured."""
    measured = [
        (part.settings["mode"], name, one)
        for part in trained
        for name, one in part.result["programs"].items()
        if name in ("jpeg", "jpeg_whole", "ready") and "failed" not in one
    ]
    half = max((median(one["images_per_second"]) for mode, _, one in measured if mode.startswith("O")), default=None)
    fp32 = max((median(one["images_per_second"]) for mode, _, one in measured if mode == "fp32"), default=None)
    wait = max((median(one["data_wait_share"]) for _, name, one in measured if name == "jpeg"), default=None)
    ratios = {name: f"{median(values):.2f}" for part in trained for name, values in part.result["ratios"].items()}
    return [
        ["images/s in half precision", "2,900 to 3,500 (computed; at most 3,835)", f"{half:,.0f}" if half else ""],
        ["`jpeg_whole / timm`, both compiled as a whole", "1.25 or more", ratios.get("jpeg_whole / timm", "")],
        ["`jpeg / timm`, ours compiled block by block", "1.25 or more", ratios.get("jpeg / timm", "")],
        ["half precision / fp32", "7 or more", f"{half / fp32:.2f}" if half and fp32 else ""],
        ["data wait of `jpeg`", "5% or less", "" if wait is None else f"{wait:.1%}"],
    ]
