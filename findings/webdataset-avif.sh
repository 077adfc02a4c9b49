#!/usr/bin/env bash
# webdataset 1.0.2, Pillow 13.0.0
# Subject: shards and loaders
# Behaviour: decode("pil") decodes the members .jpg, .png, .webp, .bmp, .gif, .tif, .jp2; a member .avif stays bytes.
# Expected: all formats that Pillow opens (this Pillow opens AVIF), or an error.
# Why it matters: shards that were written as AVIF to save space give bytes where a transform expects an
#   image; in a mixed shard, rename(image="jpg;png;avif") gives images and bytes in one batch.
# Instead: write WebP or PNG, or decode the bytes with Pillow
# Last lines of a run on 2026-11-28:
#   webdataset 1.0.2: jpg Image, png Image, webp Image, bmp Image, gif Image, tif Image, jp2 Image, avif bytes
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq webdataset==1.0.2 pillow==13.0.0 numpy==2.4.6
venv/bin/python - <<'PYTHON'
import io
import tarfile

import webdataset
from PIL import Image

endings = ("jpg", "png", "webp", "bmp", "gif", "tif", "jp2", "avif")
with tarfile.open("train-0.tar", "w") as tar:
    for ending in endings:
        image = io.BytesIO()
        Image.new("RGB", (16, 16), (200, 30, 60)).save(image, Image.registered_extensions()[f".{ending}"])
        member = tarfile.TarInfo(f"sample_{ending}.{ending}")
        member.size = len(image.getvalue())
        tar.addfile(member, io.BytesIO(image.getvalue()))
samples = webdataset.WebDataset("train-0.tar", shardshuffle=False).decode("pil")
kinds = [f"{ending} {type(sample[ending]).__name__}" for ending, sample in zip(endings, samples, strict=True)]
print(f"webdataset {webdataset.__version__}: {', '.join(kinds)}")
assert kinds == [f"{ending} Image" for ending in endings[:-1]] + ["avif bytes"]
PYTHON
