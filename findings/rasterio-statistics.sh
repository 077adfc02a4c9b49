#!/usr/bin/env bash
# rasterio 1.4.4 (GDAL 3.10)
# Behaviour: statistics() writes its result to a file x.tif.aux.xml beside the image, and a later call returns that,
#   without a look at the pixels: also after the pixels were changed in "r+", and after x.tif was replaced by another
#   file of this name. Writing the file anew with rasterio.open(path, "w") removes the result.
# Expected: minimum, maximum, mean and deviation of the pixels that read() returns, or an error for a stale file.
# Why it matters: the values for the normalization are those of a scene that is no longer there: of the first version of
#   a mosaic, or of yesterday's file that a download replaced. clear_cache=True computes them again.
# Last lines of a run on 2026-11-30 (mean by statistics() and of read()):
#   rasterio 1.4.4: of the first file 10.0, read 10.0
#   pixels changed in r+: 10.0, read 60.0; file replaced: 10.0, read 200.0; clear_cache=True: 200.0
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq rasterio==1.4.4 numpy==2.4.6
venv/bin/python -W ignore - <<'PYTHON'
import os

import numpy as np
import rasterio


def pixels(mean):
    return np.array([[mean - 5, mean + 5]] * 2, np.uint8)


def write(path, mean):
    with rasterio.open(path, "w", driver="GTiff", width=2, height=2, count=1, dtype="uint8") as file:
        file.write(pixels(mean), 1)


def means(**options):
    with rasterio.open("x.tif") as file:
        return file.statistics(1, **options).mean, float(file.read(1).mean())


write("x.tif", 10)
first = means()
with rasterio.open("x.tif", "r+") as file:
    file.write(pixels(60), 1)
changed = means()
write("new.tif", 200)
os.replace("new.tif", "x.tif")
replaced = means()
cleared = means(clear_cache=True)
print(f"rasterio {rasterio.__version__}: of the first file {first[0]}, read {first[1]}")
print(
    f"pixels changed in r+: {changed[0]}, read {changed[1]}; file replaced: {replaced[0]}, read {replaced[1]}; "
    f"clear_cache=True: {cleared[0]}"
)
assert (first, changed, replaced, cleared[0]) == ((10, 10), (10, 60), (10, 200), 200)
PYTHON
