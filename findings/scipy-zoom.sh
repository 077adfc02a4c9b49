#!/usr/bin/env bash
# SciPy 1.17.1, OpenCV 5.0.0.93, Pillow 13.0.0
# Subject: images and pixels
# Behaviour: scipy.ndimage.zoom(order=1) puts the first and the last value of a row on the ends of the new row; a
#   resize of OpenCV, Pillow, or torch (align_corners=False) takes values as areas, whose centers move. A row 0 to 6 of
#   14 values differs by up to 0.21; grid_mode=True with mode="nearest" gives the values of the others.
# Expected: one linear resize of a grid in all four.
# Why it matters: Google's ViT programs resize position embeddings by zoom(), PyTorch's by interpolate(): the same .npz
#   at another image size has other positions in each, by up to a quarter of a patch at the border.
# Instead: `grid_mode=True, mode="nearest"`
# Last lines of a run on 2026-11-29 (and the largest difference):
#   SciPy 1.17.1: 0 0.46 0.92 1.38 1.85 2.31 2.77 3.23 3.69 4.15 4.62 5.08 5.54 6
#   OpenCV 5.0.0, Pillow 13.0.0: 0 0.25 0.75 1.25 1.75 2.25 2.75 3.25 3.75 4.25 4.75 5.25 5.75 6; difference 0.21
# The same on 2026-11-30 with Python 3.13 and numpy 2.5.5, scipy 1.18.1.
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq scipy==1.17.1 opencv-python-headless==5.0.0.93 pillow==13.0.0 numpy==2.4.6
venv/bin/python - <<'PYTHON'
import cv2
import numpy as np
import PIL
import scipy
from PIL import Image
from scipy.ndimage import zoom

grid = np.tile(np.arange(7, dtype=np.float32), (7, 1))
corners = zoom(grid, 2, order=1)[0]
areas = zoom(grid, 2, order=1, grid_mode=True, mode="nearest")[0]
of_opencv = cv2.resize(grid, (14, 14), interpolation=cv2.INTER_LINEAR)[0]
of_pillow = np.asarray(Image.fromarray(grid).resize((14, 14), Image.Resampling.BILINEAR))[0]


def shown(row):
    return " ".join(f"{round(float(value), 2):g}" for value in row)


difference = np.abs(corners - of_pillow).max()
print(f"SciPy {scipy.__version__}: {shown(corners)}")
print(f"OpenCV {cv2.__version__}, Pillow {PIL.__version__}: {shown(of_pillow)}; difference {difference:.2f}")
assert np.allclose(corners, np.linspace(0, 6, 14), atol=1e-6)
assert np.allclose(of_opencv, of_pillow, atol=1e-6) and np.allclose(areas, of_pillow, atol=1e-6)
assert 0.2 < difference < 0.25
PYTHON
