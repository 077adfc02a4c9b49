#!/usr/bin/env bash
# polars 2.1.0, pandas 2.3.3
# Subject: tables and lists of images
# Behaviour: unique() of a column of texts has another order in each process, so that classes numbered by it change from
#   run to run. The codes of a Categorical (to_physical) count through all categories that the process holds: a column
#   label after a column camera starts at 2, and a second table has other numbers than in a process of its own.
# Expected: as in pandas: unique() in the order of the rows, and codes from 0 in each column.
# Why it matters: {name: number for number, name in enumerate(unique)} is right within one process. The evaluation in
#   the next one has the classes in another order, its accuracy that of chance. Codes that begin above 0 need a larger
#   head, or are an error only where the number of classes is checked.
# Instead: `sort()`, or `pl.Enum` with the classes
# Last lines of a run on 2026-11-29 (labels dog, cat, fox, ant, cat, bee, elk, hen):
#   polars 2.1.0: 20 processes, over 10 orders of unique(); pandas 2.3.3: 1
#   codes of dog, cat: alone [0, 1], beside the cameras [2, 3], of cat, ant after them [3, 4]; pandas [1, 0], [1, 0]
# The same on 2026-11-30 with Python 3.13 and pandas 3.1.1.
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq polars==2.1.0 pandas==2.3.3
cat > orders.py <<'PYTHON'
import pandas as pd
import polars as pl

labels = ["dog", "cat", "fox", "ant", "cat", "bee", "elk", "hen"]
print(*pl.Series(labels).unique(), sep=",", end=" ")
print(*pd.Series(labels).unique(), sep=",")
PYTHON
export POLARS_MAX_THREADS=1
for _ in $(seq 20); do venv/bin/python orders.py; done > orders.txt
cat > alone.py <<'PYTHON'
import polars as pl

print(pl.Series(["dog", "cat"]).cast(pl.Categorical).to_physical().to_list())
PYTHON
venv/bin/python alone.py > alone.txt
venv/bin/python - <<'PYTHON'
import json
from pathlib import Path

import pandas as pd
import polars as pl

of_polars, of_pandas = (set(orders) for orders in zip(*map(str.split, Path("orders.txt").read_text().splitlines())))
alone = json.loads(Path("alone.txt").read_text())


def table(**columns):
    return pl.DataFrame(columns).cast(pl.Categorical)


def codes(one):
    return one["label"].to_physical().to_list()


first = table(camera=["left", "right"], label=["dog", "cat"])
second = table(label=["cat", "ant"])
after, of_other = codes(first), codes(second)
plain = [pd.Series(texts, dtype="category").cat.codes.tolist() for texts in (["dog", "cat"], ["cat", "ant"])]
many = "over 10" if len(of_polars) > 10 else len(of_polars)
print(f"polars {pl.__version__}: 20 processes, {many} orders of unique(); pandas {pd.__version__}: {len(of_pandas)}")
plain_text = ", ".join(map(str, plain))
print(
    f"codes of dog, cat: alone {alone}, beside the cameras {after}, of cat, ant after them {of_other}; "
    f"pandas {plain_text}"
)
assert len(of_polars) > 10 and len(of_pandas) == 1
assert alone == [0, 1] and after == [2, 3] and of_other == [3, 4] and plain == [[1, 0], [1, 0]]
PYTHON
