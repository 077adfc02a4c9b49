#!/usr/bin/env bash
# polars 2.1.0, pandas 3.1.1
# Behaviour: images.join(labels, on="image"), an inner join, has its rows in the order of the longer table: of the
#   images if there are more images than labels, else of the labels. merge() of pandas has the order of the images.
# Expected: the order of the left table, as in pandas, and as with how="left" in polars.
# Why it matters: features or images are read in the order of the first table, and the joined labels are put beside
#   them. It is right in a trial with few labels; with the table of all labels each image has the label of another one,
#   and the accuracy is that by chance. maintain_order="left" keeps the order.
# Last lines of a run on 2026-11-30 (images 0 to 99; labels in random order):
#   polars 2.1.0: 50 labels: order of the images; 1000 labels: order of the labels
#   maintain_order="left": order of the images; pandas 3.1.1: of the images
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq polars==2.1.0 pandas==3.1.1 numpy==2.4.6
venv/bin/python - <<'PYTHON'
import numpy as np
import pandas as pd
import polars as pl

images = pl.DataFrame({"image": [f"{number}.jpg" for number in range(100)]})


def order_of(count, **options):
    drawn = np.random.default_rng(0).permutation(count)
    labels = pl.DataFrame({"image": [f"{number}.jpg" for number in drawn]}).with_row_index("label")
    joined = images.join(labels, on="image", **options)["image"].to_list()
    expected = pd.merge(*(pd.DataFrame(table.to_dicts()) for table in (images, labels)), on="image")["image"].to_list()
    by_label = [image for image in labels["image"].to_list() if image in expected]
    return {str(expected): "images", str(by_label): "labels"}[str(joined)]


few, many = order_of(50), order_of(1000)
kept = order_of(1000, maintain_order="left")
print(f"polars {pl.__version__}: 50 labels: order of the {few}; 1000 labels: order of the {many}")
print(f"maintain_order=\"left\": order of the {kept}; pandas {pd.__version__}: of the images")
assert (few, many, kept) == ("images", "labels", "images")
PYTHON
