#!/usr/bin/env bash
# torch 2.14.1 (5 GB are downloaded)
# Subject: training
# Behaviour: update_bn() of torch.optim.swa_utils, which measures the statistics of batch norms for averaged weights,
#   takes the mean over the batches: two images in the last batch count as much as the 32 of each batch before. It runs
#   the model in train(), so that dropout before a batch norm is on, and the variance that it measures is that of
#   training.
# Expected: mean and variance of all images, of the model as it is evaluated.
# Why it matters: averaged weights of a network with batch norms need this call. Where the last batch is small and
#   unlike the others, as the end of a sorted list is, the evaluation normalizes by statistics that no set of images
#   has.
# Instead: a loader with `drop_last=True` that shuffles, and dropout modules in `eval()`
# Last lines of a run on 2026-11-30 (mean and variance; 64 images of mean 0, 2 of mean 100, batches of 32):
#   torch 2.14.1, update_bn 33.52 0.76; all images 3.13 301.08
#   behind Dropout(0.5): variance 2.99, in eval() 1.00
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq torch==2.14.1 numpy==2.4.6
OMP_NUM_THREADS=1 venv/bin/python - 2> errors.txt <<'PYTHON' || { cat errors.txt; exit 1; }
import torch
from torch import nn
from torch.optim.swa_utils import update_bn

generator = torch.Generator().manual_seed(0)


def measured(images, batch_size, *layers):
    model = nn.Sequential(*layers, nn.BatchNorm1d(1)).eval()
    update_bn(torch.utils.data.DataLoader(images, batch_size=batch_size), model)
    assert not model.training
    return model[-1].running_mean.item(), model[-1].running_var.item()


def text(figures):
    return " ".join(f"{figure:.2f}" for figure in figures)


near, far = torch.randn(64, 1, generator=generator), torch.randn(2, 1, generator=generator) + 100
images = torch.cat([near, far])
mean, variance = measured(images, 32)
whole = images.mean().item(), images.var().item()
print(f"torch {torch.__version__.split('+')[0]}, update_bn {text([mean, variance])}; all images {text(whole)}")
assert abs(mean - (near[:32].mean() + near[32:].mean() + far.mean()) / 3) < 1e-4
assert mean > 30 and variance < 2 and whole[0] < 4 and whole[1] > 200
assert torch.allclose(torch.tensor(measured(images, 66)), torch.tensor(whole), rtol=1e-4)

torch.manual_seed(0)
images = torch.randn(6400, 1, generator=generator) + 1
_, dropped = measured(images, 64, nn.Dropout(0.5))
print(f"behind Dropout(0.5): variance {dropped:.2f}, in eval() {images.var().item():.2f}")
assert dropped > 2.5 and images.var() < 1.1
PYTHON
