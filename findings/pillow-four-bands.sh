#!/usr/bin/env bash
# Pillow 13.0.0, numpy 2.4.6
# Subject: images and pixels
# Behaviour: resize(), reduce() and rotate() of an array (H, W, 4), which is RGBA for Image.fromarray(), multiply the
#   first three bands by the fourth before, and divide them by it afterwards: where the fourth is small they have few
#   levels, where it is 0 they are 0. "nearest" leaves them. An array (H, W, 2) is LA, and its first band is changed
#   likewise.
# Expected: each band as if it were resized alone, or a picture whose fourth band is opacity by the caller's word only.
# Why it matters: red, green, blue and near infrared of aerial and satellite images, or two stains of a microscope, are
#   put into a Pillow image to resize it. Water and shadow, dark in near infrared, become black or posterized in the
#   visible bands.
# Instead: resize each band alone, then `Image.merge()`
# Last lines of a run on 2026-11-30 (three bands of noise, 64 pixels to 32; the fourth constant):
#   Pillow 13.0.0, fourth band 255: largest difference to bands alone 0, levels 120 for 120
#   fourth band 5: largest difference to bands alone 61, levels 4 for 120
#   fourth band 0: largest difference to bands alone 203, levels 1 for 120
#   two bands, second 5: largest difference 47
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq Pillow==13.0.0 numpy==2.4.6
venv/bin/python - <<'PYTHON'
import numpy as np
import PIL
from PIL import Image

noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)


def resized(array):
    return np.asarray(Image.fromarray(array).resize((32, 32), Image.Resampling.BILINEAR)).astype(int)


alone = np.stack([resized(np.ascontiguousarray(noise[..., band])) for band in range(3)], axis=-1)


def differences(last, bands=3):
    fourth = np.full((64, 64, 1), last, np.uint8)
    together = resized(np.concatenate([noise[..., :bands], fourth], axis=-1))[..., :bands]
    return abs(together - alone[..., :bands]).max(), len(np.unique(together[..., 0]))


levels = len(np.unique(alone[..., 0]))
largest = {}
for last in (255, 5, 0):
    largest[last], found = differences(last)
    start = f"Pillow {PIL.__version__}, fourth" if last == 255 else "fourth"
    print(f"{start} band {last}: largest difference to bands alone {largest[last]}, levels {found} for {levels}")
two = differences(5, bands=1)[0]
print(f"two bands, second 5: largest difference {two}")
assert largest[255] <= 1 and min(largest[5], largest[0], two) > 30 and found == 1
PYTHON
