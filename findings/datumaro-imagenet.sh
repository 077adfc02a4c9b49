#!/usr/bin/env bash
# datumaro 1.13.12 (CVAT exports by a fork of Datumaro, which was not run)
# Subject: tables and lists of images
# Behaviour: the export "imagenet" puts images without a label into a folder no_label beside the folders of the classes,
#   an image with two labels into both folders, and the images of all splits into one place (the log says only the last
#   of these). The export "cifar" keeps the first of two labels, and no word about the second.
# Expected: an error or a warning for images that do not have one label each.
# Why it matters: programs that read class folders train a class no_label, and see one picture with two labels; a part
#   of the annotation that was not finished is enough.
# Instead: leave out images without exactly one label before the export
# Last lines of a run on 2026-11-28 (a: zebra and ant, train; b: ant, val; c: no label, train):
#   datumaro 1.13.12: imagenet writes ant/a.jpg, ant/b.jpg, no_label/c.jpg, zebra/a.jpg
#   cifar, read again: a ['zebra'], b ['ant'], c []
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq datumaro==1.13.12
venv/bin/python - 2> errors.txt <<'PYTHON' || { cat errors.txt; exit 1; }
from importlib.metadata import version
from pathlib import Path

import numpy as np
from datumaro.components.annotation import AnnotationType, Label
from datumaro.components.dataset import Dataset
from datumaro.components.dataset_base import DatasetItem
from datumaro.components.media import Image


def item(name, subset, *labels):
    media = Image.from_numpy(data=np.zeros((8, 8, 3), np.uint8))
    return DatasetItem(id=name, subset=subset, media=media, annotations=[Label(label) for label in labels])


items = [item("a", "train", 0, 1), item("b", "val", 1), item("c", "train")]
given = Dataset.from_iterable(items, categories=["zebra", "ant"])
for kind in ("imagenet", "cifar"):
    given.export(kind, kind, save_media=True)
files = sorted(str(path.relative_to("imagenet")) for path in Path("imagenet").rglob("*.*"))
print(f"datumaro {version('datumaro')}: imagenet writes {', '.join(files)}")
again = Dataset.import_from("cifar", "cifar")
names = [one.name for one in again.categories()[AnnotationType.label]]
labels = {one.id: [names[label.label] for label in one.annotations] for one in again}
print(f"cifar, read again: {', '.join(f'{name} {labels[name]}' for name in sorted(labels))}")
assert files == ["ant/a.jpg", "ant/b.jpg", "no_label/c.jpg", "zebra/a.jpg"]
assert labels == {"a": ["zebra"], "b": ["ant"], "c": []}
PYTHON
