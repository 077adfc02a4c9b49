#!/usr/bin/env bash
# Pillow 13.0.0, opencv-python-headless 5.0.0.93 (IMREAD_UNCHANGED), tifffile 2026.3.3 and imagecodecs 2026.3.6
# Subject: images and pixels
# Behaviour: of gray pictures of 12 bits, Pillow has the stored values from TIFF, and 16 times as large ones from JPEG
#   2000; OpenCV has the stored values from JPEG 2000, and 16 times as large ones from TIFF. tifffile and imagecodecs
#   have the stored values from both.
# Expected: one scale per library.
# Why it matters: microscope and X-ray images of 12 bits have another brightness after a conversion between both
#   formats, by a factor of 16, or after a change from Pillow to OpenCV; a fixed range (0 to 4095) makes them white.
# Instead: one library for both formats, or divide by 16
# Last lines of a run on 2026-11-29 (stored: 0, 100, 2000, 4095):
#   TIFF: Pillow 13.0.0 [0, 100, 2000, 4095], OpenCV 5.0.0 [0, 1600, 32000, 65520], tifffile [0, 100, 2000, 4095]
#   JPEG 2000: Pillow [0, 1600, 32000, 65520], OpenCV [0, 100, 2000, 4095], imagecodecs [0, 100, 2000, 4095]
# The same on 2026-11-30 with Python 3.13 and imagecodecs 2026.10.10, numpy 2.5.5, tifffile 2026.11.8.
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq pillow==13.0.0 opencv-python-headless==5.0.0.93 tifffile==2026.3.3 imagecodecs==2026.3.6 \
    numpy==2.4.6
venv/bin/python - <<'PYTHON'
import struct
from pathlib import Path

import cv2
import imagecodecs
import numpy as np
import PIL
import tifffile
from PIL import Image

STORED, SCALED = [0, 100, 2000, 4095], [0, 1600, 32000, 65520]
picture = np.tile(np.array(STORED, np.uint16), (8, 4))


def tiff():  # packed, uncompressed, one strip
    bits = "".join(f"{value:012b}" for value in picture.flat)
    data = int(bits, 2).to_bytes(len(bits) // 8, "big")
    height, width = picture.shape
    short, long = 3, 4
    tags = [(256, short, width), (257, short, height), (258, short, 12), (259, short, 1), (262, short, 1)]
    tags += [(273, long, 8), (277, short, 1), (278, short, height), (279, long, len(data))]
    entries = b"".join(struct.pack("<HHII", tag, kind, 1, value) for tag, kind, value in tags)
    return struct.pack("<2sHI", b"II", 42, 8 + len(data)) + data + struct.pack("<H", len(tags)) + entries + bytes(4)


def read(name, last):
    of_pillow, of_opencv = np.asarray(Image.open(name)), cv2.imread(name, cv2.IMREAD_UNCHANGED)
    return [pixels[0, :4].tolist() for pixels in (of_pillow, of_opencv, last(name))]


Path("p.tif").write_bytes(tiff())
Path("p.jp2").write_bytes(imagecodecs.jpeg2k_encode(picture, level=0, bitspersample=12, codecformat="jp2"))
of_tiff, of_jpeg = read("p.tif", tifffile.imread), read("p.jp2", imagecodecs.imread)
print(
    f"TIFF: Pillow {PIL.__version__} {of_tiff[0]}, OpenCV {cv2.__version__} {of_tiff[1]}, tifffile {of_tiff[2]}\n"
    f"JPEG 2000: Pillow {of_jpeg[0]}, OpenCV {of_jpeg[1]}, imagecodecs {of_jpeg[2]}"
)
assert of_tiff == [STORED, SCALED, STORED]
assert of_jpeg == [SCALED, STORED, STORED]
PYTHON
