#!/usr/bin/env bash
# scikit-image 0.26.0, tifffile 2026.3.3, dask 2026.8.0, Pillow 13.0.0
# Subject: tables and lists of images
# Behaviour: imread_collection(paths) of scikit-image sorts the list of paths that it is given, by the numbers in the
#   names: image2 before image10. imread("*.tif") of tifffile has that order, too, for a pattern, and keeps the order of
#   a list. imread("*.png") of dask.array.image, sorted(glob()) and ls have image10 before image2.
# Expected: a list keeps its order, as in tifffile; patterns have one order.
# Why it matters: labels, features and predictions are joined to images by row. The paths of a table give the images in
#   another order than its labels. Patterns agree up to the tenth image, or where numbers have zeros in front, and are
#   mixed in other data sets, without an error.
# Instead: `[skimage.io.imread(path) for path in paths]`, or the names in `collection.files`
# Last lines of a run on 2026-12-01 (the images image1, image2, image10, in the order of the rows):
#   the list 10, 1, 2: scikit-image 0.26.0: 1, 2, 10; tifffile 2026.3.3: 10, 1, 2
#   a pattern: scikit-image 1, 2, 10; tifffile 1, 2, 10; dask 2026.8.0: 1, 10, 2; sorted(glob()): 1, 10, 2
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq scikit-image==0.26.0 tifffile==2026.3.3 "dask[array]==2026.8.0" pillow==13.0.0 numpy==2.4.6
venv/bin/python - <<'PYTHON'
import re
from glob import glob

import dask
import skimage
import tifffile
from dask.array.image import imread
from PIL import Image
from skimage.io import imread_collection

for number in (1, 2, 10):
    image = Image.new("L", (8, 8), number)
    image.save(f"image{number}.png")
    image.save(f"image{number}.tif")


def numbers(images):
    return [int(image[0, 0]) for image in images]


def text(found):
    return ", ".join(map(str, found))


listed = {ending: [f"image{number}.{ending}" for number in (10, 1, 2)] for ending in ("png", "tif")}
skimage_list, tifffile_list = numbers(imread_collection(listed["png"])), numbers(tifffile.imread(listed["tif"]))
skimage_pattern, tifffile_pattern = numbers(imread_collection("*.png")), numbers(tifffile.imread("*.tif"))
dask_pattern = numbers(imread("*.png").compute())
by_letter = [int(re.search(r"\d+", path)[0]) for path in sorted(glob("*.png"))]
print(
    f"the list 10, 1, 2: scikit-image {skimage.__version__}: {text(skimage_list)}; "
    f"tifffile {tifffile.__version__}: {text(tifffile_list)}"
)
print(
    f"a pattern: scikit-image {text(skimage_pattern)}; tifffile {text(tifffile_pattern)}; "
    f"dask {dask.__version__}: {text(dask_pattern)}; sorted(glob()): {text(by_letter)}"
)
assert skimage_list == skimage_pattern == tifffile_pattern == [1, 2, 10] and tifffile_list == [10, 1, 2]
assert dask_pattern == by_letter == [1, 10, 2]
assert imread_collection(listed["png"]).files == ["image1.png", "image2.png", "image10.png"]
PYTHON
