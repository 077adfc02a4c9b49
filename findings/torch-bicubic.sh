#!/usr/bin/env bash
# torch 2.14.1 (5 GB are downloaded), Pillow 13.0.0
# Subject: training
# Behaviour: interpolate(mode="bicubic") has another kernel with antialias=True (a = -0.5, as Pillow) than without
#   (a = -0.75, as OpenCV): also where an image becomes larger, and there is nothing to smooth, the results differ.
#   "bilinear" is the same with both.
# Expected: antialias=True changes nothing when enlarging, as for "bilinear".
# Why it matters: position embeddings of a ViT are resized for another image size by bicubic interpolation, by timm with
#   antialias=True, by others without. The same weights get other positions for larger images, by a third of their
#   standard deviation at most; and an enlarged image has stronger halos at its edges.
# Instead: the same `antialias=` wherever the embeddings are resized
# Last lines of a run on 2026-11-29 (14 x 14 to 16 x 16, noise of the standard deviation 1):
#   torch 2.14.1, largest difference with and without antialias: bilinear 0.00, bicubic 0.37 (mean 0.05)
#   from Pillow 13.0.0: bicubic with antialias 0.00, without 0.37
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq torch==2.14.1 pillow==13.0.0 numpy==2.4.6
OMP_NUM_THREADS=1 venv/bin/python - 2> errors.txt <<'PYTHON' || { cat errors.txt; exit 1; }
import numpy as np
import PIL
import torch
from PIL import Image
from torch.nn.functional import interpolate

positions = torch.randn(1, 64, 14, 14, generator=torch.Generator().manual_seed(0))


def resized(mode, antialias):
    return interpolate(positions, size=(16, 16), mode=mode, antialias=antialias)


def difference(mode):
    return (resized(mode, True) - resized(mode, False)).abs()


def of_pillow(plane):
    return torch.tensor(np.asarray(Image.fromarray(plane.numpy()).resize((16, 16), Image.Resampling.BICUBIC)))


linear, cubic = difference("bilinear"), difference("bicubic")
pillow = torch.stack([of_pillow(plane) for plane in positions[0]])[None]
smooth, plain = (float((resized("bicubic", antialias) - pillow).abs().max()) for antialias in (True, False))
print(
    f"torch {torch.__version__.split('+')[0]}, largest difference with and without antialias: bilinear "
    f"{float(linear.max()):.2f}, bicubic {float(cubic.max()):.2f} (mean {float(cubic.mean()):.2f})"
)
print(f"from Pillow {PIL.__version__}: bicubic with antialias {smooth:.2f}, without {plain:.2f}")
assert linear.max() < 1e-5 and cubic.max() > 0.1
assert smooth < 1e-5 and plain > 0.1
PYTHON
