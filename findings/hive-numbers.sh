#!/usr/bin/env bash
# pyarrow 26.0.1, pandas 3.1.1 (which reads with pyarrow), polars 2.1.0, duckdb 2.0.1
# Subject: tables and lists of images
# Behaviour: pyarrow and polars read the names of Hive's folders (label=001/0.parquet) as numbers if all of them are
#   numbers: 001 becomes 1, and the folders 001 and 1 become one class. polars takes 1e3 for a number, too. With one
#   folder that is no number, all are texts: 001 stays. duckdb has texts in each case; pandas' read_parquet ends with
#   ValueError "Categorical categories must be unique" if both 001 and 1 are there.
# Expected: a class is the name of its folder in each library, whatever other folders there are.
# Why it matters: classes such as 001 to 200 (CUB, product numbers, ICD and postal codes) do not fit any longer to the
#   names in tables and predictions. A data set whose training has a class "other" has texts, its test without it
#   numbers: no label of the test is known.
# Instead: set the type: `partitioning=HivePartitioning(schema)`, `hive_schema=`
# Last lines of a run on 2026-11-29:
#   folders 001, 010: pyarrow [1, 10], pandas [1, 10], polars [1, 10], duckdb ['001', '010']
#   folders 001, 1: pyarrow [1, 1], pandas ValueError, polars [1, 1], duckdb ['001', '1']
#   folders 007, 1e3: pyarrow ['007', '1e3'], pandas ['007', '1e3'], polars [7.0, 1000.0], duckdb ['007', '1e3']
#   folders 001, other: all ['001', 'other']
#   pyarrow 26.0.1, pandas 3.1.1, polars 2.1.0, duckdb 2.0.1
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq pyarrow==26.0.1 pandas==3.1.1 polars==2.1.0 duckdb==2.0.1 numpy==2.4.6
venv/bin/python - <<'PYTHON'
from pathlib import Path

import duckdb
import pandas
import polars
import pyarrow
import pyarrow.parquet


def duckdb_labels(data):
    rows = duckdb.sql(f"select label from read_parquet('{data}/*/*.parquet', hive_partitioning=true)").fetchall()
    return [label for (label,) in rows]


READERS = {
    "pyarrow": lambda data: pyarrow.parquet.read_table(data)["label"].to_pylist(),
    "pandas": lambda data: pandas.read_parquet(data)["label"].tolist(),
    "polars": lambda data: polars.scan_parquet(data).collect()["label"].to_list(),
    "duckdb": duckdb_labels,
}


def labels(reader, data):
    try:
        return sorted(reader(data))
    except ValueError as error:
        return type(error).__name__


def read_by_all(*classes):
    data = "-".join(classes)
    for name in classes:
        Path(data, f"label={name}").mkdir(parents=True)
        pyarrow.parquet.write_table(pyarrow.table({"image": ["x"]}), f"{data}/label={name}/0.parquet")
    found = {library: labels(reader, data) for library, reader in READERS.items()}
    by_library = ", ".join(f"{library} {read}" for library, read in found.items())
    same = all(read == found["duckdb"] for read in found.values())
    print(f"folders {', '.join(classes)}: " + (f"all {found['duckdb']}" if same else by_library))
    return list(found.values())


assert read_by_all("001", "010") == [[1, 10], [1, 10], [1, 10], ["001", "010"]]
assert read_by_all("001", "1") == [[1, 1], "ValueError", [1, 1], ["001", "1"]]
assert read_by_all("007", "1e3") == [["007", "1e3"], ["007", "1e3"], [7.0, 1000.0], ["007", "1e3"]]
assert read_by_all("001", "other") == [["001", "other"]] * 4
libraries = {"pyarrow": pyarrow, "pandas": pandas, "polars": polars, "duckdb": duckdb}
print(", ".join(f"{name} {library.__version__}" for name, library in libraries.items()))
PYTHON
