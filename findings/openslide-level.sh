#!/usr/bin/env bash
# openslide-python 1.4.7, openslide-bin 4.0.1.2, tiffslide 3.0.1, tifffile 2026.3.3
# Subject: DICOM, microscopes, satellites
# Behaviour: read_region() of openslide interpolates on all levels but the first wherever its location, in pixels of
#   level 0, falls between two pixels of the level. A level of 750 of 1501 pixels is smaller by 2.0013, so that the
#   tiles of a grid of even numbers are smoothed, more or less from place to place. tiffslide returns stored pixels.
# Expected: the pixels that the file has, as at the location (0, 0), or rounded to the next one.
# Why it matters: tiles for training are read from a level at multiples of 512 or 1024. The texture of one and the same
#   tissue differs from tile to tile and between both packages, and a check of stored against read pixels fails.
# Instead: read a level whole, from (0, 0), or with tiffslide
# Last lines of a run on 2026-11-30 (noise; standard deviation of tiles of level 1; stored: 37):
#   openslide 1.4.7: sides 750 of 1501, at (0, 0) 37, at (512, 512) 27, at (752, 752) 23
#   tiffslide 3.0.1: at (0, 0) 37, at (512, 512) 37, at (752, 752) 37
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq openslide-python==1.4.7 openslide-bin==4.0.1.2 tiffslide==3.0.1 tifffile==2026.3.3 \
    numpy==2.4.6
venv/bin/python -W ignore - <<'PYTHON'
import importlib.metadata

import numpy as np
import openslide
import tifffile
import tiffslide

slide = np.random.default_rng(0).integers(0, 256, (1501, 1501, 3), dtype=np.uint8)
half = slide[:1500, :1500].reshape(750, 2, 750, 2, 3).mean((1, 3)).astype(np.uint8)
with tifffile.TiffWriter("slide.tif") as writer:
    writer.write(slide, tile=(256, 256), photometric="rgb")
    writer.write(half, tile=(256, 256), photometric="rgb", subfiletype=1)
places = (0, 512, 752)
deviations = {}
for module, opened in ((openslide, openslide.OpenSlide("slide.tif")), (tiffslide, tiffslide.TiffSlide("slide.tif"))):
    tiles = [np.asarray(opened.read_region((place, place), 1, (64, 64)))[..., :3] for place in places]
    assert np.array_equal(tiles[0], half[:64, :64]) and opened.level_dimensions == ((1501, 1501), (750, 750))
    deviations[module] = [float(tile.std()) for tile in tiles]
    found = ", ".join(f"at ({place}, {place}) {std:.0f}" for place, std in zip(places, deviations[module], strict=True))
    sides = "sides 750 of 1501, " if module is openslide else ""
    package = "openslide-python" if module is openslide else "tiffslide"
    print(f"{module.__name__} {importlib.metadata.version(package)}: {sides}{found}")
assert deviations[openslide][1] < 30 and deviations[openslide][2] < 25 and min(deviations[tiffslide]) > 36
PYTHON
