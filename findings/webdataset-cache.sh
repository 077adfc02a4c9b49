#!/usr/bin/env bash
# webdataset 1.0.2
# Subject: shards and loaders
# Behaviour: the cache of WebDataset(url, cache_dir=...) names a shard by the last part of its URL alone. With
#   train/000.tar and val/000.tar of one server and one cache, the second is read from the file of the first: the
#   validation has the training images, without a message.
# Expected: a name by the whole URL, or a folder for each.
# Why it matters: shards are numbered from 000 in each split, and one folder on a local disk is the cache of a job. The
#   validation accuracy is that of trained images; the parts of two data sets are exchanged in the same way.
# Instead: a `cache_dir` for each folder of shards
# Last lines of a run on 2026-11-30 (images a and b in train/000.tar, c and d in val/000.tar):
#   webdataset 1.0.2, without a cache: train ['a', 'b'], val ['c', 'd']
#   with cache_dir="cache": train ['a', 'b'], val ['a', 'b']; files in the cache: ['000.tar']
#   with cache_dir="cache-" + split: train ['a', 'b'], val ['c', 'd']
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq webdataset==1.0.2 numpy==2.4.6
venv/bin/python - 2> errors.txt <<'PYTHON' || { cat errors.txt; exit 1; }
import functools
import http.server
import importlib.metadata
import os
import threading

import webdataset

images = {"train": ["a", "b"], "val": ["c", "d"]}
for split, names in images.items():
    os.makedirs(f"server/{split}")
    with webdataset.TarWriter(f"server/{split}/000.tar") as writer:
        for name in names:
            writer.write({"__key__": name, "cls": 0})
handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory="server")
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
threading.Thread(target=server.serve_forever, daemon=True).start()


def keys_of(split, cache=None):
    if cache:
        os.makedirs(cache, exist_ok=True)
    url = f"http://127.0.0.1:{server.server_port}/{split}/000.tar"
    samples = webdataset.WebDataset(url, cache_dir=cache, shardshuffle=False)
    return [sample["__key__"] for sample in samples]


plain = {split: keys_of(split) for split in images}
shared = {split: keys_of(split, "cache") for split in images}
apart = {split: keys_of(split, f"cache-{split}") for split in images}
version = importlib.metadata.version("webdataset")
print(f"webdataset {version}, without a cache: train {plain['train']}, val {plain['val']}")
print(
    f'with cache_dir="cache": train {shared["train"]}, val {shared["val"]}; '
    f"files in the cache: {os.listdir('cache')}"
)
print(f'with cache_dir="cache-" + split: train {apart["train"]}, val {apart["val"]}')
assert plain == apart == images and shared["val"] == images["train"]
PYTHON
