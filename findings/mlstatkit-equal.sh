#!/usr/bin/env bash
# MLstatkit 0.1.91, scikit-learn 1.9.1
# Subject: metrics and statistics
# Behaviour: Delong_test() of two models with equal AUROC returns z = 0 and p = 0: of one model and itself, of scores
#   and twice the scores, and of two models of which one image has another score but no other rank. Where the variance
#   of the difference is 0 it changes to a bootstrap, whose p counts no draw. There is no message.
# Expected: p = 1, or no number, as z = 0 says.
# Why it matters: "p < 0.05" is the rule by which a new model is called better. A copy of a model, a calibrated one, or
#   one that was exported to another format is significantly different by it, with the smallest p of the table.
# Instead: compare the AUROC first; take p = 1 where the difference is 0
# Last lines of a run on 2026-11-30 (50 ill of 200; z, p and method):
#   MLstatkit 0.1.91, the same scores: 0.00, 0.00, bootstrap; twice the scores: 0.00, 0.00, bootstrap
#   rounded scores (AUROC 0.799067, 0.799600): 1.12, 0.26, delong
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq MLstatkit==0.1.91 scikit-learn==1.9.1 numpy==2.4.6
venv/bin/python -W ignore - 2> errors.txt <<'PYTHON' || { cat errors.txt; exit 1; }
import importlib.metadata

import numpy as np
from MLstatkit import Delong_test
from sklearn.metrics import roc_auc_score

generator = np.random.default_rng(0)
ill = np.repeat([1.0, 0.0], [50, 150])
scores = generator.normal(size=200) + ill
rounded = scores.round(2)


def test(others):
    z, p, *_, details = Delong_test(ill, scores, others)
    return f"{z:.2f}, {p:.2f}, {details['method']}"


found = [test(scores), test(2 * scores), test(rounded)]
areas = ", ".join(f"{roc_auc_score(ill, values):.6f}" for values in (scores, rounded))
print(
    f"MLstatkit {importlib.metadata.version('MLstatkit')}, the same scores: {found[0]}; twice the scores: {found[1]}"
)
print(f"rounded scores (AUROC {areas}): {found[2]}")
moved = scores.copy()
moved[3] += 1e-9  # no other rank
assert found[0] == found[1] == test(moved) == "0.00, 0.00, bootstrap" and found[2] == "1.12, 0.26, delong"
PYTHON
