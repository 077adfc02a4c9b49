#!/usr/bin/env bash
# pyvips 3.2.0, pyvips-binary 8.18.7
# Subject: images and pixels
# Behaviour: Image.thumbnail() and thumbnail_image() return 8 bits for a gray image of 16 bits, divided by 256.
#   resize() keeps 16 bits.
# Expected: a smaller image of the same format, as of resize().
# Why it matters: thumbnail() is the recommended way to shrink large images quickly. Pictures of 10 or 12 bits that
#   stand in 16 (microscopes, X-rays, thermal cameras) keep 2 or 4 bits of their gray levels in the training set.
# Instead: `resize()`
# Last lines of a run on 2026-11-29 (a ramp from 0 to 4095):
#   pyvips 3.2.0: thumbnail uchar, 17 gray levels, largest 16
#   resize ushort, 2048 gray levels or more: True
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq pyvips==3.2.0 pyvips-binary==8.18.7 numpy==2.4.6
venv/bin/python - <<'PYTHON'
import numpy as np
import pyvips

ramp = np.tile(np.arange(4096, dtype=np.uint16), (64, 1))
pyvips.Image.new_from_array(ramp).copy(interpretation="grey16").write_to_file("ramp.png")
image = pyvips.Image.new_from_file("ramp.png")
small, resized = pyvips.Image.thumbnail("ramp.png", 2048), image.resize(0.5)
levels = np.unique(small.numpy())
print(f"pyvips {pyvips.__version__}: thumbnail {small.format}, {len(levels)} gray levels, largest {levels.max()}")
many = len(np.unique(resized.numpy())) >= 2048
print(f"resize {resized.format}, 2048 gray levels or more: {many}")
assert (image.format, small.format, resized.format) == ("ushort", "uchar", "ushort") and len(levels) == 17 and many
PYTHON
