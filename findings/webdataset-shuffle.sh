#!/usr/bin/env bash
# webdataset 1.0.2
# Subject: shards and loaders
# Behaviour: shuffle() takes its seed from the clock and the process: random.seed(), WebDataset(seed=0) and
#   WebDataset(detshuffle=True) do not fix the order of the samples. With shuffle(rng=...) or detshuffle(seed=0) the
#   order is that of the seed, and each worker that is started again for the next epoch has the order of the first one.
# Expected: seed=0 of the data set, or of random, gives an order that is repeatable, and another one in each epoch.
# Why it matters: two runs of one seed differ by their batches, and no comparison of two settings is of the same order;
#   or all epochs of a training have the same order, in which neighbours in the buffer stay neighbours. Nobody sees it:
#   within one process, where most people try it, the orders of the epochs differ.
# Instead: `compose(webdataset.detshuffle(n, seed=0))` with `persistent_workers=True` of torch's DataLoader
# Last lines of a run on 2026-11-30 (20 samples):
#   webdataset 1.0.2, two processes with equal seeds: shuffle() equal False, with WebDataset(seed=0) equal False
#   shuffle(rng=): three epochs in one process, different orders: 3; in a new worker for each: 1
#   detshuffle(seed=0): three epochs in one process, different orders: 3; in a new worker for each: 1
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq webdataset==1.0.2 numpy==2.4.6
venv/bin/python - 2> errors.txt <<'PYTHON' || { cat errors.txt; exit 1; }
import importlib.metadata
import multiprocessing
import random

import numpy as np
import webdataset

fork = multiprocessing.get_context("fork")
with webdataset.TarWriter("shard.tar") as writer:
    for number in range(20):
        writer.write({"__key__": f"{number:03d}", "txt": str(number)})


def shards(**options):
    return webdataset.WebDataset("shard.tar", shardshuffle=False, **options)


def order_of(data):
    return [sample["__key__"] for sample in data]


def seeded(options):
    random.seed(0)
    np.random.seed(0)
    return order_of(shards(**options).shuffle(100))


def in_new_process(function, argument):
    """What the function returns in a process that is forked for it, as torch's DataLoader forks a worker."""
    with fork.Pool(1) as pool:
        return pool.apply(function, (argument,))


by_seed = {}
for options in ({}, {"seed": 0}, {"detshuffle": True}):
    by_seed[str(options)] = in_new_process(seeded, options) == in_new_process(seeded, options)
version = importlib.metadata.version("webdataset")
print(
    f"webdataset {version}, two processes with equal seeds: shuffle() equal {by_seed['{}']}, "
    f"with WebDataset(seed=0) equal {by_seed[str({'seed': 0})]}"
)
pipelines = {
    "shuffle(rng=)": shards().shuffle(100, rng=random.Random(0)),
    "detshuffle(seed=0)": shards().compose(webdataset.detshuffle(100, seed=0)),
}


def epoch(name):
    return order_of(pipelines[name])


for name in pipelines:
    of_workers = {str(in_new_process(epoch, name)) for _ in range(3)}
    of_process = {str(epoch(name)) for _ in range(3)}
    print(
        f"{name}: three epochs in one process, different orders: {len(of_process)}; "
        f"in a new worker for each: {len(of_workers)}"
    )
    assert (len(of_process), len(of_workers)) == (3, 1)
assert not any(by_seed.values())
PYTHON
