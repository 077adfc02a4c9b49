#!/usr/bin/env bash
# pydicom 3.0.2, SimpleITK 2.5.7
# Subject: DICOM, microscopes, satellites
# Behaviour: pixel_array of an image in YBR_FULL has been converted to RGB, and PhotometricInterpretation of the data
#   set still says YBR_FULL. The conversion that code for pydicom 2 makes by that word,
#   convert_color_space(ds.pixel_array, ds.PhotometricInterpretation, "RGB"), converts a second time.
# Expected: the word says what the array is: YBR_FULL for stored values, RGB after the conversion.
# Why it matters: photographs of skin, eye and tissue (ultrasound, endoscopes) have wrong colors after an update of the
#   package alone, and only in files of this kind; RGB files are right.
# Instead: do not convert `pixel_array`; `pixel_array(ds, raw=True)` has the stored values
# Last lines of a run on 2026-11-30 (RGB 200, 60, 20):
#   pydicom 3.0.2: pixel_array [199, 60, 19], YBR_FULL; converted by this word [46, 255, 79]
#   raw=True [97, 84, 201]; SimpleITK 2.5.7 [199, 60, 19]
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq pydicom==3.0.2 SimpleITK==2.5.7 pillow==13.0.0 numpy==2.4.6
venv/bin/python - <<'PYTHON'
import importlib.metadata

import numpy as np
import pydicom
import SimpleITK
from PIL import Image
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.pixels import convert_color_space, pixel_array
from pydicom.uid import ExplicitVRLittleEndian, VLPhotographicImageStorage, generate_uid

stored = np.asarray(Image.new("RGB", (4, 4), (200, 60, 20)).convert("YCbCr"))
dataset = Dataset()
dataset.SOPClassUID, dataset.SOPInstanceUID, dataset.Modality = VLPhotographicImageStorage, generate_uid(), "XC"
dataset.Rows = dataset.Columns = 4
dataset.SamplesPerPixel, dataset.PlanarConfiguration, dataset.PhotometricInterpretation = 3, 0, "YBR_FULL"
dataset.BitsAllocated, dataset.BitsStored, dataset.HighBit, dataset.PixelRepresentation = 8, 8, 7, 0
dataset.PixelData = stored.tobytes()
dataset.file_meta = FileMetaDataset()
dataset.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
dataset.save_as("photo.dcm", enforce_file_format=True)

read = pydicom.dcmread("photo.dcm")
array = read.pixel_array
word = read.PhotometricInterpretation
again = convert_color_space(array, word, "RGB")[0, 0].tolist()
raw = pixel_array(read, raw=True)[0, 0].tolist()
itk = SimpleITK.GetArrayFromImage(SimpleITK.ReadImage("photo.dcm")).reshape(-1, 3)[0].tolist()
print(f"pydicom {pydicom.__version__}: pixel_array {array[0, 0].tolist()}, {word}; converted by this word {again}")
print(f"raw=True {raw}; SimpleITK {importlib.metadata.version('SimpleITK')} {itk}")
assert word == "YBR_FULL" and raw == stored[0, 0].tolist()
assert np.abs(array[0, 0] - [200, 60, 20]).max() <= 2 and np.abs(np.subtract(itk, [200, 60, 20])).max() <= 2
assert np.abs(np.subtract(again, [200, 60, 20])).max() > 100
PYTHON
