#!/usr/bin/env bash
# torch 2.14.1 (5 GB are downloaded)
# Subject: training
# Behaviour: AveragedModel keeps the average of the weights in the type of the model. With a model in bfloat16 and
#   get_ema_multi_avg_fn(0.999) the step, a thousandth of the distance, is below what bfloat16 resolves: the average
#   stays where it began, however long it runs. In float16 it stops halfway at 0.999, and stays at 0.9999.
# Expected: the average is held in float32, as optimizers in mixed precision hold the weights; or a warning.
# Why it matters: where a model is converted to bfloat16 as a whole, without autocast, the average that is evaluated and
#   published is the initialization, or the pretrained weights with a new head, at chance. It looks like an average that
#   is too slow, not like one that stands still.
# Instead: keep the average in float32
# Last lines of a run on 2026-11-29 (weights 1, then 2 for three times 1 / (1 - decay) steps; 1.95 is right):
#   torch 2.14.1, decay 0.99: float32 1.951, float16 1.951, bfloat16 1.609
#   decay 0.999: float32 1.950, float16 1.512, bfloat16 1.000
#   decay 0.9999: float32 1.950, float16 1.000, bfloat16 1.000
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq torch==2.14.1 numpy==2.4.6
OMP_NUM_THREADS=1 venv/bin/python - 2> errors.txt <<'PYTHON' || { cat errors.txt; exit 1; }
import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn


def average(kind, decay):
    model = torch.nn.Linear(8, 8).to(kind).requires_grad_(False)
    model.weight.fill_(1)
    averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay))
    averaged.update_parameters(model)  # the first update copies the weights
    model.weight.fill_(2)
    for _ in range(round(3 / (1 - decay))):
        averaged.update_parameters(model)
    return averaged.module.weight[0, 0].item()


kinds = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
averages = {decay: {name: average(kind, decay) for name, kind in kinds.items()} for decay in (0.99, 0.999, 0.9999)}
start = f"torch {torch.__version__.split('+')[0]}, "
for decay, by_kind in averages.items():
    print(f"{start}decay {decay}: " + ", ".join(f"{name} {value:.3f}" for name, value in by_kind.items()))
    start = ""
assert all(abs(by_kind["float32"] - 1.95) < 0.002 for by_kind in averages.values())
assert 1.5 < averages[0.99]["bfloat16"] < 1.8 and 1.4 < averages[0.999]["float16"] < 1.7
assert averages[0.999]["bfloat16"] == averages[0.9999]["bfloat16"] == averages[0.9999]["float16"] == 1
PYTHON
