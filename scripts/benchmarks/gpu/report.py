"""The page of benchmark_gpu.py."""

from typing import Any

from scripts.benchmarks.gpu.plan import TRAINING
from scripts.benchmarks.turns import SPEED, Figures, figures_table, memory, speed
from utils.tables import markdown_table

INVALID = ": invalid, the device was busy when its speed was measured"
Records = dict[str, dict[str, Any]]  # part -> outcome, seconds, result


def page(records: Records, command: str) -> str:
    machine = (records.get("machine") or {}).get("result") or {}
    columns = {"images/s": speed, "share of matrix products": lambda one: one["share"], "peak memory (GB)": memory}
    texts = ["# GPU figures", f"`{command}`", machine_text(machine)] if machine else ["# GPU figures", f"`{command}`"]
    texts.append(figures_table(training_figures(records, machine), columns))
    outcomes = [[name, one["outcome"].replace("|", "\\|"), f"{one['seconds']:.0f}"] for name, one in records.items()]
    texts.append(markdown_table(["part", "outcome", "seconds"], outcomes))
    texts.append("The output of each part is in its .txt file; `loaders.txt` and the parts of `tables` have tables.")
    return "\n\n".join(texts) + "\n"


def machine_text(machine: dict[str, Any]) -> str:
    peaks = ", ".join(f"{mode} {peak / 1e12:.4g}" for mode, peak in machine["peak_flops_per_second"].items())
    return (
        f"{machine['device']}, torch {machine['torch']}. Matrix products, TFLOP/s: {peaks}. Copies within its memory, "
        f"read and written: {machine['copy_bytes_per_second'] / 1e12:.3g} TB/s. {machine['model']}: "
        f"{machine['training_flops_per_image'] / 1e9:.4g} GFLOP per image in a training step."
    )


def training_figures(records: Records, machine: dict[str, Any]) -> Figures:
    """The programs of the training parts. share: of the speed of one GPU's matrix products, for the user's model."""
    figures: Figures = {}
    for name, setting in TRAINING.items():
        result = (records.get(name) or {}).get("result") or {}
        for program, one in result.get("figures", {}).items():
            peak = machine.get("peak_flops_per_second", {}).get(setting.mode)
            share = ""
            if peak and SPEED in one and not setting.model and program != "ranks":
                ratio = one[SPEED][0] * machine["training_flops_per_image"] / peak
                share = f"{ratio:.1%}{INVALID if ratio > 1 else ''}"
            if one:  # else its turn has not ended
                figures[f"{name}: {setting.mode}, {program}"] = one | {"share": share}
    return figures
