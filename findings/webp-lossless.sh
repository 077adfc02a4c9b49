#!/usr/bin/env bash
# Pillow 13.0.0, opencv-python-headless 5.0.0.93, imagecodecs 2026.3.6
# Subject: images and pixels
# Behaviour: a lossless WebP of Pillow (lossless=True) or OpenCV (quality 101) has black where alpha is 0; the colors
#   that were there are gone. Pillow keeps them with exact=True, imagecodecs by default.
# Expected: a lossless file gives the array that was saved, as PNG does.
# Why it matters: programs that drop the alpha channel (convert("RGB") in torchvision, timm and datasets) see the colors
#   behind it. Cut-out photographs on a white or natural background have a black one after "lossless" WebP, and a model
#   that was trained on the PNG files meets another background.
# Instead: `exact=True`
# Last lines of a run on 2026-11-29 (color 200, 60, 30 behind alpha 0, after convert("RGB")):
#   Pillow 13.0.0: PNG [200, 60, 30], WebP [0, 0, 0], WebP exact=True [200, 60, 30]
#   OpenCV 5.0.0: PNG [200, 60, 30], WebP [0, 0, 0]; imagecodecs 2026.3.6: WebP [200, 60, 30]
# The same on 2026-11-30 with Python 3.13 and imagecodecs 2026.10.10, numpy 2.5.5.
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq pillow==13.0.0 opencv-python-headless==5.0.0.93 imagecodecs==2026.3.6 numpy==2.4.6
venv/bin/python - <<'PYTHON'
from pathlib import Path

import cv2
import imagecodecs
import numpy as np
import PIL
from PIL import Image

COLOR = [200, 60, 30]
pixels = np.full((16, 16, 4), [*COLOR, 255], np.uint8)
pixels[:8, :, 3] = 0
image, for_opencv = Image.fromarray(pixels), cv2.cvtColor(pixels, cv2.COLOR_RGBA2BGRA)


def behind(name):
    again = np.asarray(Image.open(name).convert("RGB"))
    assert again[12, 4].tolist() == COLOR
    return again[4, 4].tolist()


image.save("p.png")
image.save("p.webp", lossless=True)
image.save("exact.webp", lossless=True, exact=True)
cv2.imwrite("o.png", for_opencv)
cv2.imwrite("o.webp", for_opencv, [cv2.IMWRITE_WEBP_QUALITY, 101])
Path("i.webp").write_bytes(imagecodecs.webp_encode(pixels, lossless=True))
of_pillow = [behind(name) for name in ("p.png", "p.webp", "exact.webp")]
of_opencv, of_imagecodecs = [behind(name) for name in ("o.png", "o.webp")], behind("i.webp")
print(f"Pillow {PIL.__version__}: PNG {of_pillow[0]}, WebP {of_pillow[1]}, WebP exact=True {of_pillow[2]}")
print(
    f"OpenCV {cv2.__version__}: PNG {of_opencv[0]}, WebP {of_opencv[1]}; "
    f"imagecodecs {imagecodecs.__version__}: WebP {of_imagecodecs}"
)
assert of_pillow == [COLOR, [0, 0, 0], COLOR]
assert of_opencv == [COLOR, [0, 0, 0]] and of_imagecodecs == COLOR
PYTHON
