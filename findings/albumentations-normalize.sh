#!/usr/bin/env bash
# albumentations 2.0.8
# Behaviour: Normalize() divides an image of 16 bits by 255, the default of max_pixel_value; ToFloat() and the others
#   take the largest value of the type.
# Expected: one rule; 65535 for uint16, or an error.
# Why it matters: with the pipeline that served 8-bit pictures, a white pixel of a 16-bit one is 513 in place of 1: a
#   pretrained network trains, slowly, on inputs that are 257 times too large, and no line says so.
# Last lines of a run on 2026-11-29 (white, mean 0.5, std 0.5):
#   albumentations 2.0.8: Normalize of uint8 1.0, of uint16 513.0, with max_pixel_value=65535 1.0; ToFloat of uint16 1.0
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq albumentations==2.0.8 numpy==2.4.6
NO_ALBUMENTATIONS_UPDATE=1 venv/bin/python - <<'PYTHON'
import albumentations as A
import numpy as np


def white(transform, kind):
    image = np.full((8, 8, 3), np.iinfo(kind).max, kind)
    return float(transform(image=image)["image"].max())


plain = A.Normalize(mean=0.5, std=0.5)
values = white(plain, np.uint8), white(plain, np.uint16)
told = white(A.Normalize(mean=0.5, std=0.5, max_pixel_value=65535), np.uint16)
as_float = white(A.ToFloat(), np.uint16)
print(
    f"albumentations {A.__version__}: Normalize of uint8 {values[0]}, of uint16 {values[1]}, "
    f"with max_pixel_value=65535 {told}; ToFloat of uint16 {as_float}"
)
assert values == (1.0, 513.0) and told == as_float == 1.0
PYTHON
