#!/usr/bin/env bash
# opencv-python-headless 4.11.0.86
# Behaviour: COLOR_BayerRG2RGB is not of a sensor whose first row is R, G (RGGB, "BayerRG8" of GenICam cameras): the
#   two letters are the second and third pixel of the second row. For RGGB it returns a picture with red and blue
#   exchanged; right are COLOR_BayerBG2RGB and its newer name COLOR_BayerRGGB2RGB.
# Expected: the letters of the constant are the first pixels of the sensor, as the camera's format has them.
# Why it matters: raw frames of a line camera are converted before training by one program and on the line by another;
#   the picture looks plausible on gray parts, and a network that learned color decides otherwise.
# Last lines of a run on 2026-11-29 (RGGB raw frame with light on its red pixels only; R, G, B in the middle):
#   opencv 4.11.0: BayerRG2RGB [0, 0, 255], BayerBG2RGB [255, 0, 0], BayerRGGB2RGB [255, 0, 0]
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq opencv-python-headless==4.11.0.86 numpy==2.4.6
venv/bin/python - <<'PYTHON'
import cv2
import numpy as np

raw = np.zeros((16, 16), np.uint8)
raw[0::2, 0::2] = 255  # the red pixels of rows R G R G ... and G B G B ...
names = "BayerRG2RGB", "BayerBG2RGB", "BayerRGGB2RGB"
middles = [cv2.cvtColor(raw, getattr(cv2, f"COLOR_{name}"))[7, 7].tolist() for name in names]
said = ", ".join(f"{name} {middle}" for name, middle in zip(names, middles))
print(f"opencv {cv2.__version__}: {said}")
assert middles == [[0, 0, 255], [255, 0, 0], [255, 0, 0]]
PYTHON
