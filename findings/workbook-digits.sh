#!/usr/bin/env bash
# xlsxwriter 3.3.1, openpyxl 3.1.5
# Subject: tables and lists of images
# Behaviour: both write 16 digits of a number. Of 10,000 random doubles a quarter come back from the file as another
#   one (in the last bit), read by openpyxl; 0.1 + 0.2 comes back as 0.3.
# Expected: the shortest text that is the same double, as repr() has it: the file format has no limit of digits.
# Why it matters: scores and thresholds that are equal in the program differ in the workbook that is read back by a
#   script; a check "the workbook has the scores of the run" needs a tolerance.
# Instead: compare with a tolerance, or keep the scores in a CSV file
# Last lines of a run on 2026-11-29 (doubles of 10,000 that differ, read by openpyxl):
#   xlsxwriter 3.3.1: 2445; 0.1 + 0.2 is read as 0.3
#   openpyxl 3.1.5: 2445; 0.1 + 0.2 is read as 0.3
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq xlsxwriter==3.3.1 openpyxl==3.1.5
venv/bin/python - <<'PYTHON'
import random

import openpyxl
import xlsxwriter

random.seed(0)
scores = [0.1 + 0.2] + [random.random() for _ in range(9_999)]

workbook = xlsxwriter.Workbook("xlsxwriter.xlsx")
workbook.add_worksheet().write_column(0, 0, scores)
workbook.close()
other = openpyxl.Workbook()
for score in scores:
    other.active.append([score])
other.save("openpyxl.xlsx")


def read(name):
    return [row[0] for row in openpyxl.load_workbook(name).active.iter_rows(values_only=True)]


for library in (xlsxwriter, openpyxl):
    found = read(f"{library.__name__}.xlsx")
    differing = sum(stored != score for stored, score in zip(found, scores))
    largest = max(abs(stored - score) for stored, score in zip(found, scores))
    print(f"{library.__name__} {library.__version__}: {differing}; 0.1 + 0.2 is read as {found[0]}")
    assert 1_000 < differing < 5_000 and largest < 2e-16 and found[0] == 0.3
PYTHON
