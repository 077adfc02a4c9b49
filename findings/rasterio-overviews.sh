#!/usr/bin/env bash
# rasterio 1.4.4 (GDAL 3.10)
# Subject: DICOM, microscopes, satellites
# Behaviour: read(out_shape=...) of a file with overviews resamples the nearest larger overview, not the image:
#   resampling=Resampling.average returns single pixels where the overview was built with "nearest". The same pixels in
#   a file without overviews give the means.
# Expected: the means of the pixels for "average", whatever copies the file has for viewers.
# Why it matters: large scenes are read smaller like this, for training and for serving. The files of one producer have
#   overviews, those of another have none: the former have the noise and the jagged edges of single pixels, the latter
#   are smooth.
# Instead: `rasterio.open(path, OVERVIEW_LEVEL="NONE")`
# Last lines of a run on 2026-11-30 (noise of 0 and 200, 512 pixels read as 128):
#   rasterio 1.4.4, average: without overviews 16 values, standard deviation 25; with 2 values, 100
#   with OVERVIEW_LEVEL="NONE": the same as without overviews
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq rasterio==1.4.4 numpy==2.4.6
venv/bin/python -W ignore - <<'PYTHON'
import numpy as np
import rasterio
from rasterio.enums import Resampling

image = np.random.default_rng(0).integers(0, 2, (512, 512), dtype=np.uint8) * 200
with rasterio.open("scene.tif", "w", driver="GTiff", width=512, height=512, count=1, dtype="uint8") as file:
    file.write(image, 1)


def read(**options):
    with rasterio.open("scene.tif", **options) as file:
        return file.read(1, out_shape=(128, 128), resampling=Resampling.average)


plain = read()
with rasterio.open("scene.tif", "r+") as file:
    file.build_overviews([2, 4], Resampling.nearest)
with_overviews, whole = read(), read(OVERVIEW_LEVEL="NONE")
assert np.array_equal(whole, plain)
print(
    f"rasterio {rasterio.__version__}, average: without overviews {len(np.unique(plain))} values, standard deviation "
    f"{plain.std():.0f}; with {len(np.unique(with_overviews))} values, {with_overviews.std():.0f}"
)
print('with OVERVIEW_LEVEL="NONE": the same as without overviews')
assert len(np.unique(plain)) > 10 and set(np.unique(with_overviews)) == {0, 200}
PYTHON
