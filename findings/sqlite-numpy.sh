#!/usr/bin/env bash
# numpy 2.4.6, Python's sqlite3
# Subject: tables and lists of images
# Behaviour: execute("insert ...", (np.float32(0.2), np.int64(1))) stores the bytes of the numbers as blobs, also in
#   columns REAL and INTEGER, without an error. avg() and sum() of them are 0, each blob is larger than any number, and
#   none is equal to one. np.float64 is a Python float, and is stored as a number.
# Expected: numbers, or the error that sqlite3 gives for other unknown types.
# Why it matters: scores of a network are float32, labels int64. A database of predictions says that all scores are
#   above the threshold, that no image has the class 1, and that the mean is 0.
# Instead: `tolist()` or `item()` before
# Last lines of a run on 2026-11-30 (scores 0.1, 0.2, 0.9, labels 0, 1, 1):
#   numpy 2.4.6; types, mean score, scores above 0.5, images of class 1:
#   elements of arrays: blob, blob, 0.0, 3, 0; tolist(): real, integer, 0.4, 1, 2
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq numpy==2.4.6
venv/bin/python - <<'PYTHON'
import sqlite3

import numpy as np

scores, labels = np.array([0.1, 0.2, 0.9], np.float32), np.array([0, 1, 1])


def figures(scores, labels):
    base = sqlite3.connect(":memory:")
    base.execute("create table predictions (score real, label integer)")
    base.executemany("insert into predictions values (?, ?)", zip(scores, labels, strict=True))
    kinds = base.execute("select typeof(score), typeof(label) from predictions").fetchone()
    above, positive = (
        base.execute(f"select count(*) from predictions where {condition}").fetchone()[0]
        for condition in ("score > 0.5", "label = 1")
    )
    mean = base.execute("select avg(score) from predictions").fetchone()[0]
    return *kinds, round(mean, 3), above, positive


arrays, plain = figures(scores, labels), figures(scores.tolist(), labels.tolist())
print(f"numpy {np.__version__}; types, mean score, scores above 0.5, images of class 1:")
print(f"elements of arrays: {', '.join(map(str, arrays))}; tolist(): {', '.join(map(str, plain))}")
assert arrays == ("blob", "blob", 0.0, 3, 0)
assert plain == ("real", "integer", 0.4, 1, 2)
PYTHON
