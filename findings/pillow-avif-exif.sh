#!/usr/bin/env bash
# Pillow 13.0.0
# Subject: images and pixels
# Behaviour: save() of an AVIF file removes the orientation from the Exif object that the caller passed as exif=. Each
#   file that is saved with the same object after it has none. JPEG, PNG, WebP and TIFF leave the object as it is.
# Expected: an argument of save() is not changed.
# Why it matters: a conversion that writes an image in several formats with one Exif object, AVIF among them, loses the
#   rotation of the files that follow: these photographs lie on their side in every reader.
# Instead: a new Exif object for each `save()`
# Last lines of a run on 2026-11-28 (orientation in the object after each save):
#   Pillow 13.0.0: JPEG 6, PNG 6, WEBP 6, TIFF 6, AVIF None
#   a JPEG that is saved after it has orientation None
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq pillow==13.0.0
venv/bin/python - <<'PYTHON'
import PIL
from PIL import ExifTags, Image

ORIENTATION = ExifTags.Base.Orientation
image = Image.new("RGB", (31, 20), (200, 30, 60))
exif = Image.Exif()
exif[ORIENTATION] = 6
left = {}
for kind in ("JPEG", "PNG", "WEBP", "TIFF", "AVIF"):
    image.save(f"a.{kind.lower()}", kind, exif=exif)
    left[kind] = exif.get(ORIENTATION)
image.save("after.jpg", exif=exif)
after = Image.open("after.jpg").getexif().get(ORIENTATION)
print(f"Pillow {PIL.__version__}: {', '.join(f'{kind} {value}' for kind, value in left.items())}")
print(f"a JPEG that is saved after it has orientation {after}")
assert left == {"JPEG": 6, "PNG": 6, "WEBP": 6, "TIFF": 6, "AVIF": None} and after is None
PYTHON
