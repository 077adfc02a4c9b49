#!/usr/bin/env bash
# netCDF4 1.7.5.1.post1, xarray 2026.9.0
# Subject: DICOM, microscopes, satellites
# Behaviour: netCDF4 masks the values that are its own filler for the type, also in a variable that names no fill value:
#   65535 in uint16, 255 in uint8. Reading gives a masked array, whose mean, minimum and maximum leave them out. xarray
#   gives the numbers of the same file.
# Expected: the values that were written; a missing value is one that _FillValue names.
# Why it matters: 65535 and 255 are the white of an image and the saturated pixels of a sensor. The maximum and the mean
#   of a scene are too small, filled(0) paints its brightest parts black, and 255 as the class "ignore" of a mask is
#   gone.
# Instead: `set_auto_mask(False)`
# Last lines of a run on 2026-11-30 (stored: 100, 200, largest value, largest value):
#   netCDF4 1.7.5.1.post1, xarray 2026.9.0
#   uint8: netCDF4 [100 200 -- --], mean 150.0; xarray [100, 200, 255, 255], mean 202.5
#   uint16: netCDF4 [100 200 -- --], mean 150.0; xarray [100, 200, 65535, 65535], mean 32842.5
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq netCDF4==1.7.5.1.post1 xarray==2026.9.0 numpy==2.4.6
venv/bin/python - <<'PYTHON'
import netCDF4
import numpy as np
import xarray

print(f"netCDF4 {netCDF4.__version__}, xarray {xarray.__version__}")
for dtype in "uint8", "uint16":
    stored = np.array([100, 200, np.iinfo(dtype).max, np.iinfo(dtype).max], dtype)
    with netCDF4.Dataset("image.nc", "w") as file:
        file.createDimension("x", 4)
        file.createVariable("pixels", dtype, ("x",))[:] = stored
    with netCDF4.Dataset("image.nc") as file:
        attributes = file["pixels"].ncattrs()
        read = file["pixels"][:]
        file.set_auto_mask(False)
        plain = file["pixels"][:]
    with xarray.open_dataset("image.nc") as file:
        other = file["pixels"].to_numpy()
    print(f"{dtype}: netCDF4 {read}, mean {read.mean()}; xarray {other.tolist()}, mean {other.mean()}")
    assert attributes == [] and read.mask.tolist() == [False, False, True, True]
    assert read.mean() == 150 and read.max() == 200
    assert plain.tolist() == other.tolist() == stored.tolist()
PYTHON
