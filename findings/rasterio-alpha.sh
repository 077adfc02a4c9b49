#!/usr/bin/env bash
# rasterio 1.4.4 (GDAL 3.10), Pillow 13.0.0
# Subject: DICOM, microscopes, satellites
# Behaviour: a GeoTIFF of four bands that is written with dtype uint8 and no further option has the fourth band marked
#   as alpha; with uint16 it has not. read(masked=True) then masks all pixels where the fourth band is 0, in all colors,
#   and Pillow opens the file as RGBA.
# Expected: four bands without a meaning, as with uint16; no mask, since no nodata value was given.
# Why it matters: the fourth band of aerial images is near infrared. Where it is 0 (water, shadow) the pixels vanish for
#   readers that apply masks or lay transparency over a background, and only in the uint8 product.
# Instead: write with `photometric="RGB", alpha="unspecified"`
# Last lines of a run on 2026-11-28:
#   rasterio 1.4.4: uint8 red, green, blue, alpha, 160 of 320 pixels masked; uint16 gray, undefined x 3, 0 masked
#   Pillow 13.0.0 opens the uint8 file as RGBA; with alpha="unspecified": red, green, blue, undefined, 0 masked
# The same on 2026-11-30 with Python 3.13 and numpy 2.5.5, rasterio 1.5.2.
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq rasterio==1.4.4 pillow==13.0.0 numpy==2.4.6
venv/bin/python -W ignore - <<'PYTHON'
import numpy as np
import PIL
import rasterio
from PIL import Image

bands = np.full((4, 16, 20), 90, np.uint8)
bands[3, :8] = 0  # near infrared


def written(name, dtype, **options):
    size = {"height": 16, "width": 20, "count": 4}
    with rasterio.open(name, "w", driver="GTiff", dtype=dtype, **size, **options) as file:
        file.write(bands.astype(dtype))
    with rasterio.open(name) as file:
        meanings = [one.name for one in file.colorinterp]
        return meanings, int(np.ma.getmaskarray(file.read(1, masked=True)).sum())


bytes_, of_bytes = written("bytes.tif", "uint8")
words, of_words = written("words.tif", "uint16")
plain, of_plain = written("plain.tif", "uint8", photometric="RGB", alpha="unspecified")
shown = f"{words[0]}, {words[1]} x {words.count(words[1])}"
print(
    f"rasterio {rasterio.__version__}: uint8 {', '.join(bytes_)}, {of_bytes} of 320 pixels masked; "
    f"uint16 {shown}, {of_words} masked"
)
mode = Image.open("bytes.tif").mode
print(
    f"Pillow {PIL.__version__} opens the uint8 file as {mode}; "
    f'with alpha="unspecified": {", ".join(plain)}, {of_plain} masked'
)
assert bytes_[3] == "alpha" and of_bytes == 160 and mode == "RGBA"
assert "alpha" not in words + plain and of_words == of_plain == 0
PYTHON
