#!/usr/bin/env bash
# confidenceinterval 1.0.5, scikit-learn 1.9.1
# Subject: metrics and statistics
# Behaviour: f1_score(), precision_score() and recall_score() of confidenceinterval, which have the names and the first
#   arguments of scikit-learn's, return the accuracy of two classes: their default is average="micro", scikit-learn's is
#   "binary". average="binary" gives scikit-learn's figures (precision and recall with method="wilson" only). The
#   interval of a perfect macro F1 is 0.93 to 1.07.
# Expected: scikit-learn's figure with an interval, and limits within 0 and 1.
# Why it matters: where one image of ten is ill, a network with an F1 of 58% is reported with 93% (90% to 95%);
#   precision and recall of the report are the same number. Nothing in the call or in the result says which figure it
#   is.
# Instead: `average="binary", method="wilson"`, or scikit-learn's figure with a bootstrap of own code
# Last lines of a run on 2026-11-30 (400 images, 35 of them ill):
#   confidenceinterval 1.0.5, scikit-learn 1.9.1
#   f1_score: 0.927 (0.902 to 0.953), average="binary" 0.580, scikit-learn 0.580
#   precision_score: 0.927 (0.902 to 0.953), average="binary" 0.588, scikit-learn 0.588
#   recall_score: 0.927 (0.902 to 0.953), average="binary" 0.571, scikit-learn 0.571
#   macro F1 of perfect predictions: 1.000 (0.931 to 1.069)
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq confidenceinterval==1.0.5 scikit-learn==1.9.1 numpy==2.4.6
venv/bin/python -W ignore - <<'PYTHON'
import importlib.metadata

import confidenceinterval
import numpy as np
import sklearn.metrics

ill = np.repeat([1, 0], [35, 365])
found = np.repeat([1, 0, 1, 0], [20, 15, 14, 351])
accuracy = sklearn.metrics.accuracy_score(ill, found)
version = importlib.metadata.version("confidenceinterval")
print(f"confidenceinterval {version}, scikit-learn {sklearn.__version__}")
for name in ("f1_score", "precision_score", "recall_score"):
    figure, (low, high) = getattr(confidenceinterval, name)(ill, found)
    method = {} if name == "f1_score" else {"method": "wilson"}
    binary, _ = getattr(confidenceinterval, name)(ill, found, average="binary", **method)
    right = getattr(sklearn.metrics, name)(ill, found)
    print(f'{name}: {figure:.3f} ({low:.3f} to {high:.3f}), average="binary" {binary:.3f}, scikit-learn {right:.3f}')
    assert abs(figure - accuracy) < 1e-6 and abs(binary - right) < 1e-6 and right < 0.61
perfect, (low, high) = confidenceinterval.f1_score(ill, ill, average="macro")
print(f"macro F1 of perfect predictions: {perfect:.3f} ({low:.3f} to {high:.3f})")
assert abs(perfect - 1) < 1e-6 and low < 0.95 and high > 1.05
PYTHON
