#!/usr/bin/env bash
# torchmetrics 1.9.0, torch 2.14.1 (5 GB are downloaded)
# Subject: metrics and statistics
# Behaviour: a MetricCollection compares the counts of its metrics after the first batch, and computes those with equal
#   counts as one from then on. Two accuracies with the thresholds 0.5 and 0.9 are one metric for the whole evaluation
#   if no score of the first batch lies between them.
# Expected: each metric has its own threshold; groups are of metrics that are equal by their settings.
# Why it matters: a table of thresholds has one value twice, without a message, and it depends on the first images. Sure
#   models of an ordered data set, or a first batch of a few images, have no score in between.
# Instead: `MetricCollection(..., compute_groups=False)`
# Last lines of a run on 2026-12-01 (scores 0.1, 0.95 of the labels 0, 1; then 0.6, 0.7 of 1, 1):
#   torchmetrics 1.9.0: at 50% 1.00, at 90% 1.00, groups [['at 50%', 'at 90%']]
#   the batches in the other order: at 50% 1.00, at 90% 0.50; each alone: 1.00, 0.50; without groups: 1.00, 0.50
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq torchmetrics==1.9.0 torch==2.14.1 numpy==2.4.6
OMP_NUM_THREADS=1 venv/bin/python - 2> errors.txt <<'PYTHON' || { cat errors.txt; exit 1; }
import torch
import torchmetrics
from torchmetrics.classification import BinaryAccuracy

BATCHES = [([0.1, 0.95], [0, 1]), ([0.6, 0.7], [1, 1])]


def metrics():
    return {f"at {percent}%": BinaryAccuracy(threshold=percent / 100) for percent in (50, 90)}


def evaluate(metric, batches=BATCHES):
    for scores, labels in batches:
        metric.update(torch.tensor(scores), torch.tensor(labels))
    return metric.compute()


def text(values):
    return ", ".join(f"{value:.2f}" for value in values)


collection = torchmetrics.MetricCollection(metrics())
together = evaluate(collection)
reversed_order = evaluate(torchmetrics.MetricCollection(metrics()), BATCHES[::-1])
alone = [evaluate(metric) for metric in metrics().values()]
ungrouped = evaluate(torchmetrics.MetricCollection(metrics(), compute_groups=False))
named = [", ".join(f"{name} {value:.2f}" for name, value in found.items()) for found in (together, reversed_order)]
print(f"torchmetrics {torchmetrics.__version__}: {named[0]}, groups {[*collection.compute_groups.values()]}")
print(
    f"the batches in the other order: {named[1]}; each alone: {text(alone)}; "
    f"without groups: {text(ungrouped.values())}"
)
assert text(together.values()) == "1.00, 1.00"
assert text(reversed_order.values()) == text(alone) == text(ungrouped.values()) == "1.00, 0.50"
PYTHON
