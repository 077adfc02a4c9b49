#!/usr/bin/env bash
# Pillow 13.0.0
# Subject: images and pixels
# Behaviour: save() of a 16-bit gray image (mode I;16) as JPEG or BMP is an error; as WebP, AVIF or GIF it writes 8 bits
#   in which all values above 255 are white, without a warning.
# Expected: an error for each format of 8 bits, or the upper 8 bits.
# Why it matters: X-rays and microscope images of 12 or 16 bits that are converted to WebP or AVIF to save space become
#   white almost everywhere; the conversion to JPEG would have ended with an error.
# Instead: PNG or TIFF; or scale to 8 bits before `save()`
# Last lines of a run on 2026-11-28 (stored values: 0, 1000, 30000, 65535):
#   Pillow 13.0.0: JPEG OSError, BMP OSError, WEBP [0, 255, 255, 255], AVIF [0, 255, 255, 255], GIF [0, 255, 255, 255]
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq pillow==13.0.0 numpy==2.4.6
venv/bin/python - <<'PYTHON'
import numpy as np
import PIL
from PIL import Image

VALUES = [0, 1000, 30000, 65535]
image = Image.fromarray(np.repeat(np.array([VALUES] * 16, np.uint16), 16, axis=1))


def written(kind):
    options = {"lossless": True} if kind == "WEBP" else {}
    try:
        image.save("a.image", kind, **options)
    except OSError:
        return "OSError"
    pixels = np.array(Image.open("a.image").convert("L"), int)
    return [round(float(pixels[:, start + 4 : start + 12].mean())) for start in range(0, 64, 16)]


found = {kind: written(kind) for kind in ("JPEG", "BMP", "WEBP", "AVIF", "GIF")}
print(f"Pillow {PIL.__version__}: {', '.join(f'{kind} {values}' for kind, values in found.items())}")
assert found["JPEG"] == found["BMP"] == "OSError"
assert all(found[kind][0] <= 1 and min(found[kind][1:]) >= 254 for kind in ("WEBP", "AVIF", "GIF"))
PYTHON
