#!/usr/bin/env bash
# scikit-image 0.26.0 (with tifffile 2026.3.3 and imageio 2.38.1), Pillow 13.0.0
# Subject: images and pixels
# Behaviour: skimage.io.imread() of a picture with a palette returns its colors (H, W, 3) from PNG, and the numbers of
#   the palette's entries (H, W) from TIFF.
# Expected: the same array from both files.
# Why it matters: the numbers look like a gray image. Land cover maps and scans are often TIFFs with a palette;
#   after a conversion from PNG a classifier gets gray images whose values are in the order of a palette.
# Instead: read with Pillow, `convert("RGB")`
# Last lines of a run on 2026-11-28:
#   scikit-image 0.26.0: PNG (16, 16, 3) [200, 30, 60]; TIFF (16, 16) 1
#   Pillow 13.0.0: convert("RGB") gives [200, 30, 60] from both
# The same on 2026-11-30 with Python 3.13 and numpy 2.5.5, tifffile 2026.11.8.
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq scikit-image==0.26.0 tifffile==2026.3.3 imageio==2.38.1 pillow==13.0.0 numpy==2.4.6
venv/bin/python - <<'PYTHON'
import PIL
import skimage.io
from PIL import Image

image = Image.new("P", (16, 16), 1)
image.putpalette([0, 0, 0, 200, 30, 60])
image.save("a.png")
image.save("a.tif")
png, tif = skimage.io.imread("a.png"), skimage.io.imread("a.tif")
print(
    f"scikit-image {skimage.__version__}: PNG {png.shape} {png[0, 0].tolist()}; TIFF {tif.shape} {tif[0, 0].tolist()}"
)
colors = [list(Image.open(name).convert("RGB").getpixel((0, 0))) for name in ("a.png", "a.tif")]
print(f'Pillow {PIL.__version__}: convert("RGB") gives {colors[0]} from both')
assert png.shape == (16, 16, 3) and png[0, 0].tolist() == [200, 30, 60]
assert tif.shape == (16, 16) and tif[0, 0] == 1
assert colors == [[200, 30, 60]] * 2
PYTHON
