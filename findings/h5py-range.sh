#!/usr/bin/env bash
# h5py 3.16.0, numpy 2.4.6
# Subject: DICOM, microscopes, satellites
# Behaviour: HDF5 converts numbers on reading and writing, and puts a value beyond the range of the type at its end:
#   written to a data set of uint8, or read with astype("uint8"), 300 is 255 and -5 is 0. numpy's astype of the same
#   values has 44 and 251, so that data["image"].astype("uint8")[...] is not data["image"][...].astype("uint8").
# Expected: the conversion of numpy, where the brackets stand does not matter; or an error.
# Why it matters: slices of 12 bits that are copied into an array of uint8 are white wherever they are above 255,
#   without a warning, and look like overexposed ones. A mask of int16 whose "ignore" is -1 has the class 0 there in
#   place of 255, by which many programs ignore pixels, and which numpy's conversion gives.
# Instead: convert in NumPy after the read, with `clip()` where a value can be outside
# Last lines of a run on 2026-11-30 (300, -5, -1, 1000 of int16):
#   h5py 3.16.0: astype("uint8")[...] [255, 0, 0, 255], [...].astype("uint8") [44, 251, 255, 232]
#   written to uint8: [255, 0, 0, 255]
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq h5py==3.16.0 numpy==2.4.6
venv/bin/python -W error - <<'PYTHON'
import h5py
import numpy as np

values = np.array([300, -5, -1, 1000], np.int16)
with h5py.File("images.h5", "w") as file:
    stored = file.create_dataset("stored", data=values)
    by_file = stored.astype("uint8")[...].tolist()
    by_numpy = stored[...].astype("uint8").tolist()
    narrow = file.create_dataset("narrow", shape=4, dtype="uint8")
    narrow[...] = values
    written = narrow[...].tolist()
print(f'h5py {h5py.__version__}: astype("uint8")[...] {by_file}, [...].astype("uint8") {by_numpy}')
print(f"written to uint8: {written}")
assert by_file == written == [255, 0, 0, 255] and by_numpy == [44, 251, 255, 232]
PYTHON
