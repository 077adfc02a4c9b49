#!/usr/bin/env bash
# webdataset 1.0.2
# Subject: shards and loaders
# Behaviour: WebDataset() ends the key of a sample at the first dot of the file's name: cat.0.jpg and cat.1.jpg are
#   one sample `cat` with the parts `0.jpg` and `1.jpg`; 80 images of two classes become two samples, without a
#   message.
# Expected: the key ends at the last dot, as in os.path.splitext, for one image per name; or an error.
# Why it matters: Kaggle's Dogs vs. Cats names its images cat.0.jpg to dog.12499.jpg, others have a scale or a date
#   before the ending (IMG_0.5x.jpg). A tar of such a folder loses its samples; a map over `jpg` finds none.
# Instead: rename the files so that a name has one dot
# Last lines of a run on 2026-11-29:
#   webdataset 1.0.2: 80 images cat.0.jpg to dog.39.jpg: 2 samples, ['cat', 'dog'], each of 40 parts
#   the same images as cat_0.jpg to dog_39.jpg: 80 samples
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq webdataset==1.0.2 numpy==2.4.6
venv/bin/python - <<'PYTHON'
import io
import tarfile

import webdataset

IMAGE = bytes.fromhex("ffd8ffd9")  # no decoder reads it here


def samples_of(separator):
    with tarfile.open("train-0.tar", "w") as tar:
        for name in ("cat", "dog"):
            for number in range(40):
                member = tarfile.TarInfo(f"{name}{separator}{number}.jpg")
                member.size = len(IMAGE)
                tar.addfile(member, io.BytesIO(IMAGE))
    return list(webdataset.WebDataset("train-0.tar", shardshuffle=False))


def parts_of(sample):
    return [name for name in sample if name.endswith("jpg")]


dots = samples_of(".")
keys = [sample["__key__"] for sample in dots]
counts = {len(parts_of(sample)) for sample in dots}
print(
    f"webdataset {webdataset.__version__}: 80 images cat.0.jpg to dog.39.jpg: {len(dots)} samples, {keys}, each of "
    f"{counts.pop()} parts"
)
lines = samples_of("_")
print(f"the same images as cat_0.jpg to dog_39.jpg: {len(lines)} samples")
assert keys == ["cat", "dog"] and all(len(parts_of(sample)) == 40 for sample in dots)
assert len(lines) == 80 and all(parts_of(sample) == ["jpg"] for sample in lines)
PYTHON
