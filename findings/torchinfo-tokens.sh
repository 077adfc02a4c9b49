#!/usr/bin/env bash
# torchinfo 1.8.0, timm 1.0.31, torch 2.14.1 (5 GB are downloaded)
# Subject: training
# Behaviour: "Total mult-adds" of summary() has the weights of a linear layer once per image, however many tokens it is
#   applied to, and no attention. Convolutions count for each position. ViT-S has 0.08 G with patches of 16 and of 8.
# Expected: as torch's FlopCounterMode: 4.2 G and 16.7 G (two FLOPs are one multiply-add).
# Why it matters: a comparison by this column says that a ViT costs a fiftieth of its true work, and that the patch size
#   is free; a convolutional network beside it is counted in full.
# Instead: `torch.utils.flop_counter.FlopCounterMode`
# Last lines of a run on 2026-11-29 (G multiply-adds at 224 pixels):
#   torchinfo 1.8.0: Linear on 1 token 147840, on 197 tokens 147840; Conv2d on 196 positions 28976640
#   vit_small_patch16_224: torchinfo 0.08, torch 2.14.1 4.24; vit_small_patch8_224: 0.08, 16.73; resnet50: 4.09, 4.09
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq torchinfo==1.8.0 timm==1.0.31 torch==2.14.1
OMP_NUM_THREADS=1 venv/bin/python - 2> errors.txt <<'PYTHON' || { cat errors.txt; exit 1; }
import timm
import torch
import torchinfo
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

IMAGE = (1, 3, 224, 224)


def by_torchinfo(model, size):
    return torchinfo.summary(model, input_size=size, verbose=0).total_mult_adds


def counts(name):
    model = timm.create_model(name).eval()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(torch.zeros(IMAGE))
    return round(by_torchinfo(model, IMAGE) / 1e9, 2), round(counter.get_total_flops() / 2e9, 2)


linear, convolution = nn.Linear(384, 384), nn.Conv2d(384, 384, 1)
one, many = by_torchinfo(linear, (1, 1, 384)), by_torchinfo(linear, (1, 197, 384))
positions = by_torchinfo(convolution, (1, 384, 14, 14))
print(
    f"torchinfo {torchinfo.__version__}: Linear on 1 token {one}, on 197 tokens {many}; "
    f"Conv2d on 196 positions {positions}"
)
patch16, patch8, resnet = counts("vit_small_patch16_224"), counts("vit_small_patch8_224"), counts("resnet50")
print(
    f"vit_small_patch16_224: torchinfo {patch16[0]}, torch {torch.__version__.split('+')[0]} {patch16[1]}; "
    f"vit_small_patch8_224: {patch8[0]}, {patch8[1]}; resnet50: {resnet[0]}, {resnet[1]}"
)
assert one == many and positions == 196 * one
assert patch16 == (0.08, 4.24) and patch8 == (0.08, 16.73) and abs(resnet[0] - resnet[1]) < 0.02
PYTHON
