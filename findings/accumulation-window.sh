#!/usr/bin/env bash
# accelerate 1.15.0, lightning 2.6.6, torch 2.14.1 (5 GB are downloaded)
# Subject: training
# Behaviour: gradients of the last window of an epoch are too small if it has fewer batches than the others:
#   accumulate() of accelerate (gradient_accumulation_steps=4) and the Trainer of Lightning (accumulate_grad_batches=4)
#   make a step with the last two of six batches, and divide each loss by 4.
# Expected: the mean over the window, as for each other step.
# Why it matters: that step has half of the gradient, with one batch left a quarter, in each epoch, beside a full
#   weight decay. A data set shorter than a window trains with such steps alone: SGD has a fraction of its rate, and
#   clipping another limit.
# Instead: leave out the batches after the last full window
# Last lines of a run on 2026-11-30 (gradients of a mean loss, each batch has the gradient 1; six batches):
#   accelerate 1.15.0: 1.0, 0.5
#   lightning 2.6.6: 1.0, 0.5
#   eight batches: 1.0, 1.0 and 1.0, 1.0
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq accelerate==1.15.0 lightning==2.6.6 torch==2.14.1 numpy==2.4.6
OMP_NUM_THREADS=1 venv/bin/python -W ignore - 2> errors.txt <<'PYTHON' || { cat errors.txt; exit 1; }
import logging

import accelerate
import lightning
import torch
from torch.utils.data import DataLoader

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


def ones(batches):
    """Images of one value, in batches of two."""
    return DataLoader(torch.ones(2 * batches, 1), batch_size=2)


def by_accelerate(batches):
    accelerator = accelerate.Accelerator(gradient_accumulation_steps=4, cpu=True)
    model = torch.nn.Linear(1, 1, bias=False)
    model, optimizer, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.1), ones(batches))
    gradients = []
    for images in loader:
        with accelerator.accumulate(model):
            accelerator.backward(model(images).mean())
            if accelerator.sync_gradients:
                gradients.append(model.weight.grad.item())
            optimizer.step()
            optimizer.zero_grad()
    return gradients


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1, bias=False)
        self.gradients = []

    def training_step(self, images, index):
        return self.layer(images).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)

    def on_before_optimizer_step(self, optimizer):
        self.gradients.append(self.layer.weight.grad.item())


def by_lightning(batches):
    module = Module()
    quiet = dict.fromkeys(["logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"], False)
    lightning.Trainer(max_epochs=1, accelerator="cpu", accumulate_grad_batches=4, **quiet).fit(module, ones(batches))
    return module.gradients


def text(gradients):
    return ", ".join(map(str, gradients))


print(f"accelerate {accelerate.__version__}: {text(by_accelerate(6))}")
print(f"lightning {lightning.__version__}: {text(by_lightning(6))}")
print(f"eight batches: {text(by_accelerate(8))} and {text(by_lightning(8))}")
assert by_accelerate(6) == by_lightning(6) == [1, 0.5] and by_accelerate(8) == by_lightning(8) == [1, 1]
PYTHON
