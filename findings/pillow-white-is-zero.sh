#!/usr/bin/env bash
# Pillow 13.0.0, opencv-python-headless 5.0.0.93, pyvips 3.2.0 (libvips 8.18.7), tifffile 2026.3.3, rasterio 1.4.4
# Subject: images and pixels
# Behaviour: of a gray TIFF in which 0 is white (PhotometricInterpretation 0), Pillow and OpenCV invert the values of
#   8 bits, and return those of 16 bits as they are stored. pyvips inverts both, tifffile and rasterio neither.
# Expected: one rule per library: black is 0 in what it returns, or the values are those of the file.
# Why it matters: scanners of films, gels and documents write such files, of 8 and of 16 bits. The pictures of 16 bits
#   are negatives beside those of 8 bits of the same scanner; and a network that was trained through Pillow is given
#   negatives by a program with tifffile or GDAL, in 8 bits alone.
# Instead: read PhotometricInterpretation, and invert by it
# Last lines of a run on 2026-11-30 (stored: 0, 100, 255 of 8 bits; 0, 1000, 65535 of 16):
#   Pillow 13.0.0: [255, 155, 0], [0, 1000, 65535]
#   OpenCV 5.0.0: [255, 155, 0], [0, 1000, 65535]
#   pyvips 3.2.0: [255, 155, 0], [65535, 64535, 0]
#   tifffile 2026.3.3: [0, 100, 255], [0, 1000, 65535]
#   rasterio 1.4.4: [0, 100, 255], [0, 1000, 65535]
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq Pillow==13.0.0 opencv-python-headless==5.0.0.93 pyvips==3.2.0 pyvips-binary==8.18.7 \
    tifffile==2026.3.3 rasterio==1.4.4 numpy==2.4.6
venv/bin/python -W ignore - <<'PYTHON'
import importlib.metadata

import cv2
import numpy as np
import PIL
import pyvips
import rasterio
import tifffile
from PIL import Image

stored = {"8.tif": np.array([[0, 100, 255]], np.uint8), "16.tif": np.array([[0, 1000, 65535]], np.uint16)}
for path, values in stored.items():
    tifffile.imwrite(path, values, photometric="miniswhite")
readers = {
    f"Pillow {PIL.__version__}": lambda path: np.asarray(Image.open(path)),
    f"OpenCV {cv2.__version__}": lambda path: cv2.imread(path, cv2.IMREAD_UNCHANGED),
    f"pyvips {importlib.metadata.version('pyvips')}": lambda path: pyvips.Image.new_from_file(path).numpy(),
    f"tifffile {tifffile.__version__}": tifffile.imread,
    f"rasterio {rasterio.__version__}": lambda path: rasterio.open(path).read(1),
}
inverted = {}
for name, read in readers.items():
    found = [np.ravel(read(path)).tolist() for path in stored]
    print(f"{name}: {found[0]}, {found[1]}")
    as_stored = [np.ravel(values).tolist() for values in stored.values()]
    inverted[name.split()[0]] = [values[0] > values[-1] for values in found]
    assert all(sorted(values) == values or values[::-1] == sorted(values) for values in found)
    assert all(got == kept or got[0] == kept[-1] for got, kept in zip(found, as_stored, strict=True))
only_8, both, neither = [True, False], [True, True], [False, False]
assert inverted["Pillow"] == inverted["OpenCV"] == only_8
assert inverted["pyvips"] == both and inverted["tifffile"] == inverted["rasterio"] == neither
PYTHON
