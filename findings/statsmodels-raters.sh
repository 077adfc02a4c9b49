#!/usr/bin/env bash
# statsmodels 0.15.0, krippendorff 0.9.0
# Subject: metrics and statistics
# Behaviour: aggregate_raters() counts a missing rating, NaN or -1, as a category of its own, so that fleiss_kappa() of
#   its table takes it for a grade on which the raters disagree. Four images on which all ratings agree, with three
#   ratings missing, have the kappa 0.23. There is no warning.
# Expected: an error, as a table with unequal numbers of ratings gives; or the images with all ratings.
# Why it matters: not each reader has read each image. The agreement of the readers, by which a data set and the best
#   possible accuracy are described, falls with the number of missing cells, not with their disagreement.
# Instead: images with all ratings, or `krippendorff.alpha(..., level_of_measurement="nominal")`, which knows NaN
# Last lines of a run on 2026-11-30 (three readers of four images, who agree; three cells are empty):
#   statsmodels 0.15.0: categories [0.0, 1.0, nan], kappa 0.23; with -1: [-1, 0, 1], 0.23
#   krippendorff 0.9.0, alpha: 1.00
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq statsmodels==0.15.0 krippendorff==0.9.0 numpy==2.4.6
venv/bin/python -W ignore - 2> errors.txt <<'PYTHON' || { cat errors.txt; exit 1; }
import importlib.metadata

import krippendorff
import numpy as np
import statsmodels
from statsmodels.stats.inter_rater import aggregate_raters, fleiss_kappa

ratings = np.array([[0, 0, np.nan], [1, 1, 1], [0, np.nan, 0], [1, 1, np.nan]])


def agreement(values):
    table, categories = aggregate_raters(values)
    return categories.tolist(), float(fleiss_kappa(table))


missing = agreement(ratings)
numbered = agreement(np.nan_to_num(ratings, nan=-1).astype(int))
alpha = krippendorff.alpha(ratings.T, level_of_measurement="nominal")
print(
    f"statsmodels {statsmodels.__version__}: categories {missing[0]}, kappa {missing[1]:.2f}; "
    f"with -1: {numbered[0]}, {numbered[1]:.2f}"
)
print(f"krippendorff {importlib.metadata.version('krippendorff')}, alpha: {alpha:.2f}")
assert len(missing[0]) == len(numbered[0]) == 3 and missing[1] == numbered[1] < 0.24 and alpha == 1
try:
    fleiss_kappa(np.array([[2, 0], [0, 3]]))
    raise SystemExit("a table with unequal numbers of ratings is taken")
except AssertionError:
    pass
PYTHON
