#!/usr/bin/env bash
# safetensors 0.8.0 (safetensors.numpy), beside 0.7.0
# Subject: weights, exports and runtimes
# Behaviour: save() and save_file() of version 0.8.0 write an array that is no plain row-major block (a transposed one,
#   a slice of columns, one of Fortran order) as it lies in memory. It comes back with its shape, and its values in
#   another order, without an error. Version 0.7.0 gives the values.
# Expected: the values of the array, as numpy.save gives them, or an error, as safetensors.torch raises.
# Why it matters: weights of JAX and Keras are transposed for torch by kernel.T, and q, k and v are cut from one matrix,
#   with numpy. The file has all names and shapes, loads without a warning, and the network is noise.
# Instead: `numpy.ascontiguousarray()` before `save()`
# Last lines of a run on 2026-11-29 (the first values given, the first values read):
#   safetensors 0.7.0: kernel.T [0, 3, 1] [0, 3, 1], columns [1, 2, 4] [1, 2, 4], Fortran order [0, 1, 2] [0, 1, 2]
#   safetensors 0.8.0: kernel.T [0, 3, 1] [0, 1, 2], columns [1, 2, 4] [1, 2, 3], Fortran order [0, 1, 2] [0, 3, 1]
# The same on 2026-11-30 with Python 3.13 and numpy 2.5.5.
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
cat > order.py <<'PYTHON'
import sys

import numpy as np
import safetensors
from safetensors.numpy import load, load_file, save, save_file

kernel = np.arange(6, dtype=np.float32).reshape(2, 3)
given = {"kernel.T": kernel.T, "columns": kernel[:, 1:], "Fortran order": np.asfortranarray(kernel)}
read = load(save(given))
save_file(given, "weights.safetensors")
from_file = load_file("weights.safetensors")


def first(array):
    return array.ravel()[:3].astype(int).tolist()


texts = [f"{name} {first(array)} {first(read[name])}" for name, array in given.items()]
print(f"safetensors {safetensors.__version__}: {', '.join(texts)}")
equal = [np.array_equal(array, read[name]) for name, array in given.items()]
assert equal == [sys.argv[1] == "equal"] * 3
assert all(np.array_equal(read[name], from_file[name]) and read[name].shape == given[name].shape for name in given)
plain = load(save({name: np.ascontiguousarray(array) for name, array in given.items()}))
assert all(np.array_equal(array, plain[name]) for name, array in given.items())
PYTHON
python3 -m venv venv
venv/bin/pip install -qq safetensors==0.7.0 numpy==2.4.6
venv/bin/python order.py equal
venv/bin/pip install -qq safetensors==0.8.0
venv/bin/python order.py other
