#!/usr/bin/env bash
# SciPy 1.17.1
# Subject: tables and lists of images
# Behaviour: loadmat() gives an array the type in which MATLAB stored it, not its MATLAB class: doubles whose values
#   are 1 to 200 are stored as uint8, and come as uint8. whosmat() says "double" of the same array; mat_dtype=True is
#   double.
# Expected: float64, as the class in the file says.
# Why it matters: the labels of Flowers-102, of SVHN and of many older sets are .mat files. NumPy computes with uint8
#   silently: label + 100, to join two sets, is 44 for label 200, and -label is 256 - label. The type depends on the
#   largest label, thus code that was tried on a set of more than 255 classes is right there.
# Instead: `loadmat(path, mat_dtype=True)`
# Last lines of a run on 2026-11-29 (labels 1 to 200 of class double, stored in bytes as MATLAB stores them):
#   SciPy 1.17.1: whosmat double, loadmat uint8; label 200 + 100 = 44
#   mat_dtype=True: float64; label 200 + 100 = 300.0
# The same on 2026-11-30 with Python 3.13 and numpy 2.5.5, scipy 1.18.1.
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq scipy==1.17.1 numpy==2.4.6
venv/bin/python - <<'PYTHON'
from pathlib import Path

import numpy as np
import scipy
from scipy.io import loadmat, savemat, whosmat

MATRIX_CLASS = 128 + 8 + 8  # byte of the first array's class: after the header, the tags of the array and of its flags
UINT8, DOUBLE = 9, 6
savemat("labels.mat", {"labels": np.arange(1, 201, dtype=np.uint8)})
content = bytearray(Path("labels.mat").read_bytes())
assert content[MATRIX_CLASS] == UINT8
content[MATRIX_CLASS] = DOUBLE  # the values stay bytes: MATLAB stores whole doubles in the smallest type
Path("labels.mat").write_bytes(content)

[(_, _, kind)] = whosmat("labels.mat")
labels = loadmat("labels.mat")["labels"].ravel()
doubles = loadmat("labels.mat", mat_dtype=True)["labels"].ravel()
sum_of_bytes = (labels + 100)[-1]
print(f"SciPy {scipy.__version__}: whosmat {kind}, loadmat {labels.dtype}; label 200 + 100 = {sum_of_bytes}")
print(f"mat_dtype=True: {doubles.dtype}; label 200 + 100 = {(doubles + 100)[-1]}")
assert kind == "double" and labels.dtype == np.uint8 and labels.tolist() == list(range(1, 201))
assert sum_of_bytes == 44 and doubles.dtype == np.float64 and (doubles + 100)[-1] == 300
PYTHON
