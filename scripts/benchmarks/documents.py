"""Tables of documents on AMP: their settings, labels and published figures.

PaddleViT: docs/paddlevit-amp.md, V100. Caltech-256: a PyTorch tutorial, GPU with 6 GB; batch size 512 fits with AMP
only.
"""

import statistics
from collections.abc import Callable
from typing import Any, NamedTuple

from scripts.benchmarks.turns import Columns, mean_of, median_and_range, memory, speed


class Document(NamedTuple):
    """published: the rows of `figures_table`.

    flags: of main_single_gpu.py, and defaults: of benchmark_amp.py; the user's replace them.
    """

    rows: dict[str, list[str]]  # label -> -opts
    columns: Columns
    published: list[str]
    flags: list[str]
    defaults: dict[str, Any]


def _repeat(number: int) -> Callable[[dict[str, Any]], str]:
    return lambda one: "".join(f"{value:.4g}s" for value in one["seconds"][number : number + 1])


def _speedup(one: dict[str, Any]) -> str:
    """The ratio of the averages; '-' for the first row."""
    first, seconds = one["first"], one["seconds"]
    return f"{statistics.mean(first) / statistics.mean(seconds):.3f}" if first not in (None, seconds) else "-"


SPEED_COLUMNS: Columns = {
    "seconds per 100 iterations": lambda one: median_and_range(one["seconds"], ".2f"),
    "images/s": speed,
    "peak memory (GB)": memory,
    "data wait": mean_of("data_wait_share", ".0%"),
    "CPU seconds per 100 iterations": lambda one: median_and_range(one["cpu_seconds"], ".2f"),
}
_REPEATS = {name: _repeat(index) for index, name in enumerate(("1st", "2nd", "3rd", "4th", "5th", "6th", "7th"))}
_FP32, _VIT_B = ["AMP.PRESET=fp32"], "-cfg=configs/vit_base_patch16_224.yaml"

DOCUMENTS = {
    "paddlevit": Document(
        rows={"AMP off": _FP32, "AMP on": ["AMP.PRESET=torch"]},
        columns=_REPEATS | {"Average": mean_of("seconds", ".2f", "s"), "Speedup": _speedup},
        published=["78s|78s|79s|78s|78s|79s|78s|78.29s|-", "42s|41s|41s|41s|41s|41s|41s|41.14s|1.903"],
        flags=[_VIT_B, "-batch_size=64"],
        defaults={"rounds": 7},
    ),
    "caltech256": Document(
        rows={
            f"{size}, {name}": [f"DATA.BATCH_SIZE={size}", f"AMP.PRESET={preset}"]
            for size in (256, 512)
            for name, preset in (("fp32", "fp32"), ("AMP", "torch"))
        },
        columns=SPEED_COLUMNS,
        published=[],
        flags=["-cfg=configs/resnet50_caltech256.yaml", "-opts", "MODEL.PRETRAINED=null"],
        defaults={"rounds": 1, "memory_gb": 6.0},
    ),
}
