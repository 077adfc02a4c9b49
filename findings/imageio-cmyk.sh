#!/usr/bin/env bash
# imageio 2.38.1, OpenCV 5.0.0.93, Pillow 13.0.0
# Subject: images and pixels
# Behaviour: imread() of imageio returns the four inks of a CMYK JPEG, (height, width, 4), high values for dark;
#   imread() of OpenCV converts them to BGR. The first three of imageio's channels are the negative of the photograph.
# Expected: RGB, as of all other JPEGs, or an error.
# Why it matters: ImageNet and many web collections have a few CMYK JPEGs. Code that drops "the alpha channel" by
#   image[..., :3] trains on their negatives: no error, no wrong shape.
# Instead: `imread(path, mode="RGB")`
# Last lines of a run on 2026-11-29 (an image of RGB 200, 60, 20):
#   imageio 2.38.1: (32, 32, 4), first three channels [55, 195, 235]; imread(mode="RGB") [200, 60, 20]
#   OpenCV 5.0.0: (32, 32, 3), red, green, blue [201, 61, 21]
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq imageio==2.38.1 opencv-python-headless==5.0.0.93 pillow==13.0.0 numpy==2.4.6
venv/bin/python - <<'PYTHON'
import cv2
import imageio
import imageio.v3
import numpy as np
from PIL import Image

COLOUR = (200, 60, 20)
Image.new("RGB", (32, 32), COLOUR).convert("CMYK").save("cmyk.jpg", quality=95)
inks = imageio.v3.imread("cmyk.jpg")
asked = imageio.v3.imread("cmyk.jpg", mode="RGB")
of_opencv = cv2.imread("cmyk.jpg")
first_three = inks[8, 8, :3].tolist()
colour = of_opencv[8, 8, ::-1].tolist()
print(
    f'imageio {imageio.__version__}: {inks.shape}, first three channels {first_three}; imread(mode="RGB") '
    f"{asked[8, 8].tolist()}"
)
print(f"OpenCV {cv2.__version__}: {of_opencv.shape}, red, green, blue {colour}")
assert inks.shape == (32, 32, 4) and of_opencv.shape == asked.shape == (32, 32, 3)
assert np.abs(np.array(first_three) + COLOUR - 255).max() <= 2
assert np.abs(np.array(colour) - COLOUR).max() <= 2 and np.abs(asked[8, 8].astype(int) - COLOUR).max() <= 2
PYTHON
