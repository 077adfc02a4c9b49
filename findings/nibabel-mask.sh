#!/usr/bin/env bash
# nibabel 5.4.2
# Subject: DICOM, microscopes, satellites
# Behaviour: a mask of floats that is saved with the header of its scan, Nifti1Image(mask, scan.affine, scan.header), is
#   spread over the integers of the scan's type. 1.0 comes back from int16 as 0.9999999998: no voxel is equal to 1, and
#   astype(int) is 0 everywhere. A mask of integers comes back as it was.
# Expected: 0 and 1, which int16 holds, and the type of the array, not of the scan, decides.
# Why it matters: networks and resampling give masks as floats. "Has this slice a lesion", (mask == 1).any(), is False
#   for all slices, and the classes of astype(int) are 0, 0, 1, 2 in place of 0, 1, 2, 3, without a warning.
#   get_fdata(dtype=float32) rounds to 1.
# Instead: save the mask as integers: `mask.astype(np.uint8)`
# Last lines of a run on 2026-11-30:
#   nibabel 5.4.2, 0 1 1 0 as float32: [0.0, 0.9999999997671694, 0.9999999997671694, 0.0]
#   equal to 1: 0 of 2, as uint8 2; astype(int) [0, 0, 0, 0], of 0 1 2 3: [0, 0, 1, 2]
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq nibabel==5.4.2 numpy==2.4.6
venv/bin/python - <<'PYTHON'
import nibabel
import numpy as np

pixels = np.arange(-8, 8, dtype=np.int16).reshape(4, 2, 2)
nibabel.save(nibabel.Nifti1Image(pixels, np.eye(4)), "scan.nii.gz")
scan = nibabel.load("scan.nii.gz")


def read_back(classes, dtype):
    mask = np.broadcast_to(np.array(classes, dtype)[:, None, None], (4, 2, 2)).copy()
    nibabel.save(nibabel.Nifti1Image(mask, scan.affine, scan.header), "mask.nii.gz")
    return nibabel.load("mask.nii.gz").get_fdata()[:, 0, 0]


binary, integers = read_back([0, 1, 1, 0], "float32"), read_back([0, 1, 1, 0], "uint8")
several = read_back([0, 1, 2, 3], "float32")
print(f"nibabel {nibabel.__version__}, 0 1 1 0 as float32: {[float(value) for value in binary]}")
print(
    f"equal to 1: {int((binary == 1).sum())} of 2, as uint8 {int((integers == 1).sum())}; "
    f"astype(int) {binary.astype(int).tolist()}, of 0 1 2 3: {several.astype(int).tolist()}"
)
assert np.allclose(binary, [0, 1, 1, 0]) and not (binary == 1).any() and not binary.astype(int).any()
assert integers.tolist() == [0, 1, 1, 0] and several.astype(int).tolist() == [0, 0, 1, 2]
PYTHON
