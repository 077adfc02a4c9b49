#!/usr/bin/env bash
# grain 0.2.18
# Subject: shards and loaders
# Behaviour: in a DataLoader with Batch(drop_remainder=True) each worker makes batches of its own share, and drops its
#   own remainder: 100 samples in batches of 32 give 96 samples without workers, 64 with two, none with four, without a
#   warning. drop_remainder=False gives up to one short batch per worker.
# Expected: the number of workers changes the speed: one remainder of the epoch is dropped, and one batch is short.
# Why it matters: an evaluation on a small split has fewer images, or no batch, on a machine with more cores; the mean
#   over nothing is NaN or 0.
# Instead: make batches after the workers: `IterDataset.mp_prefetch()`, then `batch()`
# Last lines of a run on 2026-11-29 (100 samples):
#   grain 0.2.18, batches of 32, drop_remainder=True: 0 workers 96, 2 workers 64, 4 workers 0
#   drop_remainder=False, 4 workers: batches of [25, 25, 25, 25]
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq grain==0.2.18 numpy==2.4.6
cat > samples.py <<'PYTHON'
from importlib.metadata import version

import grain.python as grain


def sizes(workers, drop_remainder):
    loader = grain.DataLoader(
        data_source=range(100),
        sampler=grain.SequentialSampler(100, grain.NoSharding()),
        operations=[grain.Batch(32, drop_remainder=drop_remainder)],
        worker_count=workers,
    )
    return [len(batch) for batch in loader]


if __name__ == "__main__":  # the workers import this file
    counts = {workers: sum(sizes(workers, True)) for workers in (0, 2, 4)}
    kept = sizes(4, False)
    shown = ", ".join(f"{workers} workers {count}" for workers, count in counts.items())
    print(f"grain {version('grain')}, batches of 32, drop_remainder=True: {shown}")
    print(f"drop_remainder=False, 4 workers: batches of {kept}")
    assert counts == {0: 96, 2: 64, 4: 0}
    assert kept == [25] * 4
PYTHON
venv/bin/python samples.py 2> errors.txt || { cat errors.txt; exit 1; }
