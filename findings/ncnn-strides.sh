#!/usr/bin/env bash
# ncnn 1.0.20261020
# Subject: weights, exports and runtimes
# Behaviour: ncnn.Mat(array) takes the memory of a NumPy array from its first value on as rows without gaps, whatever
#   its strides: a transposed array, or a slice of columns, has the right shape and the values in another order. There
#   is no error.
# Expected: the values of the array, as numpy.array(mat) then gives them, or an error.
# Why it matters: an image (height, width, 3) is brought to (3, height, width) by transpose(2, 0, 1) before it is given
#   to a network. The three channels are then stripes of all colors, the network runs, and its accuracy is that by
#   chance; a check with an image of one gray passes.
# Instead: `ncnn.Mat(numpy.ascontiguousarray(array))`
# Last lines of a run on 2026-11-30 (an image of 2 x 2 pixels; red 0 to 3, green 10 to 13, blue 20 to 23):
#   ncnn 1.0.20261020, transpose(2, 0, 1): red [0.0, 10.0, 20.0, 1.0]
#   numpy.ascontiguousarray before: red [0.0, 1.0, 2.0, 3.0]
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq ncnn==1.0.20261020 numpy==2.4.6
venv/bin/python -W ignore - 2> errors.txt <<'PYTHON' || { cat errors.txt; exit 1; }
import importlib.metadata

import ncnn
import numpy as np

image = np.stack([np.arange(4) + first for first in (0, 10, 20)], axis=1).reshape(2, 2, 3).astype(np.float32)
planes = image.transpose(2, 0, 1)


def red_of(array):
    mat = ncnn.Mat(array)
    assert (mat.c, mat.h, mat.w) == array.shape
    return np.array(mat)[0].ravel().tolist()


transposed, copied = red_of(planes), red_of(np.ascontiguousarray(planes))
print(f"ncnn {importlib.metadata.version('ncnn')}, transpose(2, 0, 1): red {transposed}")
print(f"numpy.ascontiguousarray before: red {copied}")
assert transposed == image.ravel()[:4].tolist() and copied == planes[0].ravel().tolist() == [0, 1, 2, 3]
columns = np.arange(12, dtype=np.float32).reshape(3, 4)[:, ::2]
assert np.array(ncnn.Mat(columns)).tolist() == [[0, 1], [2, 3], [4, 5]]
PYTHON
