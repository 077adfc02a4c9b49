#!/usr/bin/env bash
# duckdb 2.0.1
# Subject: tables and lists of images
# Behaviour: a column of a CSV file that has the words T and F, t and f, or yes and no only becomes BOOLEAN; written
#   back, the labels are "true" and "false". Y and N, on and off stay text. With one other word in the column all stay
#   text.
# Expected: a column of words stays a column of words; true and false alone are truth values.
# Why it matters: a table that was filtered with one line of SQL has other classes: a model with the classes T and F
#   (tumor, female, pass marks) is evaluated against "true" and "false", or both tables together have four classes.
# Instead: `read_csv(..., all_varchar=true)`
# Last lines of a run on 2026-11-29 (labels of a file, and as written back):
#   duckdb 2.0.1: T, F -> true, false; yes, no -> true, false; Y, N -> Y, N; on, off -> on, off
#   T, F, unsure -> T, F, unsure
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq duckdb==2.0.1
venv/bin/python - <<'PYTHON'
import csv

import duckdb


def written_back(*labels):
    with open("labels.csv", "w") as file:
        file.write("path,label\n" + "".join(f"{label}.jpg,{label}\n" for label in labels))
    duckdb.sql("COPY (SELECT * FROM 'labels.csv') TO 'filtered.csv'")
    with open("filtered.csv", newline="") as file:
        return [row["label"] for row in csv.DictReader(file)]


pairs = [("T", "F"), ("yes", "no"), ("Y", "N"), ("on", "off")]
after = [written_back(*pair) for pair in pairs]
said = "; ".join(f"{', '.join(pair)} -> {', '.join(labels)}" for pair, labels in zip(pairs, after))
print(f"duckdb {duckdb.__version__}: {said}")
third = written_back("T", "F", "unsure")
print(f"T, F, unsure -> {', '.join(third)}")
assert after == [["true", "false"], ["true", "false"], ["Y", "N"], ["on", "off"]] and third == ["T", "F", "unsure"]
PYTHON
