#!/usr/bin/env bash
# keras 3.15.1 (with its jax backend), scikit-learn 1.9.1
# Subject: metrics and statistics
# Behaviour: metrics.AUC() compares the probabilities with 200 thresholds at equal distances from 0 to 1. For a rare
#   class most probabilities lie below the first of them, 0.005, and their order does not count: calibrated
#   probabilities of a class that one image in 1000 shows have an AUROC of 0.91, and 0.76 by Keras. from_logits=True
#   applies the sigmoid first; it is the same.
# Expected: an error of a few thousandths, as of 200 points of the curve.
# Why it matters: the figure of one and the same separation falls with the share of the class, and two data sets, or two
#   checkpoints of another calibration, are not compared by their ranking.
# Instead: `thresholds=` at quantiles of the scores, or `roc_auc_score()` of scikit-learn
# Last lines of a run on 2026-11-29 (share of the class: AUROC of keras, with thresholds at quantiles, of scikit-learn):
#   keras 3.15.1, scikit-learn 1.9.1
#   10%: 0.92, 0.92, 0.92
#   1%: 0.90, 0.92, 0.92
#   0.1%: 0.76, 0.91, 0.91
# The same on 2026-11-30 with Python 3.13 and jax 0.12.0.1, numpy 2.5.5.
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq keras==3.15.1 jax==0.10.2 scikit-learn==1.9.1 numpy==2.4.6
KERAS_BACKEND=jax venv/bin/python - 2> errors.txt <<'PYTHON' || { cat errors.txt; exit 1; }
import keras
import numpy as np
import sklearn
from sklearn.metrics import roc_auc_score

generator = np.random.default_rng(0)


def areas(share):
    labels = (generator.random(200000) < share).astype(int)
    features = generator.normal(size=len(labels)) + 2 * labels
    logits = 2 * features - 2 + np.log(share / (1 - share))  # Bayes' rule: calibrated
    scores = 1 / (1 + np.exp(-logits))

    def of_keras(values, **options):
        metric = keras.metrics.AUC(**options)
        metric.update_state(labels, values)
        return float(metric.result())

    quantiles = [float(value) for value in np.quantile(scores, np.linspace(0, 1, 200))]
    by_default, of_logits = of_keras(scores), of_keras(logits, from_logits=True)
    assert abs(by_default - of_logits) < 0.001
    return by_default, of_keras(scores, thresholds=quantiles), roc_auc_score(labels, scores)


print(f"keras {keras.__version__}, scikit-learn {sklearn.__version__}")
often, seldom, rare = (areas(share) for share in (0.1, 0.01, 0.001))
for share, figures in {"10%": often, "1%": seldom, "0.1%": rare}.items():
    print(f"{share}: {', '.join(f'{figure:.2f}' for figure in figures)}")
assert all(abs(by_quantiles - true) < 0.01 for _, by_quantiles, true in (often, seldom, rare))
assert abs(often[0] - often[2]) < 0.005 and seldom[0] < seldom[2] - 0.01 and rare[0] < rare[2] - 0.1
PYTHON
