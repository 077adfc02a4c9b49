"""Budgets of the memory traffic of a step on a GPU, ViT-B/16 at 224 pixels, 256 images; `pytest -s` prints them.

Ops and bytes besides the matrix products, counted without a GPU.
"""

from itertools import repeat

import pytest
import torch
from fake_gpu import CONTEXT, GPU, fake_gpu, training_loop

from configs.reading.command_line import parse_command_line
from datasets.batch import Batch
from engine.training.batch_size import build_state
from scripts.benchmarks.gpu.machine import TrafficCounter


def traffic_of_step(*options: str) -> TrafficCounter:
    """The second optimizer step of a run with these `options`."""
    config = parse_command_line(["-dataset=fake", "-opts", *options]).config
    with fake_gpu():
        data = config.data
        images = torch.zeros(data.batch_size, 3, data.image_size, data.image_size, dtype=torch.uint8, device=GPU)
        batch = Batch(images, torch.zeros(data.batch_size, dtype=torch.int64, device=GPU), data.batch_size)
        train = training_loop(build_state(config, CONTEXT), repeat(batch), CONTEXT)
        train(1)  # creates the state of the optimizer
        with TrafficCounter(GPU) as counter:
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
    gigabytes = traffic.num_bytes.total() / 1e9
    print(f"\n| {variant} | {traffic.ops.total()} | {gigabytes:.1f} |", end="")
    assert traffic.ops.total() <= max_ops
    assert gigabytes <= max_gigabytes + 0.05
