#!/usr/bin/env bash
# statsmodels 0.15.0
# Subject: metrics and statistics
# Behaviour: multipletests() with one NaN among the p values gives NaN for all of them by "fdr_bh", "fdr_by" and
#   "hommel". By "bonferroni", "holm" and "sidak" the other values stay numbers, and the NaN counts as a test: of four
#   values with one NaN they are those of four tests. "fdr_bh" rejects one hypothesis of which it gives no p; without
#   the NaN it rejects three. There is no warning.
# Expected: NaN for the NaN, and the others as without it; or an error.
# Why it matters: a comparison for each class or label has no p where a class has no image, or where two models agree on
#   all of them. One such class decides whether other differences are significant, in another way by each method.
# Instead: leave NaN out before, and put the results back by their places
# Last lines of a run on 2026-11-30 (p = 0.01, NaN, 0.03, 0.04):
#   statsmodels 0.15.0, fdr_bh: rejected [0], corrected [nan, nan, nan, nan]
#   fdr_bh without the NaN: rejected [0, 1, 2], corrected [0.03, 0.04, 0.04]
#   bonferroni: corrected [0.04, nan, 0.12, 0.16], without the NaN [0.03, 0.09, 0.12]
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq statsmodels==0.15.0 numpy==2.4.6
venv/bin/python -W ignore - 2> errors.txt <<'PYTHON' || { cat errors.txt; exit 1; }
import numpy as np
import statsmodels
from statsmodels.stats.multitest import multipletests

VALUES = np.array([0.01, np.nan, 0.03, 0.04])


def corrected(values, method):
    rejected, corrected, *_ = multipletests(values, method=method)
    return np.flatnonzero(rejected).tolist(), [round(float(value), 4) for value in corrected]


def line(values, method):
    rejected, numbers = corrected(values, method)
    return f"rejected {rejected}, corrected {numbers}"


others = VALUES[~np.isnan(VALUES)]
print(f"statsmodels {statsmodels.__version__}, fdr_bh: {line(VALUES, 'fdr_bh')}")
print(f"fdr_bh without the NaN: {line(others, 'fdr_bh')}")
with_it, without = corrected(VALUES, "bonferroni")[1], corrected(others, "bonferroni")[1]
print(f"bonferroni: corrected {with_it}, without the NaN {without}")
for method in ("fdr_bh", "fdr_by", "hommel"):
    assert np.isnan(corrected(VALUES, method)[1]).all() and not np.isnan(corrected(others, method)[1]).any()
for method in ("bonferroni", "holm", "sidak"):
    of_four = corrected([0.01, 0.03, 0.04, 1.0], method)[1]
    numbers = corrected(VALUES, method)[1]
    assert [numbers[0], *numbers[2:]] != corrected(others, method)[1] and numbers[0] == of_four[0]
assert corrected(VALUES, "fdr_bh")[0] == [0] and corrected(others, "fdr_bh")[0] == [0, 1, 2]
PYTHON
