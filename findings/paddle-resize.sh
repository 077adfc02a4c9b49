#!/usr/bin/env bash
# paddlepaddle 3.3.1, Pillow 13.0.0, opencv-python-headless 5.0.0.93
# Subject: images and pixels
# Behaviour: Resize() of paddle.vision.transforms shrinks a Pillow image with Pillow's filter, which takes the mean of
#   what becomes one pixel, and a NumPy array or a tensor without one: noise keeps its contrast, and the values of the
#   same picture differ by more than 100 of 255. The interpolation is "bilinear" in each case.
# Expected: one result, as of torchvision, which shrinks tensors as Pillow images.
# Why it matters: training reads files as Pillow images, a server or a benchmark has arrays of OpenCV or tensors. The
#   same pipeline, Resize(256) of a photograph of some megapixels, gives the network another picture, with aliasing.
# Instead: make a Pillow image of each array first
# Last lines of a run on 2026-11-30 (noise, 100 x 100 to 20 x 20; standard deviation, largest difference):
#   paddlepaddle 3.3.1, Pillow 13.0.0, OpenCV 5.0.0
#   Pillow image 10, array 75, tensor 75
#   array and Pillow image: 139; array and tensor: 0
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq paddlepaddle==3.3.1 opencv-python-headless==5.0.0.93 pillow==13.0.0 numpy==2.4.6
OMP_NUM_THREADS=1 venv/bin/python - 2> errors.txt <<'PYTHON' || { cat errors.txt; exit 1; }
import cv2
import numpy as np
import paddle
import PIL
from paddle.vision.transforms import Resize
from PIL import Image

noise = np.random.default_rng(0).integers(0, 256, (100, 100, 3), dtype=np.uint8)
resize = Resize(20)
as_image = np.asarray(resize(Image.fromarray(noise))).astype(float)
as_array = resize(noise).astype(float)
as_tensor = resize(paddle.to_tensor(noise.transpose(2, 0, 1).astype("float32"))).numpy().transpose(1, 2, 0)
print(f"paddlepaddle {paddle.__version__}, Pillow {PIL.__version__}, OpenCV {cv2.__version__}")
others = [np.abs(as_array - other).max() for other in (as_image, as_tensor)]
print(f"Pillow image {as_image.std():.0f}, array {as_array.std():.0f}, tensor {as_tensor.std():.0f}")
print(f"array and Pillow image: {others[0]:.0f}; array and tensor: {others[1]:.0f}")
assert as_image.std() < 20 and as_array.std() > 60 and as_tensor.std() > 60
assert others[0] > 100 and others[1] <= 1
PYTHON
