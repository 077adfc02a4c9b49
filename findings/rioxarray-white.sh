#!/usr/bin/env bash
# rioxarray 0.19.0, rasterio 1.4.4 (GDAL 3.10)
# Subject: DICOM, microscopes, satellites
# Behaviour: rio.reproject() of an image without a nodata value fills the corners with the largest value of an
#   unsigned type, 255 or 65535, and marks this value as nodata: saturated pixels of the image are missing values in the
#   file that is written. reproject() of rasterio fills with 0, and marks none.
# Expected: the corners alone are missing, as a mask says it.
# Why it matters: clouds, snow and roofs are at the end of the range. Readers that honour nodata drop them or fill
#   them, and tiles at the border of a scene have white corners in one data set and black ones in another.
# Instead: `rio.reproject(crs, nodata=0)` where 0 does not occur, or float32, whose value is NaN
# Last lines of a run on 2026-11-30 (an image of the value 100 with 100 pixels of 255, to the next UTM zone):
#   rioxarray 0.19.0: corners uint8 255, uint16 65535, float32 nan; rasterio 1.4.4: 0, 0, 0
#   nodata of the written file 255; missing 517 pixels, 417 of them in the corners; rasterio: nodata None
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq rioxarray==0.19.0 rasterio==1.4.4 numpy==2.4.6
venv/bin/python - 2> errors.txt <<'PYTHON' || { cat errors.txt; exit 1; }
import numpy as np
import rasterio
import rioxarray
from rasterio.transform import from_origin
from rasterio.warp import reproject

ZONES = {"src_crs": "EPSG:32632", "dst_crs": "EPSG:32633"}
PLACE = from_origin(500000, 5000000, 10, 10)


def moved(pixels):
    """The image in the next zone by rioxarray, and its pixels there by rasterio."""
    options = {"driver": "GTiff", "height": 50, "width": 50, "count": 1, "transform": PLACE, "crs": ZONES["src_crs"]}
    with rasterio.open("image.tif", "w", dtype=pixels.dtype, **options) as file:
        file.write(pixels, 1)
    other, _ = reproject(pixels, src_transform=PLACE, **ZONES)
    return rioxarray.open_rasterio("image.tif").rio.reproject(ZONES["dst_crs"]), other


corners = {}
for dtype in ("uint8", "uint16", "float32"):
    image, other = moved(np.full((50, 50), 100, dtype))
    corners[dtype] = image.values[0, 0, 0].item(), other.ravel()[0].item()
names = ", ".join(f"{dtype} {white}" for dtype, (white, _) in corners.items())
zeros = ", ".join(f"{zero:g}" for _, zero in corners.values())
print(f"rioxarray {rioxarray.__version__}: corners {names}; rasterio {rasterio.__version__}: {zeros}")
assert corners["uint8"] == (255, 0) and corners["uint16"] == (65535, 0) and np.isnan(corners["float32"][0])

pixels = np.full((50, 50), 100, np.uint8)
outside = int((moved(pixels)[0].values == 255).sum())
pixels[20:30, 20:30] = 255
image, other = moved(pixels)
image.rio.to_raster("moved.tif")
with rasterio.open("moved.tif") as file, rasterio.open("image.tif") as source:
    missing = int((file.read_masks(1) == 0).sum())
    print(
        f"nodata of the written file {file.nodata:g}; missing {missing} pixels, {outside} of them in the corners; "
        f"rasterio: nodata {source.nodata}"
    )
    assert file.nodata == 255 and source.nodata is None
assert missing - outside > 90 and (other == 255).sum() > 90
PYTHON
