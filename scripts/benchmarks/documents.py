"""Tables of documents on AMP: their settings, labels and published figures.

PaddleViT: docs/paddlevit-amp.md, V100. Colossal-AI: features/amp of hpcaitech/ColossalAI-Examples, GPU not named; it
calls images/s "batch/s". Paddle: amp_en.md of PaddlePaddle/docs before commit 656956181, GPU not named; `paddle_net.py`
trains its network. Caltech-256: a PyTorch tutorial, GPU with 6 GB; batch size 512 fits with AMP only.
"""

import statistics
from collections.abc import Callable
from typing import Any, NamedTuple

from scripts.benchmarks.turns import SPEED, data_wait, median_and_range, memory, speed

Columns = dict[str, Callable[[dict[str, Any]], str]]  # as of figures_table


class Document(NamedTuple):
    """rows: label -> -opts. published: on random images and, if they differ, with -loader.

    flags: of main_single_gpu.py, and defaults: of benchmark_amp.py; the user's replace them.
    """

    rows: dict[str, list[str]]
    columns: Columns
    published: list[list[str]]  # as of figures_table
    flags: list[str]
    defaults: dict[str, Any]


def _repeat(number: int) -> Callable[[dict[str, Any]], str]:
    return lambda one: "".join(f"{value:.4g}s" for value in one["seconds"][number : number + 1])


def _mean(figure: str, number_format: str, unit: str = "", scale: float = 1.0) -> Callable[[dict[str, Any]], str]:
    return lambda one: f"{statistics.mean(one[figure]) / scale:{number_format}}{unit}" if figure in one else ""


def _speedup(one: dict[str, Any]) -> str:
    """The ratio of the averages; '-' for the first row."""
    first, seconds = one["first"], one["seconds"]
    return f"{statistics.mean(first) / statistics.mean(seconds):.3f}" if first not in (None, seconds) else "-"


SPEED_COLUMNS: Columns = {
    "seconds per 100 iterations": lambda one: median_and_range(one["seconds"], ".2f"),
    "images/s": speed,
    "peak memory (GB)": memory,
    "data wait": data_wait,
    "CPU seconds per 100 iterations": lambda one: median_and_range(one["cpu_seconds"], ".2f"),
}
_REPEATS = {name: _repeat(index) for index, name in enumerate(("1st", "2nd", "3rd", "4th", "5th", "6th", "7th"))}
_COLOSSALAI: Columns = {
    "RAM/GB": _mean("peak_memory_bytes", ".1f", scale=1e9),
    "Iteration/s": lambda one: f"{100 / statistics.mean(one['seconds']):.2f}",
    "throughput (batch/s)": _mean(SPEED, ".1f"),
    "largest batch size": lambda one: ">= " * ("at_least" in one) + _mean("largest_batch_size", ".0f")(one),
    "its throughput": _mean("largest_images_per_second", ".1f"),
    "data wait": data_wait,
}
_FP32, _VIT_B = ["AMP.PRESET=fp32"], "-cfg=configs/vit_base_patch16_224.yaml"
_SGD = ["TRAIN.OPTIMIZER.NAME=momentum", "TRAIN.OPTIMIZER.MOMENTUM=0.0", "TRAIN.WEIGHT_DECAY=0.1"]
_OF_COLOSSALAI = ["-opts", "MODEL.DROPOUT=0.1", "MODEL.ATTENTION_DROPOUT=0.0", "TRAIN.GRAD_CLIP=1.0", *_SGD]
_PRESETS = {"AMP_TYPE.TORCH": "torch", "AMP_TYPE.NAIVE": "naive", "AMP_TYPE.APEX O1": "apex_o1"}

DOCUMENTS = {
    "paddlevit": Document(
        {"AMP off": _FP32, "AMP on": ["AMP.PRESET=torch"]},
        _REPEATS | {"Average": _mean("seconds", ".2f", "s"), "Speedup": _speedup},
        [["78s|78s|79s|78s|78s|79s|78s|78.29s|-", "42s|41s|41s|41s|41s|41s|41s|41.14s|1.903"]],
        [_VIT_B, "-batch_size=64"],
        {"rounds": 7},
    ),
    "colossalai": Document(
        {"FP32 training": _FP32} | {row: [f"AMP.PRESET={preset}"] for row, preset in _PRESETS.items()},
        _COLOSSALAI,
        [
            ["27.2|2.95|377.6|||", "20.5|3.25|416.0|||", "17.0|3.53|451.8|||", "20.2|3.07|393.0|||"],
            ["25.0|0.84|107.5|||", "19.0|0.91|116.5|||", "14.8|0.93|119.0|||", "17.9|0.90|115.2|||"],
        ],
        [_VIT_B, "-batch_size=128", *_OF_COLOSSALAI],
        {"rounds": 1},
    ),
    "paddle": Document(
        {
            "default": _FP32,
            "AMP": ["AMP.PRESET=paddle"],
            "AMP, accumulation": ["AMP.PRESET=paddle", "TRAIN.ACCUM_ITER=10"],
        },
        {"loss": _mean("loss", ".3f"), "total time": _mean("seconds", ".3f", " sec"), "speedup": _speedup},
        [["1.250|2.943 sec|-", "1.236|1.222 sec|2.408", "1.251|1.006 sec|2.925"]],
        ["-batch_size=512"],
        {"rounds": 1, "steps": 50, "epochs": [5], "width": 4096},
    ),
    "caltech256": Document(
        {
            f"{size}, {name}": [f"DATA.BATCH_SIZE={size}", f"AMP.PRESET={preset}"]
            for size in (256, 512)
            for name, preset in (("fp32", "fp32"), ("AMP", "torch"))
        },
        SPEED_COLUMNS,
        [[]],
        ["-cfg=configs/resnet50_caltech256.yaml", "-opts", "MODEL.PRETRAINED=null"],
        {"rounds": 1, "memory_gb": 6.0},
    ),
}
