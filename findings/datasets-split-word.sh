#!/usr/bin/env bash
# datasets 5.2.0, Pillow 13.0.0
# Subject: shards and loaders
# Behaviour: "imagefolder" on class folders looks for a word of a split (train, test, val, dev, eval) in all names of
#   folders and files first. If one image has such a word, it is the data set, without a label; all other images are
#   left out, without a warning.
# Expected: class folders are classes; splits are folders above them that hold all images.
# Why it matters: one photograph test-drive.jpg leaves one image of thousands. A class train beside bus and car, or test
#   beside control, is the only one that is read. drop_labels=False gives labels, not the other images.
# Instead: compare the number of rows with the number of files; rename what contains such a word
# Last lines of a run on 2026-11-29 (four images per folder):
#   datasets 5.2.0: bus, car: train 8, labels ['bus', 'car']
#   bus, car with car/test-drive.jpg: test 1, no labels
#   bus, car, train: train 4, no labels
#   bus, car with car/test-drive.jpg, drop_labels=False: test 1, labels ['car']
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq datasets==5.2.0 pillow==13.0.0 numpy==2.4.6
HF_DATASETS_OFFLINE=1 venv/bin/python - 2> errors.txt <<'PYTHON' || { cat errors.txt; exit 1; }
import tempfile
from pathlib import Path

import datasets
from PIL import Image


def read(*names, **options):
    folder = Path(tempfile.mkdtemp(dir="."))
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8)).save(folder / name)
    splits = datasets.load_dataset("imagefolder", data_dir=str(folder), cache_dir=f"{folder}-cache", **options)
    ((name, split),) = splits.items()
    label = split.features.get("label")
    return f"{name} {len(split)}, {f'labels {label.names}' if label else 'no labels'}"


def class_folders(*names):
    return [f"{name}/{number}.jpg" for name in names for number in range(4)]


with_word = [*class_folders("bus", "car"), "car/test-drive.jpg"]
plain, vehicles = read(*class_folders("bus", "car")), read(*class_folders("bus", "car", "train"))
word, labelled = read(*with_word), read(*with_word, drop_labels=False)
print(f"datasets {datasets.__version__}: bus, car: {plain}")
print(f"bus, car with car/test-drive.jpg: {word}")
print(f"bus, car, train: {vehicles}")
print(f"bus, car with car/test-drive.jpg, drop_labels=False: {labelled}")
assert plain == "train 8, labels ['bus', 'car']"
assert word == "test 1, no labels" and vehicles == "train 4, no labels"
assert labelled == "test 1, labels ['car']"
PYTHON
