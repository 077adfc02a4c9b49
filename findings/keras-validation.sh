#!/usr/bin/env bash
# keras 3.15.1 (with its jax backend), grain 0.2.18, Pillow 13.0.0
# Subject: shards and loaders
# Behaviour: image_dataset_from_directory() shuffles the list of files before it cuts off validation_split, if shuffle
#   is True. With subset="training", shuffle=True and subset="validation", shuffle=False, and the same seed, the parts
#   overlap: the validation is the end of the unshuffled list, the last class alone, and most of its images are trained
#   on. There is no warning; without shuffle=True and without a seed there is an error.
# Expected: the seed alone decides the parts; shuffle decides the order in which they are read.
# Why it matters: nobody needs a shuffled validation, and predictions are compared with the labels in the order of the
#   files. The accuracy is that of trained images, of one class of many; other images are in neither part.
# Instead: the same `shuffle=` and `seed=` for both parts
# Last lines of a run on 2026-11-29 (five classes of 50 images, validation_split=0.2, seed=1):
#   keras 3.15.1: training 200, validation 50; shuffled both: 0 in both parts, 5 classes in validation
#   shuffle=False for validation: 39 in both parts, 39 in none, 1 class in validation
# The same on 2026-11-30 with Python 3.13 and jax 0.12.0.1, numpy 2.5.5.
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq keras==3.15.1 jax==0.10.2 grain==0.2.18 pillow==13.0.0 numpy==2.4.6
KERAS_BACKEND=jax venv/bin/python - 2> errors.txt <<'PYTHON' || { cat errors.txt; exit 1; }
from pathlib import Path

import keras
from PIL import Image

CLASSES, IMAGES = ("ant", "bee", "cat", "dog", "elk"), 50
for name in CLASSES:
    Path("data", name).mkdir(parents=True)
    for number in range(IMAGES):
        Image.new("RGB", (8, 8), (number, 0, 0)).save(Path("data", name, f"{number:02}.png"))


def files(subset, shuffle):
    split = {"validation_split": 0.2, "subset": subset, "seed": 1, "shuffle": shuffle}
    data = keras.utils.image_dataset_from_directory(
        "data", image_size=(8, 8), format="grain", verbose=False, **split
    )
    return set(data.file_paths)


def figures(validation):
    classes = {Path(file).parent.name for file in validation}
    return len(training & validation), len(CLASSES) * IMAGES - len(training | validation), len(classes)


training, shuffled, in_order = files("training", True), files("validation", True), files("validation", False)
first, second = figures(shuffled), figures(in_order)
print(
    f"keras {keras.__version__}: training {len(training)}, validation {len(shuffled)}; shuffled both: {first[0]} in "
    f"both parts, {first[2]} classes in validation"
)
print(
    f"shuffle=False for validation: {second[0]} in both parts, {second[1]} in none, {second[2]} class in validation"
)
assert first[:2] == (0, 0) and first[2] == 5
assert len(in_order) == len(shuffled) == 50 and second[0] > 25 and second[0] == second[1] and second[2] == 1
PYTHON
