#!/usr/bin/env bash
# numexpr 2.14.2, numpy 2.4.6
# Subject: metrics and statistics
# Behaviour: evaluate("sum(image)") adds uint8, int16 and int32 in int32, and wraps around without a warning: the sum of
#   40 million values of 100 is -294967296. numpy's sum() of the same arrays has 64 bits.
# Expected: the sum of numpy, whose expressions it evaluates.
# Why it matters: the sums of pixels and their squares, for mean and standard deviation, of more than 8.4 million white
#   pixels (168 images of 224 pixels) are wrong, often with another sign; a mean that happens to be positive is not
#   noticed.
# Instead: `sum()` of NumPy, which has 64 bits
# Last lines of a run on 2026-11-30 (200 white images of 224 x 224; their mean is 255, that of their squares 65025):
#   numexpr 2.14.2: mean -173, of the squares -30; numpy: 255, 65025
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq numexpr==2.14.2 numpy==2.4.6
OMP_NUM_THREADS=1 venv/bin/python -W error - 2> errors.txt <<'PYTHON' || { cat errors.txt; exit 1; }
import numexpr
import numpy as np

images = np.full((200, 224, 224), 255, np.uint8)
mean = int(numexpr.evaluate("sum(images)")) / images.size
squares = int(numexpr.evaluate("sum(images ** 2)")) / images.size
right = float(images.mean()), float((images.astype(int) ** 2).mean())
print(
    f"numexpr {numexpr.__version__}: mean {mean:.0f}, of the squares {squares:.0f}; "
    f"numpy: {right[0]:.0f}, {right[1]:.0f}"
)
for kind in (np.uint8, np.int16, np.int32):
    values = np.full(40_000_000, 100, kind)
    assert values.sum() == 4_000_000_000 and int(numexpr.evaluate("sum(values)")) == 4_000_000_000 - 2**32
assert right == (255, 65025) and mean < 0 and abs(squares) < 1000
PYTHON
