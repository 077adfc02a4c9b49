#!/usr/bin/env bash
# tifffile 2026.3.3
# Subject: DICOM, microscopes, satellites
# Behaviour: imread() of one file of an OME-TIFF set of several files returns the planes of all files. If the other
#   files are not beside it, their planes are zeros, with a line in the log and no error.
# Expected: the pixels of the file that was named, as Pillow gives them.
# Why it matters: a loader that makes a sample of each file gets the same stack for each of them, and the first plane
#   of the stack, which is one and the same image, as each sample; in a split by files it gets a black plane.
# Instead: `imread(path, is_ome=False)`, or Pillow
# Last lines of a run on 2026-11-28:
#   tifffile 2026.3.3: z0.ome.tif (2, 8, 8), planes [10, 20]; z1.ome.tif (2, 8, 8), planes [10, 20]
#   z1.ome.tif without z0.ome.tif: (2, 8, 8), planes [0, 20]
# The same on 2026-11-30 with Python 3.13 and numpy 2.5.5, tifffile 2026.11.8.
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq tifffile==2026.3.3 numpy==2.4.6
venv/bin/python - 2> errors.txt <<'PYTHON' || { cat errors.txt; exit 1; }
import uuid
from pathlib import Path

import numpy as np
import tifffile

IDS = [uuid.uuid4() for _ in range(2)]
PLANES = "".join(
    f'<TiffData IFD="0" FirstZ="{z}" FirstC="0" FirstT="0" PlaneCount="1">'
    f'<UUID FileName="z{z}.ome.tif">urn:uuid:{IDS[z]}</UUID></TiffData>'
    for z in range(2)
)
for z in range(2):
    text = (
        '<?xml version="1.0" encoding="UTF-8"?><OME xmlns="http://www.openmicroscopy.org/Schemas/OME/2016-06" '
        f'UUID="urn:uuid:{IDS[z]}"><Image ID="Image:0" Name="stack"><Pixels ID="Pixels:0" DimensionOrder="XYZCT" '
        f'Type="uint8" SizeX="8" SizeY="8" SizeZ="2" SizeC="1" SizeT="1">{PLANES}</Pixels></Image></OME>'
    )
    plane = np.full((8, 8), 10 * (z + 1), np.uint8)
    tifffile.imwrite(f"z{z}.ome.tif", plane, description=text, metadata=None)


def planes_of(name):
    stack = tifffile.imread(name)
    return f"{name} {stack.shape}, planes {stack[:, 0, 0].tolist()}"


both = [planes_of(f"z{z}.ome.tif") for z in range(2)]
print(f"tifffile {tifffile.__version__}: {'; '.join(both)}")
Path("z0.ome.tif").unlink()
alone = planes_of("z1.ome.tif")
print(f"{alone.replace('tif (', 'tif without z0.ome.tif: (')}")
assert all("(2, 8, 8), planes [10, 20]" in one for one in both) and "planes [0, 20]" in alone
PYTHON
