#!/usr/bin/env bash
# torch 2.14.1 (5 GB are downloaded), optax 0.2.8, jax 0.10.2
# Subject: training
# Behaviour: ReduceLROnPlateau() of torch and reduce_on_plateau() of optax never see a plateau in a negative score that
#   does not change: a loss has to be below best * (1 - 0.0001), which lies above the best one if that is negative, so
#   that equal and slightly worse epochs are new best ones. With mode="max" of torch it is the same.
# Expected: after `patience` epochs without progress the rate falls, whatever the sign of the score.
# Why it matters: a loss as -accuracy, a log-likelihood, a distillation by cosine, or a kappa below 0 trains to its end
#   with the first rate. The same run with 1 - accuracy is decayed.
# Instead: `threshold_mode="abs"` of torch, `rtol=0, atol=1e-4` of optax, or a score above 0
# Last lines of a run on 2026-12-01 (20 epochs, patience 2, factor 0.1; the rate at the end by the first rate):
#   torch 2.14.1: loss 0.9 in all epochs 1e-06, -0.9 1, rising from -0.9 to -0.899 1; max of -0.9 1; abs, -0.9 1e-06
#   optax 0.2.8: loss 0.9 in all epochs 1e-09, -0.9 1, rising from -0.9 to -0.899 1; atol, -0.9 1e-09
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq torch==2.14.1 optax==0.2.8 jax==0.10.2 numpy==2.4.6
OMP_NUM_THREADS=1 venv/bin/python -W ignore - 2> errors.txt <<'PYTHON' || { cat errors.txt; exit 1; }
import jax.numpy as jnp
import optax
import torch
from optax.contrib import reduce_on_plateau
from torch.optim.lr_scheduler import ReduceLROnPlateau

EPOCHS = 20
RISING = [-0.9 + 0.001 * epoch / EPOCHS for epoch in range(EPOCHS)]


def by_torch(scores, **options):
    """The last learning rate; the first one is 1."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], 1.0)
    schedule = ReduceLROnPlateau(optimizer, factor=0.1, patience=2, **options)
    for score in scores:
        schedule.step(score)
    return round(optimizer.param_groups[0]["lr"], 9)


def by_optax(scores, **options):
    schedule = reduce_on_plateau(factor=0.1, patience=2, **options)
    state = schedule.init(jnp.zeros(1))
    for score in scores:
        _, state = schedule.update(jnp.ones(1), state, value=jnp.float32(score))
    return round(float(state.scale), 9)


def text(rates):
    return f"loss 0.9 in all epochs {rates[0]:g}, -0.9 {rates[1]:g}, rising from -0.9 to -0.899 {rates[2]:g}"


runs = [0.9] * EPOCHS, [-0.9] * EPOCHS, RISING
torch_rates, optax_rates = [*map(by_torch, runs)], [*map(by_optax, runs)]
largest = by_torch(runs[1], mode="max")
cured = by_torch(runs[1], threshold_mode="abs"), by_optax(runs[1], rtol=0, atol=1e-4)
version = torch.__version__.split("+")[0]
print(f"torch {version}: {text(torch_rates)}; max of -0.9 {largest:g}; abs, -0.9 {cured[0]:g}")
print(f"optax {optax.__version__}: {text(optax_rates)}; atol, -0.9 {cured[1]:g}")
for rates, after in ((torch_rates, cured[0]), (optax_rates, cured[1])):
    assert rates[0] < 1e-3 and rates[1:] == [1, 1] and after == rates[0]
assert largest == 1 and by_torch(runs[0], mode="max") == torch_rates[0]
PYTHON
