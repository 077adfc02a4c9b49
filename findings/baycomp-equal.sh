#!/usr/bin/env bash
# baycomp 1.0.3
# Subject: metrics and statistics
# Behaviour: two_on_multiple(x, y) without a rope counts equal scores for neither model, and the prior for the first
#   one: of ten data sets with equal scores the first model is better with the probability 0.68, in either order of the
#   models. Of nine equal scores and one that is higher by 0.01 the higher model is better with the probability 1.00.
# Expected: 0.5 for equal scores, and little more for one higher score of ten.
# Why it matters: accuracies of small sets, and of a model and its export or its average, are often equal. The one that
#   is named first is "probably better", and one image more in one of ten sets is certain evidence.
# Instead: give a `rope`, 0.01 for one point of accuracy: equal scores then count for no difference
# Last lines of a run on 2026-11-30 (probability that the first, the second model is better):
#   baycomp 1.0.3, ten equal scores: 0.68, 0.32, and of the models exchanged: 0.68, 0.32
#   one of ten higher by 0.01: 0.00, 1.00; with rope=0.02: first 0.00, none 1.00, second 0.00
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq baycomp==1.0.3 numpy==2.4.6
venv/bin/python -W ignore - 2> errors.txt <<'PYTHON' || { cat errors.txt; exit 1; }
import importlib.metadata

import baycomp
import numpy as np

np.random.seed(0)
scores = np.linspace(0.8, 0.9, 10)
others = scores.copy()
higher = scores + np.eye(10)[0] * 0.01


def better(first, second):
    left, _, right = baycomp.two_on_multiple(first, second)
    return f"{left:.2f}, {right:.2f}"


equal, exchanged, one = better(scores, others), better(others, scores), better(scores, higher)
left, none, right = baycomp.two_on_multiple(scores, higher, rope=0.02)
version = importlib.metadata.version("baycomp")
print(f"baycomp {version}, ten equal scores: {equal}, and of the models exchanged: {exchanged}")
print(f"one of ten higher by 0.01: {one}; with rope=0.02: first {left:.2f}, none {none:.2f}, second {right:.2f}")
assert all(0.65 < float(figures.split(",")[0]) < 0.71 for figures in (equal, exchanged))
assert one == "0.00, 1.00" and none > 0.99
PYTHON
