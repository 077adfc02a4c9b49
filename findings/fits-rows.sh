#!/usr/bin/env bash
# astropy 7.2.3, Pillow 13.0.0, imageio 2.37.3
# Subject: DICOM, microscopes, satellites
# Behaviour: Pillow, and imageio.v3 through it, return the rows of a FITS file from the last to the first; astropy
#   returns them as they are stored.
# Expected: np.asarray(Image.open(path)) equals fits.getdata(path), as for TIFF and PNG between readers; FITS draws its
#   first row at the bottom, and of that only Pillow's picture takes account.
# Why it matters: boxes and cutouts that were made with astropy are taken from a mirrored picture; a network that was
#   trained on arrays of astropy is served mirrored pictures by a program that opens files with Pillow.
# Instead: one reader for training and for serving, or `array[::-1]` of one of them
# Last lines of a run on 2026-11-29 (three rows 0 1, 2 3, 4 5):
#   astropy 7.2.3: [[0, 1], [2, 3], [4, 5]]
#   Pillow 13.0.0: [[4, 5], [2, 3], [0, 1]], imageio 2.37.3: [[4, 5], [2, 3], [0, 1]]
# The same on 2026-11-30 with Python 3.13 and numpy 2.5.5, astropy 8.0.2.
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq astropy==7.2.3 pillow==13.0.0 imageio==2.37.3 numpy==2.4.6
venv/bin/python - <<'PYTHON'
import astropy
import imageio
import imageio.v3
import numpy as np
import PIL
from astropy.io import fits
from PIL import Image

stored = np.arange(6, dtype=np.uint8).reshape(3, 2)
fits.writeto("image.fits", stored)
of_astropy = fits.getdata("image.fits").tolist()
of_pillow = np.asarray(Image.open("image.fits")).tolist()
of_imageio = imageio.v3.imread("image.fits").tolist()
print(f"astropy {astropy.__version__}: {of_astropy}")
print(f"Pillow {PIL.__version__}: {of_pillow}, imageio {imageio.__version__}: {of_imageio}")
assert of_astropy == stored.tolist() and of_pillow == of_imageio == stored[::-1].tolist()
PYTHON
