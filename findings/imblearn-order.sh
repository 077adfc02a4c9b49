#!/usr/bin/env bash
# imbalanced-learn 0.14.2, scikit-learn 1.9.1
# Subject: tables and lists of images
# Behaviour: RandomUnderSampler.fit_resample() returns the rows sorted by class, those of a class in the order of the
#   draw. RandomOverSampler returns the rows in their order, and appends the drawn ones sorted by class: its end has the
#   rare classes alone.
# Expected: the rows that stay in the order that they had, or all rows shuffled: random_state draws rows, too.
# Why it matters: a list of images is balanced and then cut, the last fifth for validation (validation_split of Keras'
#   fit, Subset, iloc): the validation is of the last class, which the training has hardly seen, and after oversampling
#   it consists of copies of trained images.
# Instead: sort `sample_indices_`, or shuffle the rows before they are cut
# Last lines of a run on 2026-11-29 (shuffled rows of three classes: 300, 150 and 50):
#   imbalanced-learn 0.14.2, under: last fifth of 150 rows: classes [2]; sorted by class True
#   over: last fifth of 900 rows: classes [2], 180 of them copies of earlier rows; first 500 rows as given True
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq imbalanced-learn==0.14.2 scikit-learn==1.9.1 scipy==1.17.1 numpy==2.4.6
venv/bin/python - 2> errors.txt <<'PYTHON' || { cat errors.txt; exit 1; }
import imblearn
import numpy as np
from imblearn.over_sampling import RandomOverSampler
from imblearn.under_sampling import RandomUnderSampler

labels = np.random.default_rng(0).permutation(np.repeat([0, 1, 2], [300, 150, 50]))
rows = np.arange(len(labels))[:, None]


def balanced(sampler):
    chosen, classes = sampler(random_state=0).fit_resample(rows, labels)
    first = len(classes) * 4 // 5
    copies = np.isin(chosen[first:, 0], chosen[:first, 0]).sum()
    return chosen[:, 0], classes, sorted(set(classes[first:].tolist())), int(copies)


under, under_classes, under_end, _ = balanced(RandomUnderSampler)
over, over_classes, over_end, copies = balanced(RandomOverSampler)
by_class = bool((np.diff(under_classes) >= 0).all())
as_given = np.array_equal(over[: len(labels)], rows[:, 0])
print(
    f"imbalanced-learn {imblearn.__version__}, under: last fifth of {len(under)} rows: classes {under_end}; sorted by "
    f"class {by_class}"
)
print(
    f"over: last fifth of {len(over)} rows: classes {over_end}, {copies} of them copies of earlier rows; first "
    f"{len(labels)} rows as given {as_given}"
)
assert len(under) == 150 and under_end == [2] and by_class and (np.diff(under[:50]) < 0).any()
assert len(over) == 900 and over_end == [2] and copies == 180 and as_given
assert (np.diff(over_classes[len(labels) :]) >= 0).all()
PYTHON
