#!/usr/bin/env bash
# albumentations 2.0.8
# Subject: shards and loaders
# Behaviour: a Compose draws its random numbers from a generator of its own, which each forked process has a copy of:
#   all workers draw the same augmentations in the same order, and workers that are started again for the next epoch
#   draw those of the first epoch again. seed=None, the default, is the same.
# Expected: other draws in each worker and epoch: without a seed nothing asks for equal ones.
# Why it matters: eight workers give each crop, flip and brightness to eight images at the same places of their batches,
#   and an image that comes at the same place again is the same picture as before. torch's DataLoader seeds numpy and
#   random in its workers, not this generator (tried with torch 2.14.1: equal, too). Later epochs show no new pictures.
# Instead: call `set_random_seed()` of the Compose in each worker, with a number of the worker and the epoch
# Last lines of a run on 2026-11-30 (gray level of an even image after RandomBrightnessContrast):
#   albumentations 2.0.8, first epoch: three workers of four draws each: equal
#   albumentations 2.0.8, second epoch: three workers of four draws each: equal
#   second epoch as the first: True; in one process as before: False
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq albumentations==2.0.8 numpy==2.4.6
NO_ALBUMENTATIONS_UPDATE=1 venv/bin/python - <<'PYTHON'
import multiprocessing

import albumentations
import numpy as np

transform = albumentations.Compose([albumentations.RandomBrightnessContrast(p=1)])
image = np.full((8, 8, 3), 100, np.uint8)
context = multiprocessing.get_context("fork")


def levels(_):
    return [int(transform(image=image)["image"][0, 0, 0]) for _ in range(4)]


def work(results):
    results.put(levels(0))


def epoch():
    results = context.Queue()
    workers = [context.Process(target=work, args=(results,)) for _ in range(3)]
    for worker in workers:
        worker.start()
    drawn = [results.get() for _ in workers]
    for worker in workers:
        worker.join()
    return drawn


first, second = epoch(), epoch()
alone = levels(0), levels(0)
for name, drawn in ("first epoch", first), ("second epoch", second):
    equal = "equal" if drawn[0] == drawn[1] == drawn[2] else "different"
    print(f"albumentations {albumentations.__version__}, {name}: three workers of four draws each: {equal}")
print(f"second epoch as the first: {second == first}; in one process as before: {alone[1] == alone[0]}")
assert all(drawn == first[0] for drawn in first + second) and alone[1] != alone[0] and len(set(first[0])) > 1
PYTHON
