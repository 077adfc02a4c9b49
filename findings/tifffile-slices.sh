#!/usr/bin/env bash
# tifffile 2026.3.3, Pillow 13.0.0
# Subject: DICOM, microscopes, satellites
# Behaviour: imwrite() of a stack of 3 or 4 gray slices (N, H, W) writes one planar RGB or RGBA picture; of 1, 2, 5 or
#   more slices it writes N gray pages.
# Expected: N gray pages for each N. Only a last axis of 3 or 4 is known to mean colors.
# Why it matters: of stacks with different numbers of slices, those of three become color images: a reader that takes
#   the first page gets three slices as R, G and B of these, and one slice of the others.
# Instead: `photometric="minisblack"`
# Last lines of a run on 2026-11-28 (number of slices: mode and pages in Pillow):
#   tifffile 2026.3.3: 1: L x 1, 2: L x 2, 3: RGB x 1, 4: RGBA x 1, 5: L x 5, 6: L x 6
#   with photometric="minisblack": 3: L x 3, 4: L x 4
# The same on 2026-11-30 with Python 3.13 and numpy 2.5.5, tifffile 2026.11.8.
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq tifffile==2026.3.3 pillow==13.0.0 numpy==2.4.6
venv/bin/python - <<'PYTHON'
import numpy as np
import tifffile
from PIL import Image


def written(slices, **options):
    tifffile.imwrite("stack.tif", np.zeros((slices, 32, 40), np.uint8), **options)
    with Image.open("stack.tif") as image:
        return f"{slices}: {image.mode} x {image.n_frames}"


plain = [written(slices) for slices in range(1, 7)]
pages = [written(slices, photometric="minisblack") for slices in (3, 4)]
print(f"tifffile {tifffile.__version__}: {', '.join(plain)}")
print(f'with photometric="minisblack": {", ".join(pages)}')
assert plain == ["1: L x 1", "2: L x 2", "3: RGB x 1", "4: RGBA x 1", "5: L x 5", "6: L x 6"]
assert pages == ["3: L x 3", "4: L x 4"]
PYTHON
