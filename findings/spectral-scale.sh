#!/usr/bin/env bash
# spectral 0.25, rasterio 1.4.4 (GDAL 3.10)
# Subject: DICOM, microscopes, satellites
# Behaviour: of an ENVI file with a "reflectance scale factor", load(), read_band() and indexing of spectral return the
#   values divided by the factor, open_memmap() of the same object the stored ones; rasterio has the stored ones, with
#   scales of 1. save_image() of a loaded picture writes the divided values; with the metadata of the original they are
#   divided again when they are read.
# Expected: one scale for all ways to read a file, and equal values after writing and reading.
# Why it matters: a memmap is the way for cubes that do not fit into memory: a model that was trained on load() is given
#   values 10,000 times as large, and a copied cube has values 10,000 times as small as the original.
# Instead: divide `open_memmap()` by the factor; drop the factor from the metadata of a copy
# Last lines of a run on 2026-11-30 (stored 4000, factor 10000):
#   spectral 0.25: load() 0.4, read_band() 0.4, [0, 0] 0.4, open_memmap() 4000, rasterio 1.4.4 4000
#   load() of the copy that save_image() made of load(): 4e-05
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq spectral==0.25 rasterio==1.4.4 numpy==2.4.6
venv/bin/python - <<'PYTHON'
from importlib.metadata import version

import numpy as np
import rasterio
import spectral
from spectral.io import envi

cube = np.full((2, 3, 4), 4000, np.uint16)
envi.save_image("cube.hdr", cube, metadata={"reflectance scale factor": 10000})
image = spectral.open_image("cube.hdr")
loaded = image.load()
ways = {"load()": loaded, "read_band()": image.read_band(0), "[0, 0]": image[0, 0]}
ways["open_memmap()"] = image.open_memmap()
found = {name: round(float(np.ravel(values)[0]), 6) for name, values in ways.items()}
with rasterio.open("cube.img") as file:
    found[f"rasterio {rasterio.__version__}"] = float(file.read(1)[0, 0])
    scales = set(file.scales)
envi.save_image("copy.hdr", loaded, metadata=image.metadata)
copied = float(spectral.open_image("copy.hdr").load()[0, 0, 0])
print(f"spectral {version('spectral')}: {', '.join(f'{name} {value:g}' for name, value in found.items())}")
print(f"load() of the copy that save_image() made of load(): {copied:g}")
assert list(found.values()) == [0.4, 0.4, 0.4, 4000, 4000] and scales == {1.0}
assert abs(copied - 0.00004) < 1e-8
PYTHON
