#!/usr/bin/env bash
# torch 2.14.1 (5 GB are downloaded), skorch 1.4.0
# Subject: training
# Behaviour: StepLR, MultiStepLR and ConstantLR change the learning rate once more if a run is continued where they
#   had just changed it: built with last_epoch=N - 1 on an optimizer that was loaded after N epochs, they multiply the
#   loaded rate again. Nine other schedules of torch go on as without the stop. LRScheduler of skorch builds them this
#   way in each partial_fit(), so that one epoch a call decays twice as fast.
# Expected: the schedule of an uninterrupted run, as ExponentialLR and CosineAnnealingLR have it.
# Why it matters: runs are stopped and continued where the rate changes, after 30 or 60 epochs of 90, for example. The
#   rest is then trained with a tenth of the rate.
# Instead: `load_state_dict()` of the schedule in place of last_epoch
# Last lines of a run on 2026-11-30 (rates of StepLR(step_size=2) in 8 epochs):
#   torch 2.14.1, skorch 1.4.0: 1 1 0.1 0.1 0.01 0.01 0.001 0.001
#   continued after 4: 1 1 0.1 0.1 0.001 0.001 0.0001 0.0001, after 3: as above
#   skorch, 8 times partial_fit: 1 1 0.01 0.01 0.0001 0.0001 1e-06 1e-06
#   differ if continued: StepLR, MultiStepLR, ConstantLR
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq torch==2.14.1 skorch==1.4.0 numpy==2.4.6
OMP_NUM_THREADS=1 venv/bin/python -W ignore - 2> errors.txt <<'PYTHON' || { cat errors.txt; exit 1; }
import numpy as np
import skorch
import torch
from skorch.callbacks import LRScheduler
from torch.optim import lr_scheduler

EPOCHS = 8
OPTIONS = {
    "StepLR": {"step_size": 2},
    "MultiStepLR": {"milestones": [2, 4]},
    "ConstantLR": {"factor": 0.1, "total_iters": 4},
    "LinearLR": {"start_factor": 0.1, "total_iters": 4},
    "PolynomialLR": {"total_iters": EPOCHS},
    "ExponentialLR": {"gamma": 0.5},
    "LambdaLR": {"lr_lambda": lambda epoch: 1 / (1 + epoch)},
    "MultiplicativeLR": {"lr_lambda": lambda epoch: 0.5},
    "CosineAnnealingLR": {"T_max": EPOCHS},
    "CosineAnnealingWarmRestarts": {"T_0": 3},
    "CyclicLR": {"base_lr": 0.1, "max_lr": 1.0, "step_size_up": 3},
    "OneCycleLR": {"max_lr": 1.0, "total_steps": EPOCHS + 1},
}


def make(name, loaded=None, **options):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0, momentum=0.9)
    if loaded:
        optimizer.load_state_dict(loaded)
    return optimizer, getattr(lr_scheduler, name)(optimizer, **OPTIONS[name], **options)


def rates(optimizer, schedule, epochs):
    found = []
    for _ in range(epochs):
        found.append(float(f"{optimizer.param_groups[0]['lr']:.5g}"))
        optimizer.step()
        schedule.step()
    return found


def continued(name, stop, by_state=False):
    """The rates of a run that is stopped after `stop` epochs and continued from the state of its optimizer."""
    optimizer, schedule = make(name)
    first = rates(optimizer, schedule, stop)
    if by_state:
        other, after = make(name)
        other.load_state_dict(optimizer.state_dict())
        after.load_state_dict(schedule.state_dict())
    else:
        other, after = make(name, optimizer.state_dict(), last_epoch=stop - 1)
    return first + rates(other, after, EPOCHS - stop)


def by_skorch(calls):
    images = np.eye(4, dtype=np.float32)
    policy = LRScheduler(policy=lr_scheduler.StepLR, **OPTIONS["StepLR"])
    options = {"module__in_features": 4, "module__out_features": 2, "train_split": None, "verbose": 0}
    options |= {"criterion": torch.nn.CrossEntropyLoss, "callbacks": [("rate", policy)]}
    net = skorch.NeuralNetClassifier(torch.nn.Linear, lr=1.0, max_epochs=EPOCHS // calls, **options)
    for _ in range(calls):
        net.partial_fit(images, np.array([0, 1, 0, 1]))
    return [float(f"{rate:.5g}") for rate in net.history[:, "event_lr"]]


def text(found):
    return " ".join(f"{rate:g}" for rate in found)


whole = {name: rates(*make(name), EPOCHS) for name in OPTIONS}
one, two, eight = whole["StepLR"], by_skorch(2), by_skorch(8)
print(f"torch {torch.__version__.split('+')[0]}, skorch {skorch.__version__}: {text(one)}")
print(f"continued after 4: {text(continued('StepLR', 4))}, after 3: as above")
print(f"skorch, 8 times partial_fit: {text(eight)}")
differ = [name for name in OPTIONS if any(continued(name, stop) != whole[name] for stop in range(1, EPOCHS))]
print(f"differ if continued: {', '.join(differ)}")
assert differ == ["StepLR", "MultiStepLR", "ConstantLR"] and continued("StepLR", 3) == by_skorch(1) == one
assert two == continued("StepLR", 4) == [1, 1, 0.1, 0.1, 0.001, 0.001, 0.0001, 0.0001]
assert eight == [1, 1, 0.01, 0.01, 0.0001, 0.0001, 1e-6, 1e-6]
assert all(continued(name, stop, by_state=True) == whole[name] for name in differ for stop in range(1, EPOCHS))
PYTHON
