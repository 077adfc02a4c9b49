#!/usr/bin/env bash
# scikit-learn 1.9.1
# Subject: metrics and statistics
# Behaviour: balanced_accuracy_score() is the mean over the classes that the images have. recall_score(average="macro")
#   and the row "macro avg" of classification_report() also count a class that is only predicted, with recall 0.
# Expected: equal figures: balanced accuracy is the macro average of recall, also in the words of its documentation.
# Why it matters: a test set without images of a rare class: one image that is given this class lowers the macro
#   recall (and the macro F1) by a class of images that do not exist, here from 75% to 50%; the figure of one run is
#   over another number of classes than the next.
# Instead: `balanced_accuracy_score()`, or `labels=` the classes that the images have
# Last lines of a run on 2026-11-29 (labels 0 0 1 1, predictions 0 0 1 2):
#   scikit-learn 1.9.1: balanced accuracy 0.75, macro recall 0.5, "macro avg" 0.5
#   with predictions 0 0 1 0: 0.75, 0.75, 0.75
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq scikit-learn==1.9.1 scipy==1.17.1 numpy==2.4.6
venv/bin/python -W ignore - <<'PYTHON'
import sklearn
from sklearn.metrics import balanced_accuracy_score, classification_report, recall_score

LABELS = [0, 0, 1, 1]


def figures(predictions):
    report = classification_report(LABELS, predictions, output_dict=True)
    return (
        float(balanced_accuracy_score(LABELS, predictions)),
        float(recall_score(LABELS, predictions, average="macro")),
        float(report["macro avg"]["recall"]),
    )


with_third = figures([0, 0, 1, 2])
without = figures([0, 0, 1, 0])
balanced, macro, report = with_third
print(f'scikit-learn {sklearn.__version__}: balanced accuracy {balanced}, macro recall {macro}, "macro avg" {report}')
print(f"with predictions 0 0 1 0: {', '.join(map(str, without))}")
assert with_third == (0.75, 0.5, 0.5)
assert without == (0.75, 0.75, 0.75)
PYTHON
