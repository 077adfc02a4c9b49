#!/usr/bin/env bash
# SimpleITK 2.5.7, pydicom 3.0.2
# Subject: DICOM, microscopes, satellites
# Behaviour: ReadImage() inverts the pixels of a DICOM image with MONOCHROME1 (0 is white) and 12 bits: value v becomes
#   4095 - v. pydicom's pixel_array has them as stored.
# Expected: both give the stored values, and the caller inverts where PhotometricInterpretation says so.
# Why it matters: X-rays come in both kinds. Code written for pydicom ("if MONOCHROME1: max - pixels") turns the images
#   into negatives again after a change to SimpleITK; a model trained with one reader sees negatives with the other.
# Instead: invert by PhotometricInterpretation with pydicom only
# Last lines of a run on 2026-11-28:
#   SimpleITK 2.5.7, pydicom 3.0.2; stored: [0, 500, 1000, 4095]
#   MONOCHROME2: pydicom [0, 500, 1000, 4095], SimpleITK [0, 500, 1000, 4095]
#   MONOCHROME1: pydicom [0, 500, 1000, 4095], SimpleITK [4095, 3595, 3095, 0]
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq SimpleITK==2.5.7 pydicom==3.0.2 numpy==2.4.6
venv/bin/python - <<'PYTHON'
import importlib.metadata

import numpy as np
import pydicom
import SimpleITK
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.uid import DigitalXRayImageStorageForPresentation, ExplicitVRLittleEndian, generate_uid

STORED = [0, 500, 1000, 4095]


def write(photometric):
    image = Dataset()
    image.file_meta = FileMetaDataset()
    image.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    image.SOPClassUID = DigitalXRayImageStorageForPresentation
    image.SOPInstanceUID, image.SeriesInstanceUID = generate_uid(), generate_uid()
    image.InstanceNumber, image.Rows, image.Columns, image.SamplesPerPixel = 1, 4, 4, 1
    image.PhotometricInterpretation, image.PixelRepresentation = photometric, 0
    image.BitsAllocated, image.BitsStored, image.HighBit = 16, 12, 11
    image.PixelData = np.array([STORED] * 4, np.uint16).tobytes()
    image.save_as(f"{photometric}.dcm", enforce_file_format=True)


print(f"SimpleITK {importlib.metadata.version('SimpleITK')}, pydicom {pydicom.__version__}; stored: {STORED}")
read = {}
for photometric in ("MONOCHROME2", "MONOCHROME1"):
    write(photometric)
    by_pydicom = pydicom.dcmread(f"{photometric}.dcm").pixel_array[0].tolist()
    by_itk = SimpleITK.GetArrayFromImage(SimpleITK.ReadImage(f"{photometric}.dcm")).ravel()[:4].tolist()
    print(f"{photometric}: pydicom {by_pydicom}, SimpleITK {by_itk}")
    read[photometric] = by_pydicom, by_itk
assert read["MONOCHROME2"] == (STORED, STORED)
assert read["MONOCHROME1"] == (STORED, [4095 - value for value in STORED])
PYTHON
