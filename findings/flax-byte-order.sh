#!/usr/bin/env bash
# flax 0.12.8 (flax.serialization), numpy 2.4.6
# Subject: training
# Behaviour: to_bytes() stores the bytes of an array and the name of its type without its byte order. A big-endian array
#   comes back as the same bytes in the order of the machine: 1.0 becomes 4.6e-41, without an error.
# Expected: the values of the array, as numpy.save and safetensors.numpy give them.
# Why it matters: arrays read from FITS, HDF5 or IDL files, or by frombuffer(..., ">f4"), are big-endian, and numpy
#   computes with them as with others. Weights or means in such an array are written, read and used as noise near 0.
# Instead: `astype(np.float32)` before
# Last lines of a run on 2026-11-28:
#   flax 0.12.8: stored [0.0, 1.0, 2.0], restored [0.0, 4.6006e-41, 8.9683e-44]
#   with astype(float32) before: [0.0, 1.0, 2.0]
# The same on 2026-11-30 with Python 3.13 and flax 0.12.12, numpy 2.5.5.
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq flax==0.12.8 numpy==2.4.6
venv/bin/python - 2> errors.txt <<'PYTHON' || { cat errors.txt; exit 1; }
import flax
import numpy as np
from flax.serialization import msgpack_restore, to_bytes


def restored(array):
    values = msgpack_restore(to_bytes({"mean": array}))["mean"]
    return [float(f"{value:.5g}") for value in values]


array = np.arange(3, dtype=">f4")
wrong, right = restored(array), restored(array.astype(np.float32))
print(f"flax {flax.__version__}: stored {array.tolist()}, restored {wrong}")
print(f"with astype(float32) before: {right}")
assert wrong == [0.0, 4.6006e-41, 8.9683e-44] and right == array.tolist()
PYTHON
