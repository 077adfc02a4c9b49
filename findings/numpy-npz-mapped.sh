#!/usr/bin/env bash
# numpy 2.4.6
# Subject: shards and loaders
# Behaviour: np.load("x.npz", mmap_mode="r") maps nothing: each array is read into memory, at each access again,
#   without a word. Only a .npy file is mapped; an uncompressed .npz holds the same bytes, but not for np.load.
# Expected: a memmap, as of the .npy file, or an error for a file that cannot be mapped.
# Why it matters: embeddings and scores of a million images are kept as .npz; a notebook that "maps" them reads all of
#   them for one row, once per access.
# Instead: save large arrays as `.npy`
# Last lines of a run on 2026-11-29:
#   numpy 2.4.6, mmap_mode="r": features.npy is a memmap, features.npz an ndarray
#   peak memory of one row of 80 MB: .npy below 8 MB: True, .npz below 8 MB: False
#   the same array object at a second access: False
# The same on 2026-11-30 with Python 3.13 and numpy 2.5.5.
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq numpy==2.4.6
venv/bin/python - <<'PYTHON'
import tracemalloc

import numpy as np

features = np.ones((100_000, 200), np.float32)
np.save("features.npy", features)
np.savez("features.npz", features=features)
del features

mapped = np.load("features.npy", mmap_mode="r")
archive = np.load("features.npz", mmap_mode="r")
kinds = type(mapped).__name__, type(archive["features"]).__name__
print(f'numpy {np.__version__}, mmap_mode="r": features.npy is a {kinds[0]}, features.npz an {kinds[1]}')


def is_small(read):
    tracemalloc.start()
    read()
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak_bytes < 8e6


small = is_small(lambda: mapped[5].sum()), is_small(lambda: archive["features"][5].sum())
print(f"peak memory of one row of 80 MB: .npy below 8 MB: {small[0]}, .npz below 8 MB: {small[1]}")
same = archive["features"] is archive["features"]
print(f"the same array object at a second access: {same}")
assert kinds == ("memmap", "ndarray") and small == (True, False) and not same
PYTHON
