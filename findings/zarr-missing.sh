#!/usr/bin/env bash
# zarr 3.1.6
# Subject: shards and loaders
# Behaviour: a chunk of an array whose file is missing reads as zeros (the fill value), without a warning: a chunk that
#   was never written and one that was lost in a copy are the same. Without any chunk an array still has its shape, and
#   zeros. A chunk that was cut off after 8 bytes is an error.
# Expected: an error for the file that is not there, as for a part of it.
# Why it matters: images and labels of a data set are in zarr arrays of thousands of files, one per chunk. After an
#   interrupted copy the missing images are black, and their labels the class 0: training and evaluation run, and the
#   accuracy counts black images. nchunks_initialized tells it, for data without chunks of zeros, which are not
#   written, either, unless write_empty_chunks is set.
# Instead: write with `write_empty_chunks`, and compare `nchunks_initialized` with `nchunks`
# Last lines of a run on 2026-11-29 (100 labels of the class 3 in chunks of 10, three files removed):
#   zarr 3.1.6: classes after the loss: {0: 30, 3: 70}; no file left: {0: 100}; cut off: an error
#   chunks with a file: 7 of 10; of 100 labels of the class 0, as written: 0 of 10, with write_empty_chunks 10 of 10
# The same on 2026-11-30 with Python 3.13 and numpy 2.5.5, zarr 3.4.2.
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq zarr==3.1.6 numpy==2.4.6
venv/bin/python - 2> errors.txt <<'PYTHON' || { cat errors.txt; exit 1; }
from collections import Counter
from pathlib import Path

import numpy as np
import zarr


def write(name, label, **options):
    array = zarr.create_array(name, shape=(100,), chunks=(10,), dtype="int64", **options)
    array[:] = np.full(100, label)
    return array


def classes(name):
    return dict(sorted(Counter(zarr.open_array(name, mode="r")[:].tolist()).items()))


write("labels", 3)
before = classes("labels")
for chunk in (2, 5, 9):
    Path("labels", "c", str(chunk)).unlink()
lost = classes("labels")
left = zarr.open_array("labels", mode="r").nchunks_initialized
cut = Path("labels", "c", "0")
cut.write_bytes(cut.read_bytes()[:8])
try:
    after_cut = str(classes("labels"))
except Exception:
    after_cut = "an error"
for chunk in Path("labels", "c").iterdir():
    chunk.unlink()
none = classes("labels")
zeros = write("zeros", 0).nchunks_initialized
written = write("written", 0, config={"write_empty_chunks": True}).nchunks_initialized
print(f"zarr {zarr.__version__}: classes after the loss: {lost}; no file left: {none}; cut off: {after_cut}")
print(
    f"chunks with a file: {left} of 10; of 100 labels of the class 0, as written: {zeros} of 10, with "
    f"write_empty_chunks {written} of 10"
)
assert before == {3: 100} and lost == {0: 30, 3: 70} and none == {0: 100} and after_cut == "an error"
assert (left, zeros, written) == (7, 0, 10)
PYTHON
