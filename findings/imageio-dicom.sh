#!/usr/bin/env bash
# imageio 2.38.1 (v3), pydicom 3.0.2 (writes the files)
# Subject: DICOM, microscopes, satellites
# Behaviour: imread() of a DICOM file reads all DICOM files of its folder, sorts them into series, and returns the first
#   series. With two series in the folder, imread("one.dcm") and imread("two.dcm") return the same pixels.
# Expected: the image of the file that was named.
# Why it matters: sets of X-rays (one series per image) lie in one folder by the thousand. Each file gives the pixels of
#   one and the same image, under the labels of all; and each read goes through the whole folder.
# Instead: read single files with pydicom
# Last lines of a run on 2026-11-28:
#   imageio 2.38.1: pixels 100 are in one.dcm, 200 in two.dcm
#   alone in a folder: one.dcm 100, two.dcm 200; together: one.dcm 100, two.dcm 100
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq imageio==2.38.1 pydicom==3.0.2 numpy==2.4.6
venv/bin/python - > output.txt <<'PYTHON'
from pathlib import Path

import imageio
import imageio.v3 as iio
import numpy as np
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.uid import ExplicitVRLittleEndian, SecondaryCaptureImageStorage, generate_uid


def write(path, value):
    path.parent.mkdir(exist_ok=True)
    image = Dataset()
    image.file_meta = FileMetaDataset()
    image.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    image.SOPClassUID = SecondaryCaptureImageStorage
    image.SOPInstanceUID = generate_uid(entropy_srcs=[str(path), "image"])
    image.SeriesInstanceUID = generate_uid(entropy_srcs=[path.name, "series"])
    image.InstanceNumber, image.Rows, image.Columns, image.SamplesPerPixel = 1, 4, 6, 1
    image.PhotometricInterpretation, image.PixelRepresentation = "MONOCHROME2", 0
    image.BitsAllocated, image.BitsStored, image.HighBit = 16, 12, 11
    image.PixelData = np.full((4, 6), value, np.uint16).tobytes()
    image.save_as(path, enforce_file_format=True)


def value_of(path):
    return f"{path.name} {iio.imread(path).flat[0]}"


values = {"one.dcm": 100, "two.dcm": 200}
for name, value in values.items():
    write(Path(name[:3], name), value)
    write(Path("both", name), value)
alone = [value_of(Path(name[:3], name)) for name in values]
together = [value_of(Path("both", name)) for name in values]
print(f"\nimageio {imageio.__version__}: pixels 100 are in one.dcm, 200 in two.dcm")
print(f"alone in a folder: {', '.join(alone)}; together: {', '.join(together)}")
assert alone == ["one.dcm 100", "two.dcm 200"]
assert together[0].split()[1] == together[1].split()[1]
PYTHON
tail -n 2 output.txt
