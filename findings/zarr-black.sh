#!/usr/bin/env bash
# xarray 2026.9.0, zarr 3.1.6
# Subject: DICOM, microscopes, satellites
# Behaviour: open_zarr() of xarray takes the fill value of a zarr array of format 2 for missing values. It is 0 unless
#   somebody chose another one: black pixels are NaN, and an image of uint8 is float32. The same array in format 3, and
#   zarr itself with both formats, give 0 and uint8.
# Expected: the values and the type of the array. A fill value is what chunks have that were not written.
# Why it matters: mean and deviation leave the black pixels out, and a batch with one of them gives a loss of NaN. The
#   class 0 of labels is missing: notnull() and dropna() remove it.
# Instead: `mask_and_scale=False`
# Last lines of a run on 2026-11-30 (stored: 0, 1, 255):
#   format 2: zarr 3.1.6 uint8 [0, 1, 255], xarray 2026.9.0 float32 [nan, 1.0, 255.0]
#   format 3: zarr 3.1.6 uint8 [0, 1, 255], xarray 2026.9.0 uint8 [0, 1, 255]
#   format 2, mask_and_scale=False: uint8 [0, 1, 255]
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq xarray==2026.9.0 zarr==3.1.6 numpy==2.4.6
venv/bin/python -W ignore - <<'PYTHON'
import xarray
import zarr

found = {}
for version in (2, 3):
    path = f"images{version}.zarr"
    names = {"dimension_names": ["x"]} if version == 3 else {"attributes": {"_ARRAY_DIMENSIONS": ["x"]}}
    group = zarr.create_group(path, zarr_format=version)
    array = group.create_array("image", shape=3, dtype="uint8", **names)
    array[:] = [0, 1, 255]

    def read(path=path, **options):
        image = xarray.open_zarr(path, consolidated=False, **options)["image"]
        return f"{image.dtype} {image.values.tolist()}"

    by_zarr = f"{array.dtype} {array[:].tolist()}"
    found[version] = by_zarr, read(), read(mask_and_scale=False)
    print(f"format {version}: zarr {zarr.__version__} {by_zarr}, xarray {xarray.__version__} {found[version][1]}")
print(f"format 2, mask_and_scale=False: {found[2][2]}")
right = "uint8 [0, 1, 255]"
assert found == {2: (right, "float32 [nan, 1.0, 255.0]", right), 3: (right,) * 3}
PYTHON
