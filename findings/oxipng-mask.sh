#!/usr/bin/env bash
# pyoxipng 9.1.1 (oxipng), Pillow 13.0.0, opencv-python-headless 5.0.0.93
# Subject: images and pixels
# Behaviour: the lossless optimization of a PNG also stores another type of pixels if that can hold the picture: a mask
#   of 0 and 255 has 1 bit afterwards. np.asarray of Pillow is then bool, True and False in place of 255 and 0; OpenCV
#   has 255 from both files. An RGB picture of gray has one channel, an opaque RGBA picture three.
# Expected: "lossless" gives the array of before.
# Why it matters: np.asarray(mask) > 127, and mask == 255, select no pixel of the optimized file, in a data set that was
#   only made smaller; a mask with a third value beside it still works.
# Instead: `convert("L")` before `np.asarray()`
# Last lines of a run on 2026-11-30 (before, after):
#   pyoxipng 9.1.1
#   gray as RGB: (64, 64, 3), (64, 64); opaque RGBA: (64, 64, 4), (64, 64, 3)
#   mask: uint8, bool; pixels above 127: 1280, 0; OpenCV 5.0.0: 1280
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq pyoxipng==9.1.1 pillow==13.0.0 opencv-python-headless==5.0.0.93 numpy==2.4.6
venv/bin/python - <<'PYTHON'
from importlib.metadata import version

import cv2
import numpy as np
import oxipng
from PIL import Image

noise = np.random.default_rng(0).integers(0, 256, (64, 64), dtype=np.uint8)
mask = np.zeros((64, 64), np.uint8)
mask[:20] = 255
opaque = np.dstack([noise, noise[::-1], noise.T, np.full_like(noise, 255)])


def optimized(array):
    Image.fromarray(array).save("before.png")
    oxipng.optimize("before.png", "after.png")
    return np.asarray(Image.open("after.png"))


print(f"pyoxipng {version('pyoxipng')}")
gray, rgb = optimized(np.dstack([noise] * 3)), optimized(opaque)
print(f"gray as RGB: (64, 64, 3), {gray.shape}; opaque RGBA: (64, 64, 4), {rgb.shape}")
after = optimized(mask)
chosen = [int((array > 127).sum()) for array in (mask, after, cv2.imread("after.png", cv2.IMREAD_UNCHANGED))]
print(f"mask: uint8, {after.dtype}; pixels above 127: {chosen[0]}, {chosen[1]}; OpenCV {cv2.__version__}: {chosen[2]}")
assert after.dtype == bool and chosen == [1280, 0, 1280] and not (after == 255).any()
assert np.array_equal(gray, noise) and np.array_equal(rgb, opaque[..., :3])
assert np.array_equal(np.asarray(Image.open("after.png").convert("L")), mask)
PYTHON
