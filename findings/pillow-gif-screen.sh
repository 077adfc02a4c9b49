#!/usr/bin/env bash
# Pillow 13.0.0, opencv-python-headless 5.0.0.93
# Subject: images and pixels
# Behaviour: of a GIF whose first frame is smaller than its screen, Pillow fills the rest with the first color of the
#   palette; OpenCV with the background color that the file names.
# Expected: one image; the file has a background color for this purpose.
# Why it matters: a border of another color around drawings and sprites is a feature that a model learns: weights that
#   were trained with one loader meet other borders in the other.
# Instead: save such files as PNG with the program that shows them as wanted
# Last lines of a run on 2026-11-30 (the corner, and a pixel of the frame):
#   Pillow 13.0.0: [200, 60, 30], [0, 0, 255]
#   OpenCV 5.0.0: [0, 128, 0], [0, 0, 255]
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq pillow==13.0.0 opencv-python-headless==5.0.0.93 numpy==2.4.6
venv/bin/python - <<'PYTHON'
import io

import cv2
import numpy as np
import PIL
from PIL import Image

FIRST, BACKGROUND, FRAME = [200, 60, 30], [0, 128, 0], [0, 0, 255]
pixels = np.full((8, 8), 2, np.uint8)
pixels[0, :2] = 0, 1  # all colors are used, so that the palette stays
small = Image.fromarray(pixels, "P")
small.putpalette(FIRST + BACKGROUND + FRAME)
small.save(file := io.BytesIO(), "GIF", optimize=False)
data = bytearray(file.getvalue())
data[6:10] = 16, 0, 16, 0  # width and height of the screen
data[11] = 1  # the number of the background color
descriptor = data.index(b"\x2c\0\0\0\0")
data[descriptor + 1 : descriptor + 5] = 4, 0, 4, 0  # left and top of the frame
data = bytes(data)


def shown(image):
    return image[0, 0].tolist(), image[8, 8].tolist()


of_pillow = shown(np.asarray(Image.open(io.BytesIO(data)).convert("RGB")))
of_opencv = shown(cv2.cvtColor(cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR), cv2.COLOR_BGR2RGB))
print(f"Pillow {PIL.__version__}: {of_pillow[0]}, {of_pillow[1]}")
print(f"OpenCV {cv2.__version__}: {of_opencv[0]}, {of_opencv[1]}")
assert of_pillow == (FIRST, FRAME)
assert of_opencv == (BACKGROUND, FRAME)
PYTHON
