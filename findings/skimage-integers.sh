#!/usr/bin/env bash
# scikit-image 0.26.0
# Subject: images and pixels
# Behaviour: resize() of an array of integers returns the values divided by the largest value of their type: gray 240 is
#   0.94 as uint8, 0.0037 as uint16, 1.1e-7 as int32 and 2.6e-17 as int64. A float array keeps 240. rescale() and
#   rotate() do the same.
# Expected: the values as they are, as for floats, or 0 to 1 of an image of 8 bits in each integer type.
# Why it matters: uint8 plus a Python list, sums of images, a mask of classes and np.array of a list are int64. Such
#   images become black without an error. Of a resized mask, astype(int) gives the class 0 everywhere.
# Instead: `preserve_range=True`
# Last lines of a run on 2026-11-29 (gray 240, 8 x 8 to 4 x 4; the mask to 16 x 16):
#   scikit-image 0.26.0: uint8 0.941, uint16 0.00366, int32 1.12e-07, int64 2.6e-17, float32 240, float64 240
#   preserve_range=True: 240 of each; mask of the classes 0 to 3 as int64: [0], with order=0 [0, 1, 2, 3]
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq scikit-image==0.26.0 numpy==2.4.6
venv/bin/python - 2> errors.txt <<'PYTHON' || { cat errors.txt; exit 1; }
import numpy as np
import skimage
from skimage.transform import rescale, resize, rotate

TYPES = ("uint8", "uint16", "int32", "int64", "float32", "float64")


def gray(kind):
    return np.full((8, 8), 240, kind)


plain = {kind: float(resize(gray(kind), (4, 4))[2, 2]) for kind in TYPES}
kept = {kind: float(resize(gray(kind), (4, 4), preserve_range=True)[2, 2]) for kind in TYPES}
mask = np.arange(64).reshape(8, 8) % 4
classes, nearest = (np.unique(resize(mask, (16, 16), order=order).astype(int)).tolist() for order in (None, 0))
print(f"scikit-image {skimage.__version__}: " + ", ".join(f"{kind} {value:.3g}" for kind, value in plain.items()))
same = "240 of each" if np.allclose(list(kept.values()), 240) else kept
print(f"preserve_range=True: {same}; mask of the classes 0 to 3 as {mask.dtype}: {classes}, with order=0 {nearest}")
for kind in TYPES[:4]:
    assert np.isclose(plain[kind], 240 / np.iinfo(kind).max)
    assert np.isclose(rescale(gray(kind), 0.5)[2, 2], plain[kind])
    assert np.isclose(rotate(gray(kind), 9)[4, 4], plain[kind])
assert np.isclose(plain["float32"], 240) and np.isclose(plain["float64"], 240)
assert same == "240 of each" and mask.dtype == np.int64 and classes == [0] and nearest == [0, 1, 2, 3]
PYTHON
