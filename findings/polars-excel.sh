#!/usr/bin/env bash
# polars 2.1.0 with fastexcel 0.21.0 (its default engine), pandas 3.1.1, openpyxl 3.1.5, xlsxwriter 3.3.1
# Subject: tables and lists of images
# Behaviour: read_excel() of polars takes the type of a column from its first 100 rows. Words that come later in a
#   column of numbers become null, without a warning. With a word among the 100 rows, and with engine="openpyxl", all
#   cells are texts; pandas keeps numbers and words.
# Expected: texts, or the error that read_csv() of polars gives for the same table.
# Why it matters: classes are numbers, with "other" or "7b" further down: these images have no label. They are dropped
#   as missing, or count as negatives, and the class does not exist.
# Instead: `infer_schema_length=None`
# Last lines of a run on 2026-11-30 (100 rows of the classes 0 to 9, then 20 rows of the class "other"):
#   polars 2.1.0: Int64, 20 of 120 labels are null
#   with 99 rows of numbers: 0 null, infer_schema_length=None: 0
#   read_csv: ComputeError; pandas 3.1.1: 20 labels "other"
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq polars==2.1.0 fastexcel==0.21.0 pandas==3.1.1 openpyxl==3.1.5 xlsxwriter==3.3.1
venv/bin/python - <<'PYTHON'
import warnings

import pandas as pd
import polars as pl
import xlsxwriter

warnings.simplefilter("error")
labels = [number % 10 for number in range(100)] + ["other"] * 20


def write(labels):
    with xlsxwriter.Workbook("labels.xlsx") as book:
        sheet = book.add_worksheet()
        sheet.write_row(0, 0, ["image", "label"])
        for row, label in enumerate(labels, 1):
            sheet.write_row(row, 0, [f"{row}.jpg", label])


write(labels)
default, whole = pl.read_excel("labels.xlsx"), pl.read_excel("labels.xlsx", infer_schema_length=None)
pandas = pd.read_excel("labels.xlsx")
others = int((pandas["label"] == "other").sum())
pandas.to_csv("labels.csv", index=False)
try:
    of_csv = str(pl.read_csv("labels.csv").schema["label"])
except pl.exceptions.ComputeError as error:
    of_csv = type(error).__name__
write(labels[1:])
earlier = pl.read_excel("labels.xlsx")
print(f"polars {pl.__version__}: {default['label'].dtype}, {default['label'].null_count()} of 120 labels are null")
nulls = [table["label"].null_count() for table in (earlier, whole)]
print(f"with 99 rows of numbers: {nulls[0]} null, infer_schema_length=None: {nulls[1]}")
print(f"read_csv: {of_csv}; pandas {pd.__version__}: {others} labels \"other\"")
assert default["label"].dtype == pl.Int64 and default["label"].null_count() == 20
assert whole["label"].to_list() == [str(label) for label in labels] and earlier["label"].null_count() == 0
assert of_csv == "ComputeError" and others == 20
PYTHON
