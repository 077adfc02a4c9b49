#!/usr/bin/env bash
# pandas 2.3.3 and datasets 5.2.0 (which reads CSV files with pandas), pyarrow 25.0.1
# Subject: tables and lists of images
# Behaviour: the labels "None", "NA", "null", "n/a" and "nan" of a CSV file become missing values; "none" does not.
#   pyarrow's reader keeps all of them as text.
# Expected: a column of words stays a column of words.
# Why it matters: "None" (no finding) is often the largest class of a medical table, "NA" a country. dropna(), or the
#   loss on a missing label, removes the class; models that were trained with another reader have it.
# Instead: `keep_default_na=False`
# Last lines of a run on 2026-11-28:
#   pandas 2.3.3:    [nan, nan, nan, nan, nan, 'none', 'tumor']
#   datasets 5.2.0:  [None, None, None, None, None, 'none', 'tumor']
#   pyarrow 25.0.1:  ['None', 'NA', 'null', 'n/a', 'nan', 'none', 'tumor']
# The same on 2026-11-30 with Python 3.13 and numpy 2.5.5, pandas 3.1.1, pyarrow 26.0.1.
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq datasets==5.2.0 pandas==2.3.3 pyarrow==25.0.1 numpy==2.2.6
export HF_HOME=$PWD/cache HF_HUB_OFFLINE=1
venv/bin/python - <<'PYTHON'
import datasets
import pandas
import pyarrow
from pyarrow import csv

datasets.disable_progress_bars()
words = ["None", "NA", "null", "n/a", "nan", "none", "tumor"]
with open("labels.csv", "w") as file:
    file.write("path,label\n" + "".join(f"{number}.jpg,{word}\n" for number, word in enumerate(words)))
by_pandas = pandas.read_csv("labels.csv")["label"].tolist()
by_datasets = list(datasets.load_dataset("csv", data_files="labels.csv", split="train")["label"])
by_pyarrow = csv.read_csv("labels.csv")["label"].to_pylist()
print(f"pandas {pandas.__version__}:    {by_pandas}")
print(f"datasets {datasets.__version__}:  {by_datasets}")
print(f"pyarrow {pyarrow.__version__}:  {by_pyarrow}")
assert [isinstance(one, str) for one in by_pandas] == [False] * 5 + [True] * 2
assert by_datasets == [None] * 5 + ["none", "tumor"] and by_pyarrow == words
PYTHON
