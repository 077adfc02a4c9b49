#!/usr/bin/env bash
# torchdata 0.11.0, torch 2.14.1 (5 GB are downloaded)
# Subject: shards and loaders
# Behaviour: a StatefulDataLoader with shuffle=True, generator=... and no workers, which continues from its
#   state_dict(), gives the rest of the epoch as it would have been, and all later epochs in another order than the run
#   that was not interrupted. With workers (num_workers=1, 2) all epochs are the same.
# Expected: the same images in the same order to the end of the run, with and without workers.
# Why it matters: a resumed run is no longer the run that it continues, and a test of one resumed epoch does not show
#   it. A bug that appears at a step cannot be found again, and a comparison of two runs has another order as its
#   difference.
# Instead: seed the generator by the epoch before each epoch, or `num_workers=1`
# Last lines of a run on 2026-12-01 (eight images; saved after one batch of two; without an interruption, resumed):
#   torchdata 0.11.0: no workers, rest 732516, 732516; epoch 2 30427651, 75146203; epoch 3 23471065, 03461752
#   the same rest and epochs: no workers True, False, False; 1 worker True, True, True; 2 workers True, True, True
#   a generator that is seeded by the epoch, no workers: True, True, True
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq torchdata==0.11.0 torch==2.14.1 numpy==2.4.6
OMP_NUM_THREADS=1 venv/bin/python -W ignore - 2> errors.txt <<'PYTHON' || { cat errors.txt; exit 1; }
from importlib.metadata import version

import torch
from torchdata.stateful_dataloader import StatefulDataLoader


def loader_of(workers):
    generator = torch.Generator().manual_seed(0)
    return StatefulDataLoader(range(8), batch_size=2, shuffle=True, num_workers=workers, generator=generator)


def order(batches):
    return "".join(str(index) for batch in batches for index in batch.tolist())


def epochs(loader, first, by_epoch):
    """The rest of the first epoch, which is `first`, and the next two."""
    orders = [order(first)]
    for epoch in (1, 2):
        if by_epoch:
            loader.generator.manual_seed(epoch)
        orders.append(order(loader))
    return orders


def both(workers, by_epoch=False):
    """The epochs after the first batch of a run that goes on, and of one that continues from the state."""
    loader, other = loader_of(workers), loader_of(workers)
    batches = iter(loader)
    next(batches)
    other.load_state_dict(loader.state_dict())
    return epochs(loader, batches, by_epoch), epochs(other, other, by_epoch)


def equal(runs):
    return [one == other for one, other in zip(*runs, strict=True)]


def text(values):
    return ", ".join(map(str, values))


runs = {workers: both(workers) for workers in (0, 1, 2)}
named = zip(("rest", "epoch 2", "epoch 3"), *runs[0], strict=True)
print(f"torchdata {version('torchdata')}: no workers, {'; '.join(f'{name} {a}, {b}' for name, a, b in named)}")
print(
    f"the same rest and epochs: no workers {text(equal(runs[0]))}; 1 worker {text(equal(runs[1]))}; "
    f"2 workers {text(equal(runs[2]))}"
)
seeded = equal(both(0, by_epoch=True))
print(f"a generator that is seeded by the epoch, no workers: {text(seeded)}")
assert equal(runs[0]) == [True, False, False] and equal(runs[1]) == equal(runs[2]) == seeded == [True] * 3
PYTHON
