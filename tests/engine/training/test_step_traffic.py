"""Budgets of the memory traffic of a step on a GPU, ViT-B/16 at 224 pixels, 256 images; `pytest -s` prints them."""

import pytest
import torch
from fake_gpu import backward
from step_traffic import traffic_of_step

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
    "fp32, dropout": (DROPOUT, 321, 185.1),
    "O1, dropout": ([*BF16, *DROPOUT], 597, 134.7),
    "O2, dropout": ([*BF16, *DROPOUT, "AMP.LEVEL=O2"], 325, 98.2),
    "O1, drop-path 0.2": ([*BF16, "MODEL.DROPPATH=0.2"], 619, 114.5),
    "O2, drop-path 0.2": ([*BF16, "MODEL.DROPPATH=0.2", "AMP.LEVEL=O2"], 345, 76.7),
    "O1, drop-path 0.4": ([*BF16, "MODEL.DROPPATH=0.4"], 659, 116.3),
    "O1, EMA": ([*BF16, "TRAIN.MODEL_EMA=true"], 525, 107.1),
    "O1, 2 micro-steps": ([*BF16, "TRAIN.ACCUM_ITER=2"], 1177, 210.1),
}


@pytest.mark.parametrize("variant", BUDGETS)
def test_the_traffic_of_a_step_stays_within_its_budget(variant):
    options, max_ops, max_gigabytes = BUDGETS[variant]
    traffic = traffic_of_step(*VIT_B, *options)
    print(f"\n| {variant} | {traffic.ops.total()} | {traffic.gigabytes:.1f} |", end="")
    assert traffic.ops.total() <= max_ops
    assert traffic.gigabytes <= max_gigabytes + 0.05


def test_the_backward_pass_of_the_counter_equals_torchs():
    model = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0)
    x = torch.randn(3, 5, 8, generator=torch.Generator().manual_seed(0))
    model(x).square().sum().backward()
    expected = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    backward(model(x).square().sum(), torch.ones(()))
    assert all(torch.equal(parameter.grad, expected[name]) for name, parameter in model.named_parameters())
