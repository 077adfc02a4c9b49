#!/usr/bin/env bash
# scipy 1.17.1, confidenceinterval 1.0.5
# Behaviour: bootstrap() of 200 hits of 200 has the interval (nan, nan), with a warning of a degenerate distribution:
#   the default method, BCa, divides by zero. confidenceinterval's "bootstrap_bca" is scipy's. The percentile method
#   has (1, 1).
# Expected: an interval, as of 199 hits of 200; the exact one (Clopper and Pearson) is 0.982 to 1.
# Why it matters: "is the lower limit above 0.9?" is False for a perfect model and True for a worse one; a table of
#   classes has empty cells for its best classes, and a mean over the limits is nan.
# Last lines of a run on 2026-11-29:
#   scipy 1.17.1: 200 of 200: (nan, nan), 199 of 200: (0.97, 1.0); lower limit above 0.9: False, True
#   confidenceinterval: (nan, nan); scipy's exact interval of 200 of 200: (0.982, 1.0)
# The same on 2026-11-30 with Python 3.13 and numpy 2.5.5, scipy 1.18.1.
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq scipy==1.17.1 confidenceinterval==1.0.5 numpy==2.4.6
venv/bin/python -W ignore - <<'PYTHON'
import confidenceinterval
import numpy as np
import scipy
from scipy.stats import binomtest, bootstrap


def interval(hits):
    limits = bootstrap((hits,), np.mean, rng=np.random.default_rng(0)).confidence_interval
    return tuple(round(float(limit), 3) for limit in limits)


perfect, worse = np.ones(200), np.r_[np.ones(199), 0]
of_perfect, of_worse = interval(perfect), interval(worse)
above = of_perfect[0] > 0.9, of_worse[0] > 0.9
print(
    f"scipy {scipy.__version__}: 200 of 200: {of_perfect}, 199 of 200: {of_worse}; "
    f"lower limit above 0.9: {above[0]}, {above[1]}"
)
truth = np.ones(200, int)
other = confidenceinterval.accuracy_score(truth, truth, method="bootstrap_bca", n_resamples=999)[1]
exact = binomtest(200, 200).proportion_ci()
print(
    f"confidenceinterval: ({other[0]}, {other[1]}); "
    f"scipy's exact interval of 200 of 200: ({exact.low:.3f}, {exact.high})"
)
assert np.isnan(of_perfect).all() and np.isnan(other).all() and above == (False, True)
PYTHON
