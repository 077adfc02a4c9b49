#!/usr/bin/env bash
# datasets 5.2.0, pyarrow 25.0.1, numpy 2.4.6
# Subject: shards and loaders
# Behaviour: with_format("numpy") gives a column as float32 if it has float64, and as int64 if it has integers of any
#   type, so that a uint64 from 2^63 on is negative; one row of the same data set, rows[0], has the types of the file,
#   but float32 for the numbers of a list. There is no warning.
# Expected: the types of the features, which the data set states, for a row and for a column.
# Why it matters: ids in float64 above 16,777,216 become ids of a neighbour, so that patients or sites are mixed in
#   groups; perceptual hashes of 64 bits are negative in a column and not in a row, and never equal; scores of float64
#   lose digits, and ties appear.
# Instead: `with_format("numpy", dtype=...)` with the type, or `with_format("arrow")`
# Last lines of a run on 2026-12-01 (two rows; a column, and the first row):
#   datasets 5.2.0: float64: 16777216.0, float32; row 16777217.0, float64
#   uint64: -9223372036854775803, int64; row 9223372036854775813, uint64; uint8: int64, uint8
#   list of float64: row 16777216.0, float32; with dtype=float64: 16777217.0; pandas: 16777217.0, float64
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq datasets==5.2.0 pyarrow==25.0.1 numpy==2.4.6
HF_HOME=$PWD/cache venv/bin/python - 2> errors.txt <<'PYTHON' || { cat errors.txt; exit 1; }
import datasets
import numpy as np
import pyarrow as pa

FIRST = {"float64": 2.0**24 + 1, "uint64": 2**63 + 5, "uint8": 7}
COLUMNS = {name: pa.array([value, 1], name if name != "float64" else pa.float64()) for name, value in FIRST.items()}
COLUMNS["list"] = pa.array([[FIRST["float64"]], [1.0]], pa.list_(pa.float64()))
rows = datasets.Dataset(pa.table(COLUMNS))
arrays = rows.with_format("numpy")
column = {name: arrays[:][name] for name in FIRST}
row = {name: arrays[0][name] for name in COLUMNS}
exact = rows.with_format("numpy", dtype=np.float64)[:]["float64"]
frame = rows.with_format("pandas")[:]["float64"]


def text(name):
    return f"{name}: {column[name][0]}, {column[name].dtype}; row {row[name]}, {row[name].dtype}"


print(f"datasets {datasets.__version__}: {text('float64')}")
print(f"{text('uint64')}; uint8: {column['uint8'].dtype}, {row['uint8'].dtype}")
print(
    f"list of float64: row {row['list'][0]}, {row['list'].dtype}; with dtype=float64: {exact[0]}; "
    f"pandas: {frame[0]}, {frame.dtype}"
)
assert rows.features["float64"].dtype == "float64" and rows[:]["float64"][0] == FIRST["float64"]
assert [values.dtype for values in column.values()] == [np.float32, np.int64, np.int64]
assert [row[name].dtype for name in FIRST] == [np.float64, np.uint64, np.uint8] and row["list"].dtype == np.float32
assert column["float64"][0] == 2**24 == row["list"][0] and row["float64"] == 2**24 + 1 == exact[0] == frame[0]
assert column["uint64"][0] == 5 - 2**63 and row["uint64"] == 2**63 + 5
PYTHON
