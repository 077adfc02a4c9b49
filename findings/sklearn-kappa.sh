#!/usr/bin/env bash
# scikit-learn 1.9.1
# Subject: metrics and statistics
# Behaviour: cohen_kappa_score(weights="quadratic" or "linear") weights a disagreement by the places of the two labels
#   among the labels that occur, not by their values. Without a grade 2 in both lists, 1 and 3 are neighbours.
# Expected: the squared difference of the grades, so that the figure equals the one with labels=range(5).
# Why it matters: a split, fold or bootstrap sample without one grade (severe retinopathy is rare) is scored on another
#   scale than the others; a threshold, the choice of a checkpoint or a confidence interval mixes both.
# Instead: `labels=range(number of grades)`
# Last lines of a run on 2026-11-29 (grades 0, 1, 3, 4):
#   scikit-learn 1.9.1, quadratic: 0.8333, with labels=range(5) 0.8667; linear: 0.6667, with labels 0.7143
#   grades 1, 2, 3, 4 in place of 0, 1, 3, 4: 0.8333
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq scikit-learn==1.9.1 numpy==2.4.6
venv/bin/python - <<'PYTHON'
import numpy as np
import sklearn
from sklearn.metrics import cohen_kappa_score

true = np.array([0, 0, 0, 1, 1, 1, 3, 3, 3, 4, 4, 4])
predicted = np.array([0, 0, 1, 1, 3, 0, 3, 4, 3, 4, 4, 3])


def kappas(weights):
    plain = cohen_kappa_score(true, predicted, weights=weights)
    return round(plain, 4), round(cohen_kappa_score(true, predicted, weights=weights, labels=range(5)), 4)


def by_definition(power):
    grades = np.arange(5)
    costs = np.abs(grades[:, None] - grades) ** power
    by_chance = np.outer(np.bincount(true, minlength=5), np.bincount(predicted, minlength=5)) / len(true)
    return round(1 - np.sum(np.abs(true - predicted) ** power) / np.sum(costs * by_chance), 4)


quadratic, linear = kappas("quadratic"), kappas("linear")
print(
    f"scikit-learn {sklearn.__version__}, quadratic: {quadratic[0]}, with labels=range(5) {quadratic[1]}; "
    f"linear: {linear[0]}, with labels {linear[1]}"
)
places = np.array([1, 2, 0, 3, 4])
moved = round(cohen_kappa_score(places[true], places[predicted], weights="quadratic"), 4)
print(f"grades 1, 2, 3, 4 in place of 0, 1, 3, 4: {moved}")
assert (quadratic[1], linear[1]) == (by_definition(2), by_definition(1))
assert quadratic[0] < quadratic[1] and linear[0] < linear[1] and moved == quadratic[0]
PYTHON
