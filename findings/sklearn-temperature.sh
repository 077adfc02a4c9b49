#!/usr/bin/env bash
# scikit-learn 1.9.1
# Subject: metrics and statistics
# Behaviour: CalibratedClassifierCV(method="temperature") has no prior and no bound near 1: where each of the
#   calibration images is classified right, it multiplies log probabilities by hundreds, and all probabilities become
#   1.0.
# Expected: a calibration makes probabilities more modest, or leaves them where nothing is known of errors.
# Why it matters: a good model with 30 or 60 images to calibrate on has no error among them. Its first error on new
#   images is certain (an infinite log loss), and no threshold sends an image to a person any more.
# Instead: look at the factor before it is used; calibrate on images with errors among them
# Last lines of a run on 2026-11-29 (three classes, right in 60 of 60 calibration images):
#   scikit-learn 1.9.1: least sure image: before 0.35, after 1.00; factor above 100: True
#   one wrong image of 60: factor 4.4, least sure 0.43
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq scikit-learn==1.9.1 numpy==2.4.6
venv/bin/python - <<'PYTHON'
import numpy as np
import sklearn
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.calibration import CalibratedClassifierCV
from sklearn.frozen import FrozenEstimator


class Network(ClassifierMixin, BaseEstimator):
    """A trained network whose probabilities are its input."""

    def fit(self, probabilities, labels):
        self.classes_ = np.unique(labels)
        return self

    def predict_proba(self, probabilities):
        return probabilities

    def predict(self, probabilities):
        return probabilities.argmax(axis=1)


logits = 2 * np.random.default_rng(0).standard_normal((60, 3))
probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
right = logits.argmax(axis=1)
one_wrong = right.copy()
one_wrong[0] = (right[0] + 1) % 3


def calibrated(labels):
    network = FrozenEstimator(Network().fit(probabilities, labels))
    model = CalibratedClassifierCV(network, method="temperature").fit(probabilities, labels)
    factor = float(model.calibrated_classifiers_[0].calibrators[0].beta_)
    return factor, float(model.predict_proba(probabilities).max(axis=1).min())


before = float(probabilities.max(axis=1).min())
factor, after = calibrated(right)
print(
    f"scikit-learn {sklearn.__version__}: least sure image: "
    f"before {before:.2f}, after {after:.2f}; factor above 100: {factor > 100}"
)
with_error, least = calibrated(one_wrong)
print(f"one wrong image of 60: factor {with_error:.1f}, least sure {least:.2f}")
assert factor > 100 and after > 0.999 and before < 0.9 and with_error < 10
PYTHON
