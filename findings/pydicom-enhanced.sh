#!/usr/bin/env bash
# pydicom 3.0.2, SimpleITK 2.5.7
# Subject: DICOM, microscopes, satellites
# Behaviour: apply_modality_lut() and apply_voi_lut() look at the top level of the data set only. Enhanced CT and MR
#   files (several frames in one) have slope, intercept and window in their functional groups: both functions return
#   the stored values, without a warning. SimpleITK applies slope and intercept.
# Expected: Hounsfield units, as for the single files of the same scanner, or an error.
# Why it matters: -1000 to 3000 of one file stands beside 24 to 4024 of another: a fixed window of 40 +- 200 makes
#   nearly all tissue of the Enhanced files white. Scanners write both kinds.
# Instead: copy slope, intercept and window of each frame to the top level before
# Last lines of a run on 2026-11-30 (stored 1064, intercept -1024, window 40 +- 200):
#   pydicom 3.0.2: 1064, window 1064; SimpleITK 2.5.7: 40
#   pydicom, with slope, intercept and window at the top level: 40, window 31826
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq pydicom==3.0.2 SimpleITK==2.5.7 numpy==2.4.6
venv/bin/python - <<'PYTHON'
import importlib.metadata

import numpy as np
import pydicom
import SimpleITK
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.pixels import apply_modality_lut, apply_voi_lut
from pydicom.uid import EnhancedCTImageStorage, ExplicitVRLittleEndian, generate_uid


def nested(**values):
    dataset = Dataset()
    for name, value in values.items():
        setattr(dataset, name, value)
    return dataset


frames = [nested(PlanePositionSequence=[nested(ImagePositionPatient=[0, 0, number])]) for number in range(2)]
values = {"RescaleIntercept": "-1024", "RescaleSlope": "1", "RescaleType": "HU"}
window = {"WindowCenter": "40", "WindowWidth": "400"}
shared = nested(
    PixelMeasuresSequence=[nested(PixelSpacing=[1, 1], SliceThickness=1)],
    PlaneOrientationSequence=[nested(ImageOrientationPatient=[1, 0, 0, 0, 1, 0])],
    PixelValueTransformationSequence=[nested(**values)],
    FrameVOILUTSequence=[nested(**window)],
)


def read(**top_level):
    dataset = nested(SOPClassUID=EnhancedCTImageStorage, SOPInstanceUID=generate_uid(), Modality="CT", **top_level)
    dataset.StudyInstanceUID, dataset.SeriesInstanceUID = generate_uid(), generate_uid()
    dataset.Rows = dataset.Columns = 4
    dataset.SamplesPerPixel, dataset.PhotometricInterpretation, dataset.PixelRepresentation = 1, "MONOCHROME2", 0
    dataset.BitsAllocated, dataset.BitsStored, dataset.HighBit, dataset.NumberOfFrames = 16, 16, 15, 2
    dataset.SharedFunctionalGroupsSequence, dataset.PerFrameFunctionalGroupsSequence = [shared], frames
    dataset.PixelData = np.full((2, 4, 4), 1064, np.uint16).tobytes()
    dataset.file_meta = FileMetaDataset()
    dataset.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    dataset.save_as("scan.dcm", enforce_file_format=True)
    dataset = pydicom.dcmread("scan.dcm")
    units = apply_modality_lut(dataset.pixel_array, dataset)
    return float(units[0, 0, 0]), float(apply_voi_lut(units, dataset)[0, 0, 0])


enhanced = read()
version = importlib.metadata.version("SimpleITK")
itk = int(SimpleITK.GetArrayFromImage(SimpleITK.ReadImage("scan.dcm"))[0, 0, 0])
plain = read(**values, **window)
print(f"pydicom {pydicom.__version__}: {enhanced[0]:g}, window {enhanced[1]:g}; SimpleITK {version}: {itk}")
print(f"pydicom, with slope, intercept and window at the top level: {plain[0]:g}, window {plain[1]:.0f}")
assert enhanced == (1064, 1064) and itk == plain[0] == 40 and plain[1] != 1064
PYTHON
