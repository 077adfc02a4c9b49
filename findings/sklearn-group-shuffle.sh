#!/usr/bin/env bash
# scikit-learn 1.9.1
# Subject: metrics and statistics
# Behaviour: GroupKFold() fills each fold by the sizes of the groups, so that folds have equally many images;
#   GroupKFold(shuffle=True) deals the groups out by their number, whatever their sizes.
# Expected: shuffle changes which groups are together, as in KFold and StratifiedKFold, not how large the folds are.
# Why it matters: patients, cameras and sites have very different numbers of images. With shuffle=True, which a second
#   or third repetition needs, one fold may validate on a few images and another one train on half of the data; the
#   mean over folds weighs both equally.
# Instead: print the sizes of the folds; choose a seed whose folds are even
# Last lines of a run on 2026-11-29 (2,944 images in 40 groups of 5 to 300, 5 folds):
#   scikit-learn 1.9.1, GroupKFold(5): smallest fold 588 images, largest 589
#   with shuffle=True, twenty seeds: down to 95 images, up to 1392
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq scikit-learn==1.9.1 scipy==1.17.1 numpy==2.4.6
venv/bin/python - <<'PYTHON'
import numpy as np
import sklearn
from sklearn.model_selection import GroupKFold

sizes = np.geomspace(5, 300, 40).astype(int)
groups = np.repeat(np.arange(40), np.random.default_rng(0).permutation(sizes))


def fold_sizes(folds):
    return [len(test) for _, test in folds.split(groups, groups, groups)]


given = fold_sizes(GroupKFold(5))
shuffled = [fold_sizes(GroupKFold(5, shuffle=True, random_state=seed)) for seed in range(20)]
smallest = min(map(min, shuffled))
largest = max(map(max, shuffled))
print(f"scikit-learn {sklearn.__version__}, GroupKFold(5): smallest fold {min(given)} images, largest {max(given)}")
print(f"with shuffle=True, twenty seeds: down to {smallest} images, up to {largest}")
assert max(given) - min(given) <= 5
assert smallest < 200 and largest > 800
assert all(max(sizes) > 1.1 * min(sizes) for sizes in shuffled)
PYTHON
