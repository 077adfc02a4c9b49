#!/usr/bin/env bash
# tensorboardX 2.6.5, Pillow 13.0.0
# Subject: trackers
# Behaviour: add_image() multiplies each image that is not uint8 by 255, and keeps the lowest 8 bits of the product:
#   gray 200 as int64, int32 or uint16 is shown as 56, the negative of the image. Of floats above 1, 1.2 is shown as 50.
#   There is no warning.
# Expected: integers are taken as they are, and floats above 1 are white.
# Why it matters: images of a data set, sums of images and label maps are int64 or uint16, and augmented floats exceed
#   1. Who looks at the page of a run, to see that the images are right, sees negatives and black spots, and looks for
#   the fault in the augmentation; a true inversion looks the same.
# Instead: `clip()` and `astype(numpy.uint8)` before
# Last lines of a run on 2026-11-30 (given, shown):
#   tensorboardX 2.6.5: uint8 200 200, uint16 200 56, int32 200 56, int64 200 56
#   float32 0.8 204, 1.0 255, 1.2 50
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq tensorboardX==2.6.5 pillow==13.0.0 numpy==2.4.6
venv/bin/python -W ignore - 2> errors.txt <<'PYTHON' || { cat errors.txt; exit 1; }
import io

import numpy as np
import tensorboardX
from PIL import Image
from tensorboardX.summary import image as image_summary  # what SummaryWriter.add_image writes


def shown(value, kind):
    array = np.full((3, 8, 8), value, kind)
    (written,) = image_summary("image", array).value
    return int(np.asarray(Image.open(io.BytesIO(written.image.encoded_image_string)))[0, 0, 0])


integers = {kind: shown(200, kind) for kind in ("uint8", "uint16", "int32", "int64")}
floats = {value: shown(value, "float32") for value in (0.8, 1.0, 1.2)}
print(f"tensorboardX {tensorboardX.__version__}: {', '.join(f'{kind} 200 {seen}' for kind, seen in integers.items())}")
print(f"float32 {', '.join(f'{value} {seen}' for value, seen in floats.items())}")
assert integers == {"uint8": 200, "uint16": 56, "int32": 56, "int64": 56}
assert floats == {0.8: 204, 1.0: 255, 1.2: 50}
PYTHON
