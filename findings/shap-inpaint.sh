#!/usr/bin/env bash
# shap 0.51.0, opencv-python-headless 5.0.0.93, numpy 2.4.6
# Subject: images and pixels
# Behaviour: the maskers "inpaint_telea" and "inpaint_ns" of shap.maskers.Image convert the image to uint8 before they
#   fill its hidden part, without scaling: an image of values from 0 to 1 is black where it was hidden and where it was
#   not. "blur(4,4)" keeps the values. There is no message.
# Expected: the hidden part is filled from its neighbours, and the other pixels are those of the image, as with uint8.
# Why it matters: networks get floats, so explain(images) has them. The network then sees a black picture for each mask,
#   and the map compares the image with black.
# Instead: give images of uint8, and scale and normalize inside the function that is explained
# Last lines of a run on 2026-12-01 (an image of random values, its middle hidden; mean of the filled part, largest
#   change of the other pixels, both in parts of 1):
#   shap 0.51.0, float32 from 0 to 1: telea 0.00, 1.00; ns 0.00, 1.00; blur 0.51, 0.00
#   uint8: telea 0.51, 0.00; ns 0.50, 0.00; blur 0.51, 0.00; mean of the image 0.51
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq shap==0.51.0 opencv-python-headless==5.0.0.93 numpy==2.4.6
venv/bin/python -W ignore - 2> errors.txt <<'PYTHON' || { cat errors.txt; exit 1; }
import numpy as np
import shap

IMAGE = np.random.default_rng(0).random((16, 16, 3), np.float32)
BYTES = (IMAGE * 255).astype(np.uint8)
SHOWN = np.ones(IMAGE.shape, bool)
SHOWN[4:12, 4:12] = False
MASKERS = {"telea": "inpaint_telea", "ns": "inpaint_ns", "blur": "blur(4,4)"}


def masked(name, image):
    """The mean of the part that was hidden, and the largest change of the others, in parts of the image's range."""
    masker = shap.maskers.Image(MASKERS[name], shape=image.shape)
    found = np.asarray(masker(SHOWN.ravel(), image)[0], float).reshape(image.shape)
    unit = 255 if image.dtype == np.uint8 else 1
    return found[~SHOWN].mean() / unit, np.abs(found - image.astype(float))[SHOWN].max() / unit


def text(results):
    return "; ".join(f"{name} {mean:.2f}, {change:.2f}" for name, (mean, change) in results.items())


floats = {name: masked(name, IMAGE) for name in MASKERS}
integers = {name: masked(name, BYTES) for name in MASKERS}
print(f"shap {shap.__version__}, float32 from 0 to 1: {text(floats)}")
print(f"uint8: {text(integers)}; mean of the image {IMAGE.mean():.2f}")
for name in ("telea", "ns"):
    assert floats[name][0] == 0 and floats[name][1] > 0.9
    assert abs(integers[name][0] - IMAGE.mean()) < 0.1 and integers[name][1] == 0
assert abs(floats["blur"][0] - integers["blur"][0]) < 0.02 and floats["blur"][1] == 0
PYTHON
