#!/usr/bin/env bash
# pandas 3.1.1, pyarrow 26.0.1, duckdb 2.0.1, polars 2.1.0
# Subject: tables and lists of images
# Behaviour: read_parquet(filters=[("score", ">=", 0.7)]) of pandas drops the scores of float32 that are 0.7; the filter
#   df[df.score >= 0.7] of the same file keeps them. pyarrow compares in float64, where the 0.7 of float32 is
#   0.699999988, pandas and polars in float32. duckdb has both: "score >= 0.7" keeps them, "score >= ?" with 0.7 does
#   not. The same with the type float32[pyarrow] in pandas, and with 0.9; of 0.3, 0.6 and 0.8 all keep the same rows.
# Expected: a filter while reading gives the rows of the filter after it.
# Why it matters: scores of a network are float32, and those of votes, averages of crops and rounded ones lie on the
#   threshold: 7 of 10 members say yes. Precision and recall at 0.7 depend on where the rows were filtered.
# Instead: filter after reading
# Last lines of a run on 2026-11-30 (scores 0.6, 0.7, 0.7, 0.75; rows with a score of 0.7 or more):
#   pandas 3.1.1: after reading 3, filters= 1, with float32[pyarrow] 1
#   pyarrow 26.0.1: 1; polars 2.1.0: 3; duckdb 2.0.1: 3, with a parameter 1
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq pandas==3.1.1 pyarrow==26.0.1 duckdb==2.0.1 polars==2.1.0 numpy==2.4.6
venv/bin/python - <<'PYTHON'
import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset

def rows(threshold):
    scores = np.float32([threshold - 0.1, threshold, threshold, threshold + 0.05])
    pd.DataFrame({"score": scores}).to_parquet("scores.parquet")
    read = pd.read_parquet("scores.parquet")
    filtered = pd.read_parquet("scores.parquet", filters=[("score", ">=", threshold)])
    typed = read.astype({"score": "float32[pyarrow]"})
    by_arrow = pyarrow.dataset.dataset("scores.parquet").to_table(filter=pyarrow.dataset.field("score") >= threshold)
    by_polars = pl.scan_parquet("scores.parquet").filter(pl.col("score") >= threshold).collect()
    query = "select count(*) from 'scores.parquet' where score >= "
    in_pandas = [int((read.score >= threshold).sum()), len(filtered), int((typed.score >= threshold).sum())]
    written = duckdb.execute(query + str(threshold)).fetchone()[0]
    passed = duckdb.execute(f"{query}?", [threshold]).fetchone()[0]
    return *in_pandas, by_arrow.num_rows, by_polars.height, written, passed


found = rows(0.7)
print(f"pandas {pd.__version__}: after reading {found[0]}, filters= {found[1]}, with float32[pyarrow] {found[2]}")
print(
    f"pyarrow {pa.__version__}: {found[3]}; polars {pl.__version__}: {found[4]}; "
    f"duckdb {duckdb.__version__}: {found[5]}, with a parameter {found[6]}"
)
assert found == rows(0.9) == (3, 1, 1, 1, 3, 3, 1)
assert all(set(rows(threshold)) == {3} for threshold in (0.3, 0.6, 0.8))
PYTHON
