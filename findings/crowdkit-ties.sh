#!/usr/bin/env bash
# crowd-kit 1.4.2
# Subject: tables and lists of images
# Behaviour: where two people disagree on an image, MajorityVote() and DawidSkene() return the label that comes first in
#   the table: the same ratings in another order of the rows give another label to each such image. The probabilities
#   are 0.5 and 0.5. There is no message.
# Expected: a rule that does not depend on the order of the rows: the label of the better annotator, of the alphabet, or
#   none.
# Why it matters: images with two readers are common, and those on which they disagree are the hard ones. A table that
#   is sorted by label, by reader or by time trains on other classes; sorted by label, each tie is of the first class.
# Instead: ask `fit_predict_proba()` for ties, and leave them out or have them read again
# Last lines of a run on 2026-11-30 (six images, one reader says malignant, the other benign):
#   crowd-kit 1.4.2, MajorityVote: sorted by reader {'malignant'}, rows reversed {'benign'}, sorted by label {'benign'}
#   DawidSkene: sorted by reader {'malignant'}, rows reversed {'benign'}, sorted by label {'benign'}
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq crowd-kit==1.4.2 pandas==3.1.1 numpy==2.4.6
venv/bin/python -W ignore - 2> errors.txt <<'PYTHON' || { cat errors.txt; exit 1; }
import importlib.metadata

import pandas as pd
from crowdkit.aggregation import DawidSkene, MajorityVote

READINGS = [("a", "malignant"), ("b", "benign")]
rows = [(f"{number}.jpg", reader, label) for number in range(6) for reader, label in READINGS]
by_reader = pd.DataFrame(rows, columns=["task", "worker", "label"])
tables = {
    "sorted by reader": by_reader,
    "rows reversed": by_reader.iloc[::-1],
    "sorted by label": by_reader.sort_values("label"),
}
start = f"crowd-kit {importlib.metadata.version('crowd-kit')}, "
for method in (MajorityVote(), DawidSkene(n_iter=10)):
    found = {name: set(method.fit_predict(table)) for name, table in tables.items()}
    print(f"{start}{type(method).__name__}: {', '.join(f'{name} {labels}' for name, labels in found.items())}")
    start = ""
    assert [*found.values()] == [{"malignant"}, {"benign"}, {"benign"}]
assert (DawidSkene(n_iter=10).fit_predict_proba(by_reader) == 0.5).all(axis=None)
PYTHON
