#!/usr/bin/env bash
# scikit-learn 1.9.1
# Subject: metrics and statistics
# Behaviour: for a label without positive images, average_precision_score() is 0, and the mean over labels contains
#   the 0; roc_auc_score() of the same table is nan, and so is its mean. Both only warn.
# Expected: one rule for both: no figure for such a label, and a mean of the others.
# Why it matters: of several labels per image, a rare one is often missing in a small validation set or in a fold. The
#   mAP of perfect scores of three labels is 66.7% then, and changes from fold to fold by the labels that are present.
# Instead: leave out labels without positive images in both figures
# Last lines of a run on 2026-11-29 (perfect scores, the third label has no positive image):
#   scikit-learn 1.9.1, average precision: by label [1. 1. 0.], mean 0.6667
#   AUROC: by label [ 1.  1. nan], mean nan
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq scikit-learn==1.9.1 scipy==1.17.1 numpy==2.4.6
venv/bin/python -W ignore - <<'PYTHON'
import numpy as np
import sklearn
from sklearn.metrics import average_precision_score, roc_auc_score

labels = np.zeros((10, 3), int)
labels[:5, 0] = 1
labels[::2, 1] = 1
scores = labels + 0.1
precision = average_precision_score(labels, scores, average=None)
mean_precision = average_precision_score(labels, scores)
areas = roc_auc_score(labels, scores, average=None)
mean_area = roc_auc_score(labels, scores)
print(f"scikit-learn {sklearn.__version__}, average precision: by label {precision}, mean {mean_precision:.4f}")
print(f"AUROC: by label {areas}, mean {mean_area}")
assert precision.tolist() == [1, 1, 0] and abs(mean_precision - 2 / 3) < 1e-12
assert areas[:2].tolist() == [1, 1] and np.isnan(areas[2]) and np.isnan(mean_area)
PYTHON
