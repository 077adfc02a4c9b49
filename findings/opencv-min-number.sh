#!/usr/bin/env bash
# opencv-python-headless 5.0.0.93, numpy 2.4.6
# Subject: images and pixels
# Behaviour: in OpenCV 5 a number is for all channels of a color image in add(), subtract(), multiply(), divide(),
#   absdiff() and compare(), and for the first channel alone in min(), max(), bitwise_and(), bitwise_or() and
#   bitwise_xor(), which take 0 for the others. There is no message.
# Expected: one rule, that of add() or that of NumPy: a number is for all channels.
# Why it matters: clipping an augmented image, cv2.min(image, 200), makes green and red black, and cv2.max(image, 50)
#   lifts blue alone. The images train, in one color.
# Instead: `np.minimum(image, 200)`, or a number for each channel: `cv2.min(image, (200, 200, 200))`
# Last lines of a run on 2026-12-01 (the first pixel of an image of 100, 100, 100):
#   opencv 5.0.0: add 10: 110 110 110, subtract 10: 90 90 90, multiply 2: 200 200 200
#   min 200: 100 0 0, max 150: 150 100 100, bitwise_and 255: 100 0 0, bitwise_or 1: 101 100 100
#   min of three numbers: 100 100 100; numpy: 100 100 100
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq opencv-python-headless==5.0.0.93 numpy==2.4.6
venv/bin/python - <<'PYTHON'
import cv2
import numpy as np

IMAGE = np.full((4, 4, 3), 100, np.uint8)
ALL = {"add": (10, 110), "subtract": (10, 90), "multiply": (2, 200), "divide": (2, 50), "absdiff": (30, 70)}
FIRST = {"min": (200, [100, 0, 0]), "max": (150, [150, 100, 100]), "bitwise_and": (255, [100, 0, 0])}
FIRST |= {"bitwise_or": (1, [101, 100, 100]), "bitwise_xor": (255, [155, 100, 100])}


def pixel(image):
    assert (image == image[0, 0]).all()
    return image[0, 0].tolist()


def text(name, number):
    return f"{name} {number}: {' '.join(map(str, pixel(getattr(cv2, name)(IMAGE, number))))}"


print(f"opencv {cv2.__version__}: {', '.join(text(name, ALL[name][0]) for name in [*ALL][:3])}")
print(", ".join(text(name, FIRST[name][0]) for name in [*FIRST][:4]))
three, by_numpy = pixel(cv2.min(IMAGE, (200, 200, 200))), pixel(np.minimum(IMAGE, 200))
print(f"min of three numbers: {' '.join(map(str, three))}; numpy: {' '.join(map(str, by_numpy))}")
for name, (number, value) in ALL.items():
    assert pixel(getattr(cv2, name)(IMAGE, number)) == [value] * 3, name
for name, (number, values) in FIRST.items():
    assert pixel(getattr(cv2, name)(IMAGE, number)) == values, name
assert pixel(cv2.compare(IMAGE, 50, cv2.CMP_GT)) == [255] * 3 and pixel(cv2.compare(IMAGE, 150, cv2.CMP_GT)) == [0] * 3
assert three == by_numpy == [100] * 3
PYTHON
