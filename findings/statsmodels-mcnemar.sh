#!/usr/bin/env bash
# statsmodels 0.15.0
# Subject: metrics and statistics
# Behaviour: mcnemar(table, exact=False), with its default correction, gives p = 0 where both models are right and wrong
#   on the same images, and p = 0.48 where each is right on one image more, but p = 1 for one image and two: the
#   correction of 1 is squared where the counts are equal. correction=False gives NaN for the first, and 1 for the
#   second.
# Expected: p = 1 for equal counts, as exact=True gives.
# Why it matters: "the new model differs from the old one" is tested by this on large sets. A model and its export,
#   which agree on each image, differ with p = 0; of several comparisons the equal ones are the first that are reported.
# Instead: `mcnemar(table, exact=True)`, the default
# Last lines of a run on 2026-11-30 (images on which one model alone is right, for each model: p, exact p):
#   statsmodels 0.15.0: 0 and 0: 0.00, 1.00; 1 and 1: 0.48, 1.00; 1 and 2: 1.00, 1.00; 10 and 10: 0.82, 1.00
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq statsmodels==0.15.0 numpy==2.4.6
venv/bin/python -W ignore - 2> errors.txt <<'PYTHON' || { cat errors.txt; exit 1; }
import statsmodels
from statsmodels.stats.contingency_tables import mcnemar


def p_values(first, second):
    table = [[100, first], [second, 20]]
    return round(float(mcnemar(table, exact=False).pvalue), 2), round(float(mcnemar(table).pvalue), 2)


counts = [(0, 0), (1, 1), (1, 2), (10, 10)]
found = [p_values(*pair) for pair in counts]
said = [f"{pair[0]} and {pair[1]}: {p:.2f}, {exact:.2f}" for pair, (p, exact) in zip(counts, found)]
print(f"statsmodels {statsmodels.__version__}: {'; '.join(said)}")
assert [p for p, _ in found] == [0, 0.48, 1, 0.82] and all(exact == 1 for _, exact in found)
PYTHON
