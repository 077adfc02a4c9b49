#!/usr/bin/env bash
# scikit-learn 1.9.1
# Subject: metrics and statistics
# Behaviour: log_loss() clips probabilities by the smallest step of their type. A true class with the probability 0
#   costs 6.9 in float16, 15.9 in float32 and 36.0 in float64. The same values, converted after they were stored, give
#   another loss.
# Expected: one figure for equal numbers, or an infinite loss.
# Why it matters: the softmax of a network that is sure of itself has many zeros in half precision. The evaluation of a
#   run in mixed precision looks better than the one in float32, and float16 predictions that were read by a program
#   that has float64 only look worse than those that were not.
# Instead: convert to float64 and clip at one stated value before
# Last lines of a run on 2026-11-29 (1000 images, 20 of them wrong with the probability 0):
#   scikit-learn 1.9.1, one image: float16 6.93, float32 15.94, float64 36.04
#   1000 images: float16 0.140, float32 0.319, float64 0.721
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq scikit-learn==1.9.1 numpy==2.4.6
venv/bin/python - <<'PYTHON'
import numpy as np
import sklearn
from sklearn.metrics import log_loss

TYPES = {"float16": np.float16, "float32": np.float32, "float64": np.float64}
labels = np.zeros(1000, int)
probabilities = np.tile([1.0, 0.0, 0.0], (1000, 1))  # exact in each type
probabilities[:20] = [0.0, 1.0, 0.0]


def losses(rows):
    some, classes = probabilities[:rows], range(3)
    return {name: float(log_loss(labels[:rows], some.astype(kind), labels=classes)) for name, kind in TYPES.items()}


one, many = losses(1), losses(1000)
print(f"scikit-learn {sklearn.__version__}, one image: {', '.join(f'{name} {loss:.2f}' for name, loss in one.items())}")
print(f"1000 images: {', '.join(f'{name} {loss:.3f}' for name, loss in many.items())}")
assert np.allclose(list(one.values()), [-np.log(np.finfo(kind).eps) for kind in TYPES.values()], atol=0.01)
assert many["float16"] < many["float32"] / 2 < many["float64"] / 4
PYTHON
