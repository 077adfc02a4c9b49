#!/usr/bin/env bash
# SimpleITK 2.5.7, Pillow 13.0.0 (writes the files)
# Subject: DICOM, microscopes, satellites
# Behaviour: ReadImage() of a picture with a palette gives the colors as 8 bits from PNG and BMP, and as 16 bits, each
#   value 256 times as large, from TIFF.
# Expected: 8 bits from each of them, as Pillow gives.
# Why it matters: after a division by 255 the images of TIFF files are 256 times as bright as the others; a conversion
#   with astype(uint8) makes them black, as the lower 8 bits are 0.
# Instead: read pictures with a palette with Pillow
# Last lines of a run on 2026-11-28 (the color is 200, 30, 60):
#   SimpleITK 2.5.7: png uint8 [200, 30, 60], bmp uint8 [200, 30, 60], tif uint16 [51200, 7680, 15360]
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq SimpleITK==2.5.7 pillow==13.0.0 numpy==2.4.6
venv/bin/python - <<'PYTHON'
import importlib.metadata

import SimpleITK
from PIL import Image

image = Image.new("P", (16, 16), 1)
image.putpalette([0, 0, 0, 200, 30, 60])
found = []
for ending in ("png", "bmp", "tif"):
    image.save(f"a.{ending}")
    pixels = SimpleITK.GetArrayFromImage(SimpleITK.ReadImage(f"a.{ending}"))
    found.append(f"{ending} {pixels.dtype} {pixels.reshape(-1, 3)[0].tolist()}")
print(f"SimpleITK {importlib.metadata.version('SimpleITK')}: {', '.join(found)}")
assert found == ["png uint8 [200, 30, 60]", "bmp uint8 [200, 30, 60]", "tif uint16 [51200, 7680, 15360]"]
PYTHON
