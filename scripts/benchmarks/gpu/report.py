"""The tables of benchmark_gpu.py."""

import shlex
from pathlib import Path
from statistics import median
from typing import Any

from scripts.benchmarks.common import write_json
from scripts.benchmarks.gpu.parts import NOT_RUN, Part
from utils.atomic_file import atomic_write
from utils.tables import markdown_table

FIGURES = "figures.json"
TRAINING_HEADER = [
    *("part", "mode", "batch size", "compiled", "program", "images/s", "upper bound (images/s)"),
    *("share of the bound", "data wait", "memory (GB)"),
]
# Bytes of the ops of a step that are not matrix products: ViT-B/16 at 224, batch size 256, bfloat16, eager; counted by
# tests/engine/training/test_step_traffic.py.
TRAFFIC = {"O1": 106.1e9, "O2": 69.9e9, "dropout": 134.7e9, "droppath": 114.5e9, "fp32": 134.2e9}
_COUNTED_BATCH_SIZE, _COUNTED_FLOPS = 256, 105.15e9  # the latter per image, to recognize the model
_BYTES_PER_STEP = 3.2e9  # of them for any batch size: gradients, clipping, AdamW
BOUND = (
    "Upper bound: a step takes at least FLOPs / speed of matrix products + bytes of all other ops / speed of copies, "
    "both measured here. Only the bytes of ViT-B/16 were counted, in eager execution; compilation saves some of them. "
    "docs/benchmarks.md has the targets."
)


def write_figures(folder: Path, parts: list[Part], script: str, argv: list[str]) -> dict[str, Any]:
    """Writes `figures.md` and `figures.json`, from which a later call reads; returns the content of the JSON file."""
    machine = next((part.result for part in parts if part.name == "machine"), None) or {}
    not_run = [part for part in parts if part.outcome.startswith(NOT_RUN)]
    trained = [part for part in parts if part.settings and part not in not_run]
    texts = [f"# GPU figures\n\n`python scripts/{script} {shlex.join(argv)}`"]
    if machine:
        texts.append(_machine_text(machine))
    texts.append(markdown_table(TRAINING_HEADER, [row for part in trained for row in training_rows(part, machine)]))
    texts.append(BOUND)
    for part in parts:
        if part.name.startswith("parallel") and part.result:
            texts.append(f"{part.name}, {part.result['ranks']} process(es):")
            texts.append(markdown_table(["variant", "step (ms)", "images/s", "memory (GB)"], variant_rows(part.result)))
    outcomes = [[part.name, _cell(part.outcome), f"{part.seconds:.0f}"] for part in parts if part not in not_run]
    texts.append(markdown_table(["part", "outcome", "seconds"], outcomes))
    texts.append(f"Not run: {', '.join(part.name for part in not_run) or 'none'}. `timm` needs -timm_train PATH.")
    texts.append("The output of each part is in its .txt file; `loaders.txt` has the tables of the loaders.")
    atomic_write(folder / "figures.md", "\n\n".join(texts) + "\n")
    keys = ("name", "outcome", "seconds", "settings", "result")
    figures = {"argv": argv, "parts": [{key: getattr(part, key) for key in keys} for part in parts]}
    write_json(folder / FIGURES, figures)
    return figures


def _machine_text(machine: dict[str, Any]) -> str:
    texts = [f"{machine['device']}, torch {machine['torch']}, {machine['model']}."]
    if peaks := machine["peak_flops_per_second"]:
        texts.append(f"Matrix products, TFLOP/s: {', '.join(f'{mode} {peaks[mode] / 1e12:.4g}' for mode in peaks)}.")
    if speed := machine.get("copy_bytes_per_second"):
        texts.append(f"Copies within its memory, read and written: {speed / 1e12:.3g} TB/s.")
    if flops := machine.get("training_flops_per_image"):
        texts.append(f"A training step takes {flops / 1e9:.4g} GFLOP per image.")
    return " ".join(texts)


def training_rows(part: Part, machine: dict[str, Any]) -> list[list[str]]:
    """A row for each program, also if it failed or completed no turn."""
    settings, rows = part.settings, []
    bound = bound_images_per_second(settings["mode"], settings["traffic"], settings["batch_size"], machine)
    compiled = ("whole model" if settings["kind"] == "whole" else "blocks") if settings["is_compiled"] else "no"
    for name in settings["programs"]:
        head = [part.name, settings["mode"], str(settings["batch_size"]), compiled, name]
        one = part.programs.get(name)
        if one is None or "failed" in one:
            rows.append([*head, _cell(f"failed: {one['failed']}" if one else part.outcome), "", "", "", ""])
            continue
        speed, memory = median(one["images_per_second"]), one["peak_memory_bytes"]
        bound_cells = [f"{bound:,.0f}", f"{speed / bound:.1%}"] if bound else ["", ""]
        wait = "" if name == "bare" else f"{median(one['data_wait_share']):.1%}"
        rows.append([*head, f"{speed:.1f}", *bound_cells, wait, f"{memory / 1e9:.2f}" if memory else ""])
    return rows


def _cell(reason: str) -> str:
    return reason.replace("|", "\\|")


def bound_images_per_second(mode: str, traffic: str, batch_size: int, machine: dict[str, Any]) -> float | None:
    """The limit of the machine; None if a ceiling is missing, or the traffic of the model was not counted."""
    peak, copies = machine.get("peak_flops_per_second", {}).get(mode), machine.get("copy_bytes_per_second")
    is_counted = abs(machine.get("training_flops_per_image", 0) / _COUNTED_FLOPS - 1) < 0.01
    if not (traffic and peak and copies and is_counted):
        return None
    bytes_per_image = (TRAFFIC[traffic] - _BYTES_PER_STEP) / _COUNTED_BATCH_SIZE
    seconds = batch_size * machine["training_flops_per_image"] / peak
    seconds += (_BYTES_PER_STEP + batch_size * bytes_per_image) / copies
    return batch_size / seconds


def variant_rows(result: dict[str, Any]) -> list[list[str]]:
    """A row per variant of the part `parallel`."""
    rows = []
    for name, one in result["variants"].items():
        cells = [f"failed: {one['failed']}", "", ""] if "failed" in one else [
            f"{1e3 * one['step_seconds']:.1f}", f"{one['images_per_second']:.1f}",
            f"{one['peak_memory_bytes'] / 1e9:.2f}",
        ]  # fmt: skip
        rows.append([name, *cells])
    return rows
