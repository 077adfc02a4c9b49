#!/usr/bin/env bash
# pydicom 3.0.2
# Subject: DICOM, microscopes, satellites
# Behaviour: apply_voi_lut() spreads the window over the range of the stored bits after the rescale: of a 12-bit CT with
#   intercept -1024 and a window of 40 +- 200 HU the result is float64 from -1024 to 3071. With several windows the
#   first is taken; without a window the pixels come back as they are.
# Expected: 0 to 255, 0 to 1, or the clipped HU of the window (-160 to 240).
# Why it matters: astype(uint8) of the result wraps around, and a fixed division by 255 or 4095 gives another brightness
#   for each scanner's intercept; images without a window keep their raw range beside those with one.
# Instead: clip to the window and scale by own code
# Last lines of a run on 2026-11-28:
#   pydicom 3.0.2: HU [-1024.0, -24.0, 40.0, 976.0, 3071.0]
#   window 40 +- 200: [-1024.0, 371.8, 1028.6, 3071.0, 3071.0] float64; no window: [-1024.0, -24.0, 40.0, 976.0, 3071.0]
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq pydicom==3.0.2 numpy==2.4.6
venv/bin/python - <<'PYTHON'
import numpy as np
import pydicom
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.pixels import apply_modality_lut, apply_voi_lut
from pydicom.uid import ExplicitVRLittleEndian

image = Dataset()
image.file_meta = FileMetaDataset()
image.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
image.Rows, image.Columns, image.SamplesPerPixel = 2, 5, 1
image.PhotometricInterpretation, image.PixelRepresentation = "MONOCHROME2", 0
image.BitsAllocated, image.BitsStored, image.HighBit = 16, 12, 11
image.RescaleSlope, image.RescaleIntercept = "1", "-1024"
image.PixelData = np.array([[0, 1000, 1064, 2000, 4095]] * 2, np.uint16).tobytes()
units = apply_modality_lut(image.pixel_array, image)
plain = apply_voi_lut(units, image)
image.WindowCenter, image.WindowWidth = "40", "400"
windowed = apply_voi_lut(units, image)


def row(values):
    return [round(float(value), 1) for value in values[0]]


print(f"pydicom {pydicom.__version__}: HU {row(units)}")
print(f"window 40 +- 200: {row(windowed)} {windowed.dtype}; no window: {row(plain)}")
assert windowed.min() == -1024 and windowed.max() == 3071 and windowed.dtype == np.float64
assert row(plain) == row(units)
PYTHON
