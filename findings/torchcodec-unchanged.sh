#!/usr/bin/env bash
# torchcodec 0.17.0, torchvision 0.29.1, torch 2.14.1
# Subject: images and pixels
# Behaviour: mode="UNCHANGED" of torchcodec's decode_jpeg turns the image as its EXIF orientation says, and returns CMYK
#   as Pillow has it. torchvision's decode_jpeg with UNCHANGED, which it replaces, leaves the image as stored, and
#   returns 255 minus each value.
# Expected: UNCHANGED names the pixels as they are stored, and both have the same ones.
# Why it matters: code that applies the orientation itself turns photographs twice after the move to torchcodec that
#   torchvision's warning advises; widths and heights from headers have swapped sides.
# Instead: apply the orientation in one place; `mode="RGB"` for colors
# Last lines of a run on 2026-11-28 (stored: 20 high, 40 wide, cyan 10):
#   torchcodec 0.17.0: 40 high, 20 wide, cyan 10
#   torchvision 0.29.1: 20 high, 40 wide, cyan 245
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq torchcodec==0.17.0 torchvision==0.29.1 torch==2.14.1 pillow==13.0.0 numpy==2.4.6
venv/bin/python -W ignore - 2> errors.txt <<'PYTHON' || { cat errors.txt; exit 1; }
import io
from functools import partial

import torch
import torchcodec
import torchvision
from PIL import ExifTags, Image
from torchcodec.decoders import decode_jpeg
from torchvision.io import ImageReadMode
from torchvision.io import decode_jpeg as torchvisions


def stored(image, **options):
    file = io.BytesIO()
    image.save(file, "JPEG", **options)
    return torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8)


exif = Image.Exif()
exif[ExifTags.Base.Orientation] = 6
rotated = stored(Image.new("RGB", (40, 20), (200, 30, 60)), exif=exif)
cmyk = stored(Image.new("CMYK", (40, 20), (10, 200, 30, 40)), quality=100)
programs = {
    f"torchcodec {torchcodec.__version__.partition('+')[0]}": partial(decode_jpeg, mode="UNCHANGED"),
    f"torchvision {torchvision.__version__.partition('+')[0]}": partial(torchvisions, mode=ImageReadMode.UNCHANGED),
}
seen = {}
for program, decode in programs.items():
    _, height, width = decode(rotated).shape
    seen[program] = f"{height} high, {width} wide, cyan {decode(cmyk)[0, 0, 0]}"
    print(f"{program}: {seen[program]}")
assert seen == {
    "torchcodec 0.17.0": "40 high, 20 wide, cyan 10",
    "torchvision 0.29.1": "20 high, 40 wide, cyan 245",
}
PYTHON
