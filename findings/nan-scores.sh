#!/usr/bin/env bash
# pytorch-ignite 0.5.5, timm 1.0.31, torch 2.14.1 (5 GB are downloaded)
# Subject: training
# Behaviour: one epoch with the score NaN ends the comparison of epochs: EarlyStopping() of ignite takes NaN for the
#   best score, and never stops afterwards; CheckpointSaver() of timm keeps a first NaN in model_best.pth.tar for the
#   whole run, and after a later NaN no better epoch is kept as soon as max_history files are there. There is no
#   warning.
# Expected: NaN is worse than each number.
# Why it matters: a validation in half precision overflows in one epoch, or an AUROC has no value since a class has no
#   image. The run then trains to its last epoch, or its best weights are those of the bad epoch.
# Instead: a score of minus infinity where it is NaN
# Last lines of a run on 2026-11-30 (accuracies of the epochs; patience 2; max_history 2):
#   pytorch-ignite 0.5.5: 0.9 0.8 0.7 0.6 0.5 stops after 3 epochs, 0.9 nan nan nan nan after 5
#   timm 1.0.31: nan 0.5 0.7 0.9, best epoch 0; 0.5 nan 0.7 0.9, best epoch 0; 0.5 -inf 0.7 0.9, best epoch 3
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq pytorch-ignite==0.5.5 timm==1.0.31 torch==2.14.1 torchvision==0.29.1 numpy==2.4.6
OMP_NUM_THREADS=1 venv/bin/python - 2> errors.txt <<'PYTHON' || { cat errors.txt; exit 1; }
import os
from math import inf, nan

import ignite
import timm
import torch
from ignite.engine import Engine, Events
from ignite.handlers import EarlyStopping
from timm.utils import CheckpointSaver


def epochs_of_ignite(scores):
    trainer = Engine(lambda engine, batch: None)
    remaining = iter(scores)
    stopping = EarlyStopping(patience=2, score_function=lambda engine: next(remaining), trainer=trainer)
    trainer.add_event_handler(Events.EPOCH_COMPLETED, stopping)
    return trainer.run([0], max_epochs=len(scores)).epoch


def best_of_timm(name, scores):
    os.mkdir(name)
    model = torch.nn.Linear(1, 1)
    saver = CheckpointSaver(model, torch.optim.SGD(model.parameters(), 0.1), checkpoint_dir=name, max_history=2)
    for epoch, score in enumerate(scores):
        saver.save_checkpoint(epoch, metric=score)
    return torch.load(f"{name}/model_best.pth.tar", weights_only=False)["epoch"]


def text(scores):
    return " ".join(map(str, scores))


falling, undefined, infinite = [0.9, 0.8, 0.7, 0.6, 0.5], [0.9, nan, nan, nan, nan], [0.9, -inf, -inf, -inf, -inf]
ended = [epochs_of_ignite(scores) for scores in (falling, undefined, infinite)]
print(
    f"pytorch-ignite {ignite.__version__}: {text(falling)} stops after {ended[0]} epochs, "
    f"{text(undefined)} after {ended[1]}"
)
runs = {"first": [nan, 0.5, 0.7, 0.9], "later": [0.5, nan, 0.7, 0.9], "infinite": [0.5, -inf, 0.7, 0.9]}
best = {name: best_of_timm(name, scores) for name, scores in runs.items()}
lines = [f"{text(runs[name])}, best epoch {epoch}" for name, epoch in best.items()]
print(f"timm {timm.__version__}: {'; '.join(lines)}")
assert ended == [3, 5, 3] and [*best.values()] == [0, 0, 3]
PYTHON
