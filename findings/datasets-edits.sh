#!/usr/bin/env bash
# datasets 5.2.0, Pillow 13.0.0
# Subject: shards and loaders
# Behaviour: an image that was opened from a file and then changed in place (thumbnail, paste) is stored as the bytes of
#   the file: Dataset.from_dict and map keep the original, without a warning. A new image, as of resize, is kept.
# Expected: the pixels of the object that was given.
# Why it matters: a data set that was made smaller, or had text or faces covered, by map(lambda x: x["image"].thumbnail
#   or .paste) is the original one: its size and speed do not change, and the covered text is in the training.
# Instead: give a new image, as of `resize()` or `crop()`, not one that was changed in place
# Last lines of a run on 2026-11-28:
#   datasets 5.2.0: given (16, 11) after thumbnail, stored (96, 64); given (16, 11) after resize, stored (16, 11)
#   map with thumbnail in place: (96, 64); map with paste of black: mean 200.0, not 0
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq datasets==5.2.0 pillow==13.0.0 numpy==2.4.6
export HF_HOME=$PWD/cache HF_HUB_OFFLINE=1
venv/bin/python - <<'PYTHON'
import datasets
import numpy as np
from PIL import Image

datasets.disable_progress_bars()
FEATURES = datasets.Features({"image": datasets.Image()})
Image.new("RGB", (96, 64), (200, 200, 200)).save("a.png")


def stored(image):
    return datasets.Dataset.from_dict({"image": [image]}, features=FEATURES)[0]["image"]


in_place = Image.open("a.png")
in_place.thumbnail((16, 16))
resized = Image.open("a.png").resize(in_place.size)
print(
    f"datasets {datasets.__version__}: given {in_place.size} after thumbnail, stored {stored(in_place).size}; "
    f"given {resized.size} after resize, stored {stored(resized).size}"
)


def shrink(sample):
    sample["image"].thumbnail((16, 16))
    return sample


def cover(sample):
    sample["image"].paste((0, 0, 0), (0, 0, 96, 64))
    return sample


original = datasets.Dataset.from_dict({"image": ["a.png"]}, features=FEATURES)
shrunk = original.map(shrink)[0]["image"]
covered = np.array(original.map(cover)[0]["image"]).mean()
print(f"map with thumbnail in place: {shrunk.size}; map with paste of black: mean {covered}, not 0")
assert stored(in_place).size == shrunk.size == (96, 64) and stored(resized).size == in_place.size
assert covered == 200
PYTHON
