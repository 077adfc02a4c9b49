#!/usr/bin/env bash
# cleanvision 0.3.7
# Subject: images and pixels
# Behaviour: two images of other sizes are "exact duplicates" if their rows, one after the other, are the same bytes:
#   the checksum has no size. BMP files are not looked at, and no line says so.
# Expected: exact duplicates have the same size and pixels; a copy as BMP is one of them, or is named as not read.
# Why it matters: uniform pictures (blank frames, masks, empty wells) of different sizes with equal areas are removed
#   as duplicates of each other; copies in the format of many inspection cameras stay on both sides of a split.
# Instead: compare size and pixels of the pairs; convert BMP files first
# Last lines of a run on 2026-11-29 (a.png 60 x 40, b.png 40 x 60 of the same bytes, c.bmp and d.png equal to a.png):
#   cleanvision 0.3.7: 3 of 4 files, exact duplicates: [['a.png', 'b.png', 'd.png']]
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq cleanvision==0.3.7 numpy==2.4.6 pillow==13.0.0
mkdir images
venv/bin/python -W ignore 2> errors.txt - <<'PYTHON' || { cat errors.txt; exit 1; }
import contextlib
import io
import os
from importlib.metadata import version

import numpy as np
from PIL import Image

pixels = np.random.default_rng(0).integers(0, 256, (40, 60, 3), np.uint8)
for name, array in {"a.png": pixels, "b.png": pixels.reshape(60, 40, 3), "c.bmp": pixels, "d.png": pixels}.items():
    Image.fromarray(array).save(f"images/{name}")

from cleanvision import Imagelab  # noqa: E402

with contextlib.redirect_stdout(io.StringIO()):
    lab = Imagelab(data_path="images")
    lab.find_issues({"exact_duplicates": {}}, n_jobs=1)
sets = [sorted(os.path.basename(path) for path in paths) for paths in lab.info["exact_duplicates"]["sets"]]
print(f"cleanvision {version('cleanvision')}: {len(lab.issues)} of 4 files, exact duplicates: {sets}")
assert len(lab.issues) == 3 and sets == [["a.png", "b.png", "d.png"]]
PYTHON
