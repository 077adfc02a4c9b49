#!/usr/bin/env bash
# datasets 5.2.0, Pillow 13.0.0
# Subject: shards and loaders
# Behaviour: if a folder of "imagefolder" has a metadata.csv, images that it does not list are left out, without a
#   warning, an error or a count.
# Expected: an error or a warning, as for a listed image that is missing; or a row without a label.
# Why it matters: a metadata.csv that was written before the last images were added, or for the labelled part only,
#   makes the data set smaller; nothing but len() tells.
# Instead: compare the number of rows with the number of images in the folder
# Last lines of a run on 2026-11-28:
#   datasets 5.2.0: 5 images in the folder, 2 listed; 2 rows with the labels ['cat', 'dog']; warnings: none
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq datasets==5.2.0 pillow==13.0.0
export HF_HOME=$PWD/cache HF_HUB_OFFLINE=1
venv/bin/python - 2> errors.txt <<'PYTHON' || { cat errors.txt; exit 1; }
import warnings
from pathlib import Path

import datasets
from PIL import Image

datasets.disable_progress_bars()
folder = Path("data/train")
folder.mkdir(parents=True)
for number in range(5):
    Image.new("RGB", (8, 8), (number, 0, 0)).save(folder / f"{number}.png")
(folder / "metadata.csv").write_text("file_name,label\n0.png,cat\n1.png,dog\n")
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always", UserWarning)
    rows = datasets.load_dataset("imagefolder", data_dir="data", split="train")
about = [str(one.message) for one in caught if "png" in str(one.message) or "metadata" in str(one.message)]
print(
    f"datasets {datasets.__version__}: 5 images in the folder, 2 listed; {len(rows)} rows "
    f"with the labels {list(rows['label'])}; warnings: {about or 'none'}"
)
assert list(rows["label"]) == ["cat", "dog"] and not about
PYTHON
! grep -i metadata errors.txt
