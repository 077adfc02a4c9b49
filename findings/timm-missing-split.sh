#!/usr/bin/env bash
# timm 1.0.31, torch 2.14.1, torchvision 0.29.1 (5 GB are downloaded)
# Subject: shards and loaders
# Behaviour: create_dataset(root=..., split="test") of a folder with train/ and val/ only reads all images below the
#   folder: a split whose folder is missing is the whole root. The classes are right, since timm names them by the
#   last folder. There is no message.
# Expected: an error that names the missing folder.
# Why it matters: the accuracy on "test images" is then that on the training and the validation images together, higher
#   than the true one, and nothing but the number of images says so.
# Instead: give the folder of the split itself, `root="data/val", search_split=False`; compare the number of images
# Last lines of a run on 2026-11-30 (data/train has 6 images of two classes, data/val has 4):
#   timm 1.0.31: train 6, validation 4, test 10, holdout 10
#   classes of test: cat, dog; its folders: train, val
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq timm==1.0.31 torch==2.14.1 torchvision==0.29.1 pillow==13.0.0 numpy==2.4.6
OMP_NUM_THREADS=1 venv/bin/python - 2> errors.txt <<'PYTHON' || { cat errors.txt; exit 1; }
from pathlib import Path

import timm
from PIL import Image
from timm.data import create_dataset

for split, number in (("train", 3), ("val", 2)):
    for name in ("cat", "dog"):
        folder = Path("data", split, name)
        folder.mkdir(parents=True)
        for index in range(number):
            Image.new("RGB", (8, 8)).save(folder / f"{index}.png")

found = {split: create_dataset("", root="data", split=split) for split in ("train", "validation", "test", "holdout")}
print(f"timm {timm.__version__}: {', '.join(f'{split} {len(images)}' for split, images in found.items())}")
folders = sorted({name.split("/")[0] for name in found["test"].filenames()})
print(f"classes of test: {', '.join(found['test'].reader.class_to_idx)}; its folders: {', '.join(folders)}")
assert [*map(len, found.values())] == [6, 4, 10, 10] and folders == ["train", "val"]
assert [*found["test"].reader.class_to_idx] == ["cat", "dog"]
assert len(create_dataset("", root="data/val", split="test", search_split=False)) == 4
PYTHON
