#!/usr/bin/env bash
# datasets 5.2.0, pyarrow 25.0.1
# Subject: shards and loaders
# Behaviour: a column of numbers becomes classes in three ways. cast_column(ClassLabel) takes a number as the place of a
#   name, also where the names are numbers; class_encode_column sorts the numbers as text, and changes them; a CSV file
#   with the same ClassLabel in features= takes the number as a name.
# Expected: one rule: the number is the name, as for text; or the place, and the numbers stay.
# Why it matters: class folders 0 to 11 have the order 0, 1, 10, 11, 2. With their names and a table of their numbers,
#   cast_column names ten of twelve classes wrong, without an error; after class_encode_column a label is no more the
#   number of the table, by which another program or a list of names counts.
# Instead: cast the column to text first: the number is then the name
# Last lines of a run on 2026-11-29 (the number 2; names 0, 1, 10, 11, 2, ..., 9):
#   datasets 5.2.0, cast_column: label 2, named 10
#   datasets 5.2.0, class_encode_column: label 4, named 2
#   datasets 5.2.0, CSV with features: label 4, named 2
# The same on 2026-11-30 with Python 3.13 and numpy 2.5.5, pyarrow 26.0.1.
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq datasets==5.2.0 pyarrow==25.0.1 numpy==2.4.6
HF_DATASETS_OFFLINE=1 venv/bin/python - 2> errors.txt <<'PYTHON' || { cat errors.txt; exit 1; }
from pathlib import Path

import datasets
from datasets import ClassLabel, Dataset, Features

numbers = list(range(12))
feature = ClassLabel(names=sorted(str(number) for number in numbers))


def named(table):
    return [int(table.features["label"].int2str(label)) for label in table["label"]]


given = Dataset.from_dict({"label": numbers})
cast, encoded = given.cast_column("label", feature), given.class_encode_column("label")
Path("labels.csv").write_text("label\n" + "".join(f"{number}\n" for number in numbers))
read = Dataset.from_csv("labels.csv", features=Features({"label": feature}), cache_dir="cache")
for way, table in {"cast_column": cast, "class_encode_column": encoded, "CSV with features": read}.items():
    print(f"datasets {datasets.__version__}, {way}: label {table['label'][2]}, named {named(table)[2]}")
assert list(cast["label"]) == numbers and named(cast)[2] == 10
assert sum(one == other for one, other in zip(named(cast), numbers, strict=True)) == 2
assert encoded["label"][2] == read["label"][2] == 4 and named(encoded) == named(read) == numbers
PYTHON
