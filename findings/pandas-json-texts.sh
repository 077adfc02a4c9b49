#!/usr/bin/env bash
# pandas 3.1.1, datasets 5.2.0, pyarrow 25.0.1
# Subject: tables and lists of images
# Behaviour: read_json() of pandas makes numbers of a column whose texts all look like numbers, though JSON has a type
#   for texts and one for numbers: "001" and "1" become 1, "00e1" and "00e2" become 0, and ids of 20 digits become
#   float64. With dtype_backend= it keeps the texts. The names of a JSON object become numbers, too: {"001": "cat"}.
# Expected: texts, as the json module of Python and the loader "json" of datasets read them.
# Why it matters: two classes are one, and patients whose ids differ in the last digits, or are 00e1 and 00e2, are one
#   group. A join with file names, which are texts, finds nothing.
# Instead: `read_json(..., dtype=False, convert_axes=False)`
# Last lines of a run on 2026-12-01 (two rows of texts; those that pandas reads, and how many differ):
#   pandas 3.1.1: "001", "1": 1, 1 (1); "00e1", "00e2": 0.0, 0.0 (1)
#   "12345678901234567890", "12345678901234567891": 1.2345678901234567e+19, 1.2345678901234567e+19 (1)
#   the other ways: 001, 1; datasets 5.2.0: 001, 1; names of an object: 1, 1
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq pandas==3.1.1 datasets==5.2.0 pyarrow==25.0.1 numpy==2.4.6
HF_HOME=$PWD/cache venv/bin/python - 2> errors.txt <<'PYTHON' || { cat errors.txt; exit 1; }
import io
import json

import datasets
import pandas as pd

datasets.disable_progress_bars()


def write(texts):
    with open("labels.jsonl", "w") as file:
        file.writelines(json.dumps({"label": text}) + "\n" for text in texts)


def read(**options):
    return pd.read_json("labels.jsonl", lines=True, **options)["label"].tolist()


def text(values):
    return ", ".join(map(str, values))


pairs = [("001", "1"), ("00e1", "00e2"), ("12345678901234567890", "12345678901234567891")]
lines = []
for pair in pairs:
    write(pair)
    values = read()
    lines.append(f"{', '.join(map(json.dumps, pair))}: {text(values)} ({len(set(values))})")
    assert len(set(values)) == 1 and not isinstance(values[0], str)
print(f"pandas {pd.__version__}: {'; '.join(lines[:2])}")
print(lines[2])

write(pairs[0])
kept = read(dtype=False)
rows = datasets.load_dataset("json", data_files="labels.jsonl", split="train")["label"][:]
named = io.StringIO('{"001": "cat", "1": "dog"}')
names = pd.read_json(named, typ="series").index.tolist()
print(f"the other ways: {text(kept)}; datasets {datasets.__version__}: {text(rows)}; names of an object: {text(names)}")
assert kept == read(dtype_backend="pyarrow") == rows == ["001", "1"] and names == [1, 1]
named.seek(0)
assert pd.read_json(named, typ="series", convert_axes=False).index.tolist() == ["001", "1"]
PYTHON
