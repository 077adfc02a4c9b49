#!/usr/bin/env bash
# numpy 2.4.6, ml_dtypes 0.6.0 (the bfloat16 of JAX's arrays in numpy)
# Subject: metrics and statistics
# Behaviour: mean() of a bfloat16 array adds in bfloat16, where 256 + 1 is 256: the mean of 1000 ones is 0.256. mean()
#   of float16 adds in float32, but sum() and std() do not: over the first axis the sum of 5000 ones is 2048, and their
#   standard deviation 0.45. Over the last axis both are right.
# Expected: what mean() does for float16: for bfloat16 too, for std() too, and for each axis.
# Why it matters: losses and hits of a training in mixed precision come out as these types; an accuracy of them can
#   never be above 256 images, without a warning. The standard deviation of each feature over the images is taken over
#   the first axis.
# Instead: `astype(np.float32)` before
# Last lines of a run on 2026-11-29:
#   numpy 2.4.6, mean of 1000 ones: float32 1, float16 1, bfloat16 0.255859
#   800 hits of 1000: float32 0.8, float16 0.799805, bfloat16 0.255859
#   5000 x 2 ones, float16, first axis: mean 1.0, sum 2048.0, std 0.4526; last axis of 2 x 5000: sum 5000.0, std 0.0
# The same on 2026-11-30 with Python 3.13 and numpy 2.5.5.
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq numpy==2.4.6 ml_dtypes==0.6.0
venv/bin/python - <<'PYTHON'
import numpy as np
from ml_dtypes import bfloat16

TYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": bfloat16}
hits = np.arange(1000) % 5 != 0


def means(values):
    return {name: float(values.astype(kind).mean()) for name, kind in TYPES.items()}


def line(figures):
    return ", ".join(f"{name} {figure:.6g}" for name, figure in figures.items())


ones, shares = means(np.ones(1000)), means(hits)
print(f"numpy {np.__version__}, mean of 1000 ones: {line(ones)}\n800 hits of 1000: {line(shares)}")
tall, wide = np.ones((5000, 2), np.float16), np.ones((2, 5000), np.float16)
first = [float(array[0]) for array in (tall.mean(axis=0), tall.sum(axis=0), tall.std(axis=0))]
last = [float(array[0]) for array in (wide.sum(axis=1), wide.std(axis=1))]
print(
    f"5000 x 2 ones, float16, first axis: mean {first[0]}, sum {first[1]}, std {first[2]:.4f}; "
    f"last axis of 2 x 5000: sum {last[0]}, std {last[1]}"
)
assert ones["float32"] == ones["float16"] == 1 and abs(ones["bfloat16"] - 0.256) < 0.001
assert abs(shares["float16"] - 0.8) < 0.001 and abs(shares["bfloat16"] - 0.256) < 0.001
assert first[:2] == [1, 2048] and first[2] > 0.4 and last == [5000, 0]
PYTHON
