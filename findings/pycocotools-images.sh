#!/usr/bin/env bash
# pycocotools 2.0.11
# Subject: tables and lists of images
# Behaviour: COCO.getImgIds(catIds=[1, 2]) returns the images that have both categories; getAnnIds(catIds=[1, 2])
#   returns the annotations of either. An empty list, such as getCatIds() of a misspelt name, returns all images.
# Expected: the images of either category, as for annotations, and no image for no category.
# Why it matters: an image classifier's classes are cut out of COCO this way: with two names the set is the few
#   images that show both, and with one wrong name, or "Cat" for "cat", the class contains the whole data set.
# Instead: join the images of each category; check that `getCatIds()` found one for each name
# Last lines of a run on 2026-11-29 (images 1: cat, 2: dog, 3: both, 4: neither):
#   pycocotools 2.0.11: images of [cat, dog] [3], annotations of them of images [1, 2, 3]
#   images of "Cat", whose categories are []: [1, 2, 3, 4]
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq pycocotools==2.0.11 numpy==2.4.6
venv/bin/python - <<'PYTHON'
import contextlib
import json
from importlib.metadata import version
from pathlib import Path

from pycocotools.coco import COCO

shown = [(1, 1), (2, 2), (3, 1), (3, 2)]  # image, category
box = {"bbox": [0, 0, 8, 8], "area": 64, "iscrowd": 0}
content = {
    "images": [{"id": image, "file_name": f"{image}.jpg", "width": 8, "height": 8} for image in (1, 2, 3, 4)],
    "categories": [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}],
    "annotations": [
        {"id": number, "image_id": image, "category_id": category, **box}
        for number, (image, category) in enumerate(shown, 1)
    ],
}
Path("instances.json").write_text(json.dumps(content))
with contextlib.redirect_stdout(None):
    coco = COCO("instances.json")
categories = coco.getCatIds(catNms=["cat", "dog"])
images = coco.getImgIds(catIds=categories)
annotated = {one["image_id"] for one in coco.loadAnns(coco.getAnnIds(catIds=categories))}
unknown = coco.getCatIds(catNms=["Cat"])
of_unknown = sorted(coco.getImgIds(catIds=unknown))
print(
    f"pycocotools {version('pycocotools')}: images of [cat, dog] {images}, annotations of them of images "
    f"{sorted(annotated)}"
)
print(f'images of "Cat", whose categories are {unknown}: {of_unknown}')
assert images == [3] and annotated == {1, 2, 3}
assert unknown == [] and of_unknown == [1, 2, 3, 4]
PYTHON
