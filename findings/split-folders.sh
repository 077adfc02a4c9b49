#!/usr/bin/env bash
# split-folders 0.6.1
# Subject: tables and lists of images
# Behaviour: ratio() rounds the counts of training and validation down in each class, and the test gets the rest. With
#   0.8, 0.1, 0.1 a class of fewer than ten images has none in val; of nine, test has two, of nineteen three.
# Expected: the nearest counts, at least one image for each split of a class that has three.
# Why it matters: rare classes are not validated: the mean over classes, or the choice of the checkpoint, knows nothing
#   of them, and no warning names them. The folder of the class is there, empty.
# Instead: count the images of each class in each split
# Last lines of a run on 2026-11-29 (0.8, 0.1, 0.1; train, val, test):
#   split-folders 0.6.1: 9 images [7, 0, 2], 15 [12, 1, 2], 19 [15, 1, 3], 40 [32, 4, 4]
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq split-folders==0.6.1
venv/bin/python - 2> errors.txt <<'PYTHON' || { cat errors.txt; exit 1; }
from importlib.metadata import version
from pathlib import Path

import splitfolders

for name, count in {"nine": 9, "fifteen": 15, "nineteen": 19, "forty": 40}.items():
    Path("photos", name).mkdir(parents=True)
    for number in range(count):
        Path("photos", name, f"{number}.jpg").touch()
splitfolders.ratio("photos", output="split", seed=0, ratio=(0.8, 0.1, 0.1))


def counts(name):
    return [len(list(Path("split", split, name).iterdir())) for split in ("train", "val", "test")]


nine, fifteen, nineteen, forty = (counts(name) for name in ("nine", "fifteen", "nineteen", "forty"))
print(f"split-folders {version('split-folders')}: 9 images {nine}, 15 {fifteen}, 19 {nineteen}, 40 {forty}")
assert [nine, fifteen, nineteen, forty] == [[7, 0, 2], [12, 1, 2], [15, 1, 3], [32, 4, 4]]
PYTHON
