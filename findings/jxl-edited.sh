#!/usr/bin/env bash
# pillow-jxl-plugin 1.3.8, Pillow 13.0.0
# Subject: images and pixels
# Behaviour: an image that was opened from a JPEG file and then changed in place (ImageDraw, paste, putpixel) is saved
#   as JPEG XL without the change: the bytes of the JPEG file on the disk are transcoded.
# Expected: the pixels of the image, as save() writes them in each other format.
# Why it matters: faces, names and patient numbers that were painted over are in the archive that was made to share; a
#   data set with masked regions trains on what the masks hide.
# Instead: `lossless_jpeg=False`, or save a `copy()`
# Last lines of a run on 2026-11-29 (mean of a white JPEG that was painted black):
#   Pillow 13.0.0: image.jxl 255.0, with lossless_jpeg=False 0.0; image.png 0.0
#   of a copy() of the image 0.0
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq pillow-jxl-plugin==1.3.8 pillow==13.0.0 numpy==2.4.6
venv/bin/python -W ignore - <<'PYTHON'
import numpy as np
import PIL
import pillow_jxl  # noqa: F401  registers the format
from PIL import Image, ImageDraw

Image.new("RGB", (64, 64), "white").save("image.jpg")


def mean_after(name, copied=False, **options):
    image = Image.open("image.jpg")
    ImageDraw.Draw(image).rectangle((0, 0, 63, 63), fill="black")
    saved = image.copy() if copied else image
    saved.save(name, **options)
    return float(np.asarray(Image.open(name)).mean())


plain, pixels = mean_after("image.jxl"), mean_after("pixels.jxl", lossless_jpeg=False)
png = mean_after("image.png")
print(f"Pillow {PIL.__version__}: image.jxl {plain}, with lossless_jpeg=False {pixels}; image.png {png}")
copied = mean_after("copied.jxl", copied=True)
print(f"of a copy() of the image {copied}")
assert (plain, pixels, copied, png) == (255.0, 0.0, 0.0, 0.0)
PYTHON
