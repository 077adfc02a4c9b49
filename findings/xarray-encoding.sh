#!/usr/bin/env bash
# xarray 2026.9.0, netCDF4 1.7.5.1.post1
# Subject: DICOM, microscopes, satellites
# Behaviour: a variable remembers how its file was packed (uint8, scale_factor), also after its values were replaced in
#   place: ds["image"] /= 300, .values = and [:] = are written by to_netcdf() in the packing of before. All values
#   between 0 and 1 are 0 in the new file.
# Expected: new floats are written as floats; a /= b is a = a / b.
# Why it matters: packed integers are common in satellite and weather data. A data set that was normalized in place is
#   right in memory, and black when it is read for training.
# Instead: assign a new variable, `ds["image"] = ds["image"] / 300`
# Last lines of a run on 2026-11-30 (values 0 to 300 packed by 2, divided by 300):
#   xarray 2026.9.0: /=, .values = and [:] = give [0.0, 0.0, 0.0, 0.0]
#   data["image"] = data["image"] / 300: [0.0, 0.333, 0.667, 1.0]
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq xarray==2026.9.0 netCDF4==1.7.5.1.post1 numpy==2.4.6
venv/bin/python - <<'PYTHON'
import numpy as np
import xarray

packing = {"image": {"dtype": "uint8", "scale_factor": 2.0, "_FillValue": 255}}
xarray.Dataset({"image": ("x", np.arange(0.0, 301, 100))}).to_netcdf("packed.nc", encoding=packing)


def in_place(data):
    data["image"] /= 300


def by_values(data):
    data["image"].values = data["image"].values / 300


def by_slice(data):
    data["image"][:] = data["image"].values / 300


def assigned(data):
    data["image"] = data["image"] / 300


def written_after(change):
    data = xarray.load_dataset("packed.nc")
    change(data)
    assert np.allclose(data["image"], [0, 1 / 3, 2 / 3, 1])
    data.to_netcdf("new.nc")
    return xarray.load_dataset("new.nc")["image"].to_numpy().round(3).tolist()


print(f"xarray {xarray.__version__}: /=, .values = and [:] = give {written_after(in_place)}")
print(f"data[\"image\"] = data[\"image\"] / 300: {written_after(assigned)}")
assert all(written_after(change) == [0, 0, 0, 0] for change in (in_place, by_values, by_slice))
assert written_after(assigned) == [0, 0.333, 0.667, 1]
PYTHON
