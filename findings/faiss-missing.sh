#!/usr/bin/env bash
# faiss-cpu 1.15.1
# Subject: metrics and statistics
# Behaviour: search() of an IVF index with its default nprobe=1 returns fewer than k neighbours where the cell of the
#   query has fewer; the places that are left have the index -1, without a message.
# Expected: k neighbours, from further cells if need be, or an error.
# Why it matters: k-NN accuracy on stored features reads labels[indices], and in NumPy -1 is the last image: its class
#   gets the votes of all missing neighbours. Of images that exact neighbours all classify right, 37% are right.
# Instead: drop the index -1, or set `nprobe` so that k neighbours are found
# Last lines of a run on 2026-11-29 (4,000 features in ten distant groups, one per class; 100 cells, 100 neighbours):
#   faiss 1.15.1, nprobe 1: 54% of the indices are -1; accuracy 37.0%
#   nprobe 100: 0% of them; accuracy 100.0%
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq faiss-cpu==1.15.1 numpy==2.4.6
venv/bin/python - 2> errors.txt <<'PYTHON' || { cat errors.txt; exit 1; }
import faiss
import numpy as np

labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 400))
noise = np.random.default_rng(1).normal(size=(len(labels), 10)).astype(np.float32)
features = np.eye(10, dtype=np.float32)[labels] * 20 + noise
index = faiss.index_factory(10, "IVF100,Flat")
index.train(features)
index.add(features)


def vote(cells):
    """The share of -1 among the 100 neighbours of each image, and the accuracy of their votes."""
    index.nprobe = cells
    _, found = index.search(features, 100)
    votes = np.stack([np.bincount(row, minlength=10) for row in labels[found]])
    return float((found == -1).mean()), float((votes.argmax(1) == labels).mean())


default = index.nprobe
missing, accuracy = vote(default)
none_missing, full = vote(100)
print(f"faiss {faiss.__version__}, nprobe {default}: {missing:.0%} of the indices are -1; accuracy {accuracy:.1%}")
print(f"nprobe 100: {none_missing:.0%} of them; accuracy {full:.1%}")
assert default == 1 and missing > 0.4 and accuracy < 0.5
assert none_missing == 0 and full == 1
PYTHON
