#!/usr/bin/env bash
# Pillow 13.0.0, imagecodecs 2026.3.6 (writes the files), opencv-python-headless 5.0.0.93
# Subject: images and pixels
# Behaviour: Pillow reads JPEG 2000 colors of more than 8 bits as 8 bits, rounded, and the value that rounds to 256
#   becomes 0: of 12 bits, 4088 to 4095 are black. OpenCV's IMREAD_COLOR gives 255.
# Expected: 255 for the largest values.
# Why it matters: overexposed parts, and the white background of slides and scans, turn black, or into a strong color
#   where one channel alone is that bright. No value below them differs by more than rounding.
# Instead: read such files with OpenCV or imagecodecs
# Last lines of a run on 2026-11-29 (stored, as Pillow, as OpenCV):
#   Pillow 13.0.0, 10 bits: [0, 511, 1021, 1022, 1023] as [0, 128, 255, 0, 0]; OpenCV 5.0.0: [0, 127, 255, 255, 255]
#   12 bits: [0, 2047, 4087, 4088, 4095] as [0, 128, 255, 0, 0]; OpenCV: [0, 127, 255, 255, 255]
#   16 bits: [0, 32767, 65407, 65408, 65535] as [0, 128, 255, 0, 0]; OpenCV: [0, 127, 255, 255, 255]
# The same on 2026-11-30 with Python 3.13 and imagecodecs 2026.10.10, numpy 2.5.5.
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq pillow==13.0.0 imagecodecs==2026.3.6 opencv-python-headless==5.0.0.93 numpy==2.4.6
venv/bin/python - <<'PYTHON'
import io

import cv2
import imagecodecs
import numpy as np
import PIL
from PIL import Image


def read(bits):
    top, step = 2**bits - 1, 2 ** (bits - 8)
    stored = [0, top // 2, top - step // 2, top + 1 - step // 2, top]
    pixels = np.repeat(np.tile(np.array(stored, np.uint16), (8, 2))[..., None], 3, axis=2)
    data = imagecodecs.jpeg2k_encode(pixels, level=0, bitspersample=bits, codecformat="jp2", reversible=True)
    assert np.array_equal(imagecodecs.jpeg2k_decode(data), pixels)
    of_pillow = np.asarray(Image.open(io.BytesIO(data)))[0, :5, 0].tolist()
    of_opencv = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)[0, :5, 0].tolist()
    return stored, of_pillow, of_opencv


for bits in (10, 12, 16):
    stored, of_pillow, of_opencv = read(bits)
    program, other = (f"Pillow {PIL.__version__}, ", f" {cv2.__version__}") if bits == 10 else ("", "")
    print(f"{program}{bits} bits: {stored} as {of_pillow}; OpenCV{other}: {of_opencv}")
    assert of_pillow == [0, 128, 255, 0, 0]
    assert of_opencv == [0, 127, 255, 255, 255]
PYTHON
