"""Tables of documents on AMP: their settings, labels and published figures, and the network of Paddle's tutorial.

PaddleViT: docs/paddlevit-amp.md, V100. Colossal-AI: features/amp of hpcaitech/ColossalAI-Examples, GPU not named; it
calls images/s "batch/s". Paddle: amp_en.md of PaddlePaddle/docs before commit 656956181, GPU not named; `train_linears`
trains its network. Caltech-256: a PyTorch tutorial, GPU with 6 GB; batch size 512 fits with AMP only.
"""

import statistics
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from configs.schema import Config
from engine.precision.policy import Precision
from scripts.benchmarks.turns import SPEED, Columns, mean_of, median_and_range, memory, speed
from utils.device import timed


class Document(NamedTuple):
    """published: the rows of `figures_table`, on random images and, if they differ, with -loader.

    flags: of main_single_gpu.py, and defaults: of benchmark_amp.py; the user's replace them.
    """

    rows: dict[str, list[str]]  # label -> -opts
    columns: Columns
    published: list[list[str]]
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
_COLOSSALAI: Columns = {
    "RAM/GB": mean_of("peak_memory_bytes", ".1f", scale=1e9),
    "Iteration/s": lambda one: f"{100 / statistics.mean(one['seconds']):.2f}",
    "throughput (batch/s)": mean_of(SPEED, ".1f"),
    "largest batch size": lambda one: ">= " * ("at_least" in one) + mean_of("largest_batch_size", ".0f")(one),
    "its throughput": mean_of("largest_images_per_second", ".1f"),
    "data wait": mean_of("data_wait_share", ".0%"),
}
_FP32, _VIT_B = ["AMP.PRESET=fp32"], "-cfg=configs/vit_base_patch16_224.yaml"
_SGD = ["TRAIN.OPTIMIZER.NAME=momentum", "TRAIN.OPTIMIZER.MOMENTUM=0.0", "TRAIN.WEIGHT_DECAY=0.1"]
_OF_COLOSSALAI = ["-opts", "MODEL.DROPOUT=0.1", "MODEL.ATTENTION_DROPOUT=0.0", "TRAIN.GRAD_CLIP=1.0", *_SGD]
_PRESETS = {"AMP_TYPE.TORCH": "torch", "AMP_TYPE.NAIVE": "naive", "AMP_TYPE.APEX O1": "apex_o1"}
_AMP = ["AMP.PRESET=paddle"]

DOCUMENTS = {
    "paddlevit": Document(
        rows={"AMP off": _FP32, "AMP on": ["AMP.PRESET=torch"]},
        columns=_REPEATS | {"Average": mean_of("seconds", ".2f", "s"), "Speedup": _speedup},
        published=[["78s|78s|79s|78s|78s|79s|78s|78.29s|-", "42s|41s|41s|41s|41s|41s|41s|41.14s|1.903"]],
        flags=[_VIT_B, "-batch_size=64"],
        defaults={"rounds": 7},
    ),
    "colossalai": Document(
        rows={"FP32 training": _FP32} | {row: [f"AMP.PRESET={preset}"] for row, preset in _PRESETS.items()},
        columns=_COLOSSALAI,
        published=[
            ["27.2|2.95|377.6|||", "20.5|3.25|416.0|||", "17.0|3.53|451.8|||", "20.2|3.07|393.0|||"],
            ["25.0|0.84|107.5|||", "19.0|0.91|116.5|||", "14.8|0.93|119.0|||", "17.9|0.90|115.2|||"],
        ],
        flags=[_VIT_B, "-batch_size=128", *_OF_COLOSSALAI],
        defaults={"rounds": 1},
    ),
    "paddle": Document(
        rows={"default": _FP32, "AMP": _AMP, "AMP, accumulation": [*_AMP, "TRAIN.ACCUM_ITER=10"]},
        columns={"loss": mean_of("loss", ".3f"), "total time": mean_of("seconds", ".3f", " sec"), "speedup": _speedup},
        published=[["1.250|2.943 sec|-", "1.236|1.222 sec|2.408", "1.251|1.006 sec|2.925"]],
        flags=["-batch_size=512"],
        defaults={"rounds": 1, "steps": 50, "epochs": [5], "width": 4096},
    ),
    "caltech256": Document(
        rows={
            f"{size}, {name}": [f"DATA.BATCH_SIZE={size}", f"AMP.PRESET={preset}"]
            for size in (256, 512)
            for name, preset in (("fp32", "fp32"), ("AMP", "torch"))
        },
        columns=SPEED_COLUMNS,
        published=[[]],
        flags=["-cfg=configs/resnet50_caltech256.yaml", "-opts", "MODEL.PRETRAINED=null"],
        defaults={"rounds": 1, "memory_gb": 6.0},
    ),
}


def train_linears(config: Config, device: torch.device, batches: int, epochs: int, width: int) -> dict[str, float]:
    """Trains the three linear layers of Paddle's tutorial with SGD. Equal weights and batches in each precision.

    Args:
        config: AMP, BATCH_SIZE and ACCUM_ITER, over which losses are summed, not averaged.
        batches: different ones. width: features of each layer.

    Returns:
        The loss (mean squared error) of the last batch, and the seconds of all epochs.
    """
    precision, generator = Precision(config.amp, device), torch.Generator().manual_seed(0)
    linears = [nn.Linear(width, width) for _ in range(3)]
    for linear in linears:  # Paddle's initial values
        nn.init.xavier_uniform_(linear.weight, generator=generator)
        nn.init.zeros_(linear.bias)
    net = nn.Sequential(linears[0], nn.ReLU(), linears[1], nn.ReLU(), linears[2]).to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-4, fused=True)
    data = torch.randn(batches, 2, config.data.batch_size, width, generator=generator).to(device)
    loss = torch.zeros((), device=device)

    def run() -> None:
        for step in range(epochs * batches):
            inputs, targets = data[step % batches]
            with precision.autocast():
                output = F.mse_loss(net(inputs), targets)
            loss.copy_(output.detach())
            precision.scaler.backward(output, samples=1)
            if (step + 1) % config.train.accum_iter == 0:
                precision.scaler.step(optimizer)
                precision.scaler.update()
                optimizer.zero_grad(set_to_none=True)

    seconds = timed(run, device)
    return {"loss": loss.item(), "seconds": seconds}
