#!/usr/bin/env bash
# torch 2.14.1 (5 GB are downloaded), torchvision 0.29.1
# Subject: training
# Behaviour: cross_entropy(weight=...) divides by the sum of the weights of the labels if these are numbers, and by the
#   number of images if they are probabilities. Numbers and their one-hot rows, which are the same labels, have two
#   losses and two gradients.
# Expected: one loss: one_hot() is another way to write the labels.
# Why it matters: mixup and CutMix make probabilities. With them the gradient is as many times larger as the mean weight
#   of the batch, also where they mix images of one class; a batch of the rare class alone has the loss of unweighted
#   images in one case, and its whole weight in the other. Rates and clipping that fit one are wrong for the other.
# Instead: `reduction="sum"`, divided by one stated number
# Last lines of a run on 2026-12-01 (weights 1 and 10; gradients of the logits 0, 0):
#   torch 2.14.1: labels 0, 0, 0, 1: loss 0.693, as one-hot rows 2.253; largest gradient 0.385, 1.250
#   labels 1, 1: loss 0.693, as one-hot rows 6.931; by sums 13.863, 13.863
#   CutMix of torchvision 0.29.1 at alpha 1e-9, labels 1, 1: 6.931
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq torch==2.14.1 torchvision==0.29.1 numpy==2.4.6
OMP_NUM_THREADS=1 venv/bin/python - 2> errors.txt <<'PYTHON' || { cat errors.txt; exit 1; }
import torch
import torch.nn.functional as F
import torchvision
from torchvision.transforms import v2

WEIGHTS = torch.tensor([1.0, 10.0])


def loss_of(labels, **options):
    """The loss of logits that are 0, and its largest derivative."""
    logits = torch.zeros(len(labels), 2, requires_grad=True)
    loss = F.cross_entropy(logits, labels, weight=WEIGHTS, **options)
    loss.backward()
    return loss.item(), logits.grad.abs().max().item()


def both(numbers, **options):
    labels = torch.tensor(numbers)
    return loss_of(labels, **options), loss_of(F.one_hot(labels, 2).float(), **options)


common, common_rows = both([0, 0, 0, 1])
rare, rare_rows = both([1, 1])
sums = both([1, 1], reduction="sum")
_, mixed = v2.CutMix(num_classes=2, alpha=1e-9)(torch.zeros(2, 3, 8, 8), torch.tensor([1, 1]))
cut = loss_of(mixed)[0]
print(
    f"torch {torch.__version__.split('+')[0]}: labels 0, 0, 0, 1: loss {common[0]:.3f}, as one-hot rows "
    f"{common_rows[0]:.3f}; largest gradient {common[1]:.3f}, {common_rows[1]:.3f}"
)
print(
    f"labels 1, 1: loss {rare[0]:.3f}, as one-hot rows {rare_rows[0]:.3f}; by sums {sums[0][0]:.3f}, {sums[1][0]:.3f}"
)
version = torchvision.__version__.split("+")[0]
print(f"CutMix of torchvision {version} at alpha 1e-9, labels 1, 1: {cut:.3f}")
assert abs(common_rows[0] / common[0] - 13 / 4) < 1e-4 and abs(common_rows[1] / common[1] - 13 / 4) < 1e-4
assert abs(rare_rows[0] / rare[0] - 10) < 1e-4 and abs(cut / rare[0] - 10) < 1e-4 and sums[0] == sums[1]
PYTHON
