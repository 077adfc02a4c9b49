"""Tables of three documents on AMP: their settings, labels and published figures.

PaddleViT: docs/paddlevit-amp.md, V100. Colossal-AI: features/amp of hpcaitech/ColossalAI-Examples, GPU not named; it
calls images/s "batch/s". Its torch AMP and Apex O1 are O1 here; its naive AMP keeps float32 master weights: O2. Paddle:
amp_en.md of PaddlePaddle/docs before commit 656956181, GPU not named; `paddle_net.py` trains its network.
"""

import statistics
from collections.abc import Callable
from typing import Any, NamedTuple

from scripts.benchmarks.turns import SPEED, Figures, data_wait, figures_table

Columns = dict[str, Callable[[dict[str, Any]], str]]  # as of figures_table


class Document(NamedTuple):
    """rows: label -> fp32 or level. flags: of main_single_gpu.py; the user's replace them.

    published: on random images and from the loader.
    """

    rows: dict[str, str]
    flags: list[str]
    published: tuple[Figures, Figures]
    columns: Columns


def published_table(figures: Figures, published: Figures, columns: Columns) -> str:
    """Each row is followed by the published one."""
    rows: Figures = {}
    for row in figures:
        for name, ones in ((row, figures), (f"{row}, published", published)):
            rows[name] = ones[row] | {"baseline": next(iter(ones.values())).get("seconds")}
    return figures_table(rows, columns)


def repeat(number: int) -> Callable[[dict[str, Any]], str]:
    """The cell of one repeat."""
    return lambda one: "".join(f"{value:.4g}s" for value in one["seconds"][number : number + 1])


def speedup(one: dict[str, Any]) -> str:
    """The ratio of the averages; '-' for the first row."""
    first, seconds = one["baseline"], one["seconds"]
    return f"{statistics.mean(first) / statistics.mean(seconds):.3f}" if first not in (None, seconds) else "-"


PADDLEVIT: Columns = {
    name: repeat(index) for index, name in enumerate(["1st", "2nd", "3rd", "4th", "5th", "6th", "7th"])
}
PADDLEVIT |= {"Average": lambda one: f"{statistics.mean(one['seconds']):.2f}s", "Speedup": speedup}
COLOSSALAI: Columns = {
    "RAM/GB": lambda one: f"{max(one['peak_memory_bytes']) / 1e9:.1f}",
    "Iteration/s": lambda one: f"{100 / statistics.mean(one['seconds']):.2f}",
    "throughput (batch/s)": lambda one: f"{statistics.mean(one[SPEED]):.1f}",
    "largest batch size": lambda one: str(one.get("largest_batch_size", "")),
    "its throughput": lambda one: (
        f"{one['largest_images_per_second']:.1f}" if "largest_images_per_second" in one else ""
    ),
    "data wait": data_wait,
}
PADDLE: Columns = {
    "loss": lambda one: f"{one['loss'][0]:.3f}",
    "total time": lambda one: f"{one['seconds'][0]:.3f} sec",
    "speedup": speedup,
}
_VIT_B = "-cfg=configs/vit_base_patch16_224.yaml"
_SGD = (
    "TRAIN.OPTIMIZER.NAME=momentum",
    "TRAIN.OPTIMIZER.MOMENTUM=0.0",
    "TRAIN.WEIGHT_DECAY=0.1",
    "TRAIN.GRAD_CLIP=1.0",
)
_ROWS = {"FP32 training": "fp32", "AMP_TYPE.TORCH": "O1", "AMP_TYPE.NAIVE": "O2", "AMP_TYPE.APEX O1": "O1"}


def _colossalai(*rows: tuple[float, float]) -> Figures:
    """rows: peak memory (GB), images/s at batch size 128."""
    return {
        row: {"peak_memory_bytes": [gigabytes * 1e9], SPEED: [speed], "seconds": [12800 / speed]}
        for row, (gigabytes, speed) in zip(_ROWS, rows, strict=True)
    }


_OFF_ON: Figures = {"AMP off": {"seconds": [78, 78, 79, 78, 78, 79, 78]}, "AMP on": {"seconds": [42, *[41] * 6]}}
DOCUMENTS = {
    "paddlevit": Document(
        {"AMP off": "fp32", "AMP on": "O1"}, [_VIT_B, "-batch_size=64"], (_OFF_ON, _OFF_ON), PADDLEVIT
    ),
    "colossalai": Document(
        _ROWS,
        [_VIT_B, "-batch_size=128", "-opts", "MODEL.DROPOUT=0.1", "MODEL.ATTENTION_DROPOUT=0.0", *_SGD],
        (
            _colossalai((27.2, 377.6), (20.5, 416.0), (17.0, 451.8), (20.2, 393.0)),
            _colossalai((25.0, 107.5), (19.0, 116.5), (14.8, 119.0), (17.9, 115.2)),
        ),
        COLOSSALAI,
    ),
}
PADDLE_PUBLISHED: Figures = {
    "default": {"loss": [1.250], "seconds": [2.943]},
    "AMP": {"loss": [1.236], "seconds": [1.222]},
    "AMP, accumulation": {"loss": [1.251], "seconds": [1.006]},
}
