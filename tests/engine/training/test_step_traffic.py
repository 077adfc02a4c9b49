"""Budgets of the memory traffic of a step on a GPU, ViT-B/16 at 224 pixels, 256 images; `pytest -s` prints them.

Ops and bytes besides the matrix products, counted without a GPU.
"""

from collections import Counter
from itertools import repeat
from typing import Any

import pytest
import torch
from fake_gpu import CONTEXT, GPU, fake_gpu, training_loop

from configs.reading.command_line import parse_command_line
from datasets.batch import Batch
from engine.training.batch_size import build_state
from utils.torch_compat import DispatchMode, op_name, returns_view, tree_leaves

_MATRIX_PRODUCTS = ("mm", "addmm", "bmm", "convolution", "convolution_backward")
_FREE = ("device", "empty", "new_empty", "_unsafe_view", "_record_function", "lift_fresh")
_OVERWRITES = ("copy_", "_foreach_copy_", "fill_", "zero_", "random_", "uniform_", "normal_")


class TrafficCounter(DispatchMode):
    """The ops inside the context that are neither matrix products nor views, and the bytes that they move, by op.

    An op reads its inputs once and writes its outputs once. The fused attention kernels count, too.
    """

    def __init__(self) -> None:
        super().__init__()
        self.ops: Counter[str] = Counter()
        self.num_bytes: Counter[str] = Counter()

    @property
    def gigabytes(self) -> float:
        return self.num_bytes.total() / 1e9

    def __torch_dispatch__(self, op: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        result = op(*args, **(kwargs or {}))
        name = op_name(op)
        if not (returns_view(op) or name.startswith(_FREE) or name in _MATRIX_PRODUCTS):
            moved = sum(map(_bytes_of, tree_leaves(_moved(op, name, args, kwargs or {}, result))))
            self.ops[name] += bool(moved)
            self.num_bytes[name] += moved
        return result


def _moved(op: Any, name: str, args: tuple, kwargs: dict, result: Any) -> list[Any]:
    arguments = op._schema.arguments
    values = {argument.name: value for argument, value in zip(arguments, args, strict=False)} | kwargs
    is_written = {argument.name: bool(argument.alias_info and argument.alias_info.is_write) for argument in arguments}
    if name == "_fused_sgd_" and values.get("grad_scale") is None:
        is_written["grads"] = False  # the kernel stores them if it unscales them
    written = [value for name, value in values.items() if is_written[name]] or result
    read = [value for key, value in values.items() if not (is_written[key] and name in _OVERWRITES)]
    return [read, written]


def _bytes_of(value: Any) -> int:
    """The bytes of the distinct elements of a tensor on the GPU."""
    if not isinstance(value, torch.Tensor) or value.device != GPU:
        return 0
    sizes = [size for size, stride in zip(value.shape, value.stride(), strict=True) if stride]
    return torch.Size(sizes).numel() * value.itemsize


def traffic_of_step(*options: str) -> TrafficCounter:
    """The second optimizer step of a run with these `options`."""
    config = parse_command_line(["-dataset=fake", "-opts", *options]).config
    with fake_gpu():
        data = config.data
        images = torch.zeros(data.batch_size, 3, data.image_size, data.image_size, dtype=torch.uint8, device=GPU)
        batch = Batch(images, torch.zeros(data.batch_size, dtype=torch.int64, device=GPU), data.batch_size)
        train = training_loop(build_state(config, CONTEXT), repeat(batch), CONTEXT)
        train(1)  # creates the state of the optimizer
        with TrafficCounter() as counter:
            train(1)
    return counter


VIT_B = [
    "MODEL.EMBED_DIM=768", "MODEL.DEPTH=12", "MODEL.NUM_HEADS=12", "MODEL.PATCH_SIZE=16", "MODEL.NUM_CLASSES=1000",
    "DATA.IMAGE_SIZE=224", "DATA.BATCH_SIZE=256", "TRAIN.GRAD_CLIP=1.0", "TRAIN.MIXUP_ALPHA=0", "TRAIN.CUTMIX_ALPHA=0",
]  # fmt: skip
BF16 = ["AMP.ENABLED=true", "AMP.DTYPE=bfloat16"]
DROPOUT = ["MODEL.DROPOUT=0.1", "MODEL.ATTENTION_DROPOUT=0.1"]  # of configs/vit_imagenet.yaml
BUDGETS = {  # ops, GB
    "fp32": ([], 247, 134.2),
    "O1": (BF16, 523, 106.1),
    "O2": ([*BF16, "AMP.LEVEL=O2"], 251, 69.9),
    "O3": ([*BF16, "AMP.LEVEL=O3"], 255, 72.6),
    "O1, dropout": ([*BF16, *DROPOUT], 597, 134.7),
    "O2, dropout": ([*BF16, *DROPOUT, "AMP.LEVEL=O2"], 325, 98.2),
    "O1, drop-path 0.2": ([*BF16, "MODEL.DROPPATH=0.2"], 619, 114.5),
    "O2, drop-path 0.2": ([*BF16, "MODEL.DROPPATH=0.2", "AMP.LEVEL=O2"], 345, 76.7),
    "O1, bf16_stream": (["AMP.PRESET=bf16_stream"], 552, 70.4),
    "O1, EMA": ([*BF16, "TRAIN.MODEL_EMA=true"], 526, 107.1),
}


@pytest.mark.parametrize("variant", BUDGETS)
def test_the_traffic_of_a_step_stays_within_its_budget(variant):
    options, max_ops, max_gigabytes = BUDGETS[variant]
    traffic = traffic_of_step(*VIT_B, *options)
    print(f"\n| {variant} | {traffic.ops.total()} | {traffic.gigabytes:.1f} |", end="")
    assert traffic.ops.total() <= max_ops
    assert traffic.gigabytes <= max_gigabytes + 0.05
