#!/usr/bin/env bash
# duckdb 2.0.1, pandas 3.1.1
# Behaviour: "using sample 10%" of duckdb keeps or drops whole blocks of 2,048 rows. A table of 2,000 rows gives all of
#   them or none; one of 100,000 that is sorted by class gives 4% to 16%, and some of its ten classes only.
#   "using sample 10% (bernoulli)" and a number of rows draw single rows.
# Expected: each row is drawn with the probability of 10%, or a tenth of the rows.
# Why it matters: lists of images are sorted by class folder. A tenth for a quick training lacks classes, and an
#   estimate of their shares from a sample is wrong by more than any standard error says.
# Last lines of a run on 2026-11-30 (ten classes of equal size, 100 samples each; the smallest and largest seen):
#   duckdb 2.0.1, 2,000 rows: 10% has 0 or 2000 rows, with (bernoulli) 163 to 239
#   100,000 rows: 10% has 1 to 8 classes, with (bernoulli) 10
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq duckdb==2.0.1 pandas==3.1.1 numpy==2.4.6
venv/bin/python - <<'PYTHON'
import duckdb
import numpy as np
import pandas as pd

found = {}
for count in (2000, 100_000):
    connection = duckdb.connect()
    images = pd.DataFrame({"label": np.repeat(np.arange(10), count // 10)})
    connection.execute("create table images as select * from images")
    for method in ("", " (bernoulli)"):
        query = f"select count(*), count(distinct label) from (select * from images using sample 10%{method})"
        found[count, method] = np.array([connection.execute(query).fetchone() for _ in range(100)])
blocks, rows = found[2000, ""][:, 0], found[2000, " (bernoulli)"][:, 0]
some, all_of = found[100_000, ""][:, 1], found[100_000, " (bernoulli)"][:, 1]
print(
    f"duckdb {duckdb.__version__}, 2,000 rows: 10% has {' or '.join(map(str, np.unique(blocks)))} rows, "
    f"with (bernoulli) {rows.min()} to {rows.max()}"
)
print(f"100,000 rows: 10% has {some.min()} to {some.max()} classes, with (bernoulli) {all_of.min()}")
assert set(blocks) == {0, 2000} and rows.min() > 100 and rows.max() < 300 and some.max() < all_of.min() == 10
PYTHON
