#!/usr/bin/env bash
# Pillow 13.0.0, opencv-python-headless 5.0.0.93
# Subject: images and pixels
# Behaviour: which files with EXIF orientation 6 come out upright depends on the format. Pillow's open() turns TIFF, and
#   leaves JPEG, PNG, WebP and AVIF as stored. OpenCV's imread() turns JPEG, PNG and WebP, and leaves AVIF as stored; of
#   TIFF it returns None, with an error in its log.
# Expected: one rule per library: Pillow turns nothing before exif_transpose(), OpenCV everything.
# Why it matters: photographs that were converted to AVIF or TIFF are not upright in a pipeline that was right for
#   JPEG, or are turned twice by code that applies the tag of the original; sizes from headers have swapped sides.
# Instead: read with Pillow, and call `ImageOps.exif_transpose()`
# Last lines of a run on 2026-11-28 (stored: 31 wide, 20 high; upright: 20 wide, 31 high):
#   Pillow 13.0.0: jpg stored, png stored, webp stored, avif stored, tif upright
#   OpenCV 5.0.0: jpg upright, png upright, webp upright, avif stored, tif None
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq pillow==13.0.0 opencv-python-headless==5.0.0.93
venv/bin/python - 2> errors.txt <<'PYTHON' || { cat errors.txt; exit 1; }
import cv2
import PIL
from PIL import ExifTags, Image

names = [f"a.{ending}" for ending in ("jpg", "png", "webp", "avif", "tif")]
for name in names:
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    Image.new("RGB", (31, 20), (200, 30, 60)).save(name, exif=exif)


def named(name, height):
    return f"{name[2:]} {'upright' if height == 31 else 'stored'}"


by_pillow = [named(name, Image.open(name).height) for name in names]
by_opencv = list[str]()
for name in names:
    pixels = cv2.imread(name)
    by_opencv.append(f"{name[2:]} None" if pixels is None else named(name, pixels.shape[0]))
print(f"Pillow {PIL.__version__}: {', '.join(by_pillow)}")
print(f"OpenCV {cv2.__version__}: {', '.join(by_opencv)}")
assert by_pillow == ["jpg stored", "png stored", "webp stored", "avif stored", "tif upright"]
assert by_opencv == ["jpg upright", "png upright", "webp upright", "avif stored", "tif None"]
PYTHON
