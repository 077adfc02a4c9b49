#!/usr/bin/env bash
# pandas 2.3.3 (the newest, 3.1.1, returns the numbers of the file)
# Behaviour: read_csv() returns other numbers than the file has: of 100,000 random doubles that to_csv() wrote with all
#   digits, a third differ in the last bit. float_precision="round_trip" returns all of them.
# Expected: the nearest double, as of Python's float() and of numpy; 17 digits say which one it is.
# Why it matters: a score that is equal to the threshold, or to another score, in the program that wrote it is on
#   another side of it after read_csv(): decisions, ties and medians of scores differ between the program and the
#   notebook.
# Last lines of a run on 2026-11-29 (doubles that are not those of the file, of 100,000):
#   pandas 2.3.3: default 36110, float_precision="round_trip" 0, Python's float() 0; largest difference 1.1e-16
#   scores that are below their own value as the threshold: 33884
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq pandas==2.3.3 numpy==2.4.6
venv/bin/python - <<'PYTHON'
import numpy as np
import pandas as pd

scores = np.random.default_rng(0).random(100_000)
pd.DataFrame({"score": scores}).to_csv("scores.csv", index=False)
by_default = pd.read_csv("scores.csv")["score"].to_numpy()
exact = pd.read_csv("scores.csv", float_precision="round_trip")["score"].to_numpy()
of_python = np.array([float(line) for line in open("scores.csv").read().split()[1:]])
others = [int((read != scores).sum()) for read in (by_default, exact, of_python)]
largest = np.abs(by_default - scores).max()
print(
    f'pandas {pd.__version__}: default {others[0]}, float_precision="round_trip" {others[1]}, '
    f"Python's float() {others[2]}; largest difference {largest:.1e}"
)
below = int((by_default < scores).sum())
print(f"scores that are below their own value as the threshold: {below}")
assert others[0] > 10_000 and others[1:] == [0, 0] and largest < 3e-16
PYTHON
