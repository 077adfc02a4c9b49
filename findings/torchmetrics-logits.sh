#!/usr/bin/env bash
# torchmetrics 1.9.0, torch 2.14.1 (5 GB are downloaded), scikit-learn 1.9.1
# Subject: metrics and statistics
# Behaviour: update() applies the sigmoid (softmax) if one value of the batch is outside 0 to 1. The logits of a batch
#   that lie inside by chance are taken as probabilities, so that accuracy, F1 and AUROC depend on the batch size.
#   MulticlassAUROC's mean counts a class without images as 0 (with a warning), MulticlassAveragePrecision's leaves it
#   out.
# Expected: the same figure for all batch sizes, as of metrics that sum over images; one rule for a missing class.
# Why it matters: an evaluation with batch size 1, or the last batch of an epoch, is scored on two scales; the model
#   looks worse than it is. A split without one of its classes loses a third of the AUROC of three.
# Instead: apply the sigmoid or softmax before `update()`
# Last lines of a run on 2026-11-29 (2000 logits of the standard deviation 0.8):
#   torchmetrics 1.9.0, batches of 2000: accuracy 0.746, AUROC 0.834; of 2: 0.725, 0.787; of 1: 0.696, 0.741
#   scikit-learn 1.9.1: 0.746, 0.834
#   three classes, none of the last: AUROC [0.809, 0.811, 0.0], mean 0.54; precision [0.819, 0.782, nan], mean 0.801
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq torchmetrics==1.9.0 torch==2.14.1 scikit-learn==1.9.1 numpy==2.4.6
OMP_NUM_THREADS=1 venv/bin/python - 2> errors.txt <<'PYTHON' || { cat errors.txt; exit 1; }
import sklearn
import torch
import torchmetrics
from sklearn.metrics import accuracy_score, roc_auc_score
from torchmetrics.classification import BinaryAccuracy, BinaryAUROC, MulticlassAUROC, MulticlassAveragePrecision

generator = torch.Generator().manual_seed(0)
logits = 0.8 * torch.randn(2000, generator=generator)
labels = (torch.rand(2000, generator=generator) < torch.sigmoid(2 * logits)).long()


def figures(batch_size):
    metrics = BinaryAccuracy(), BinaryAUROC()
    for batch in zip(logits.split(batch_size), labels.split(batch_size), strict=True):
        for metric in metrics:
            metric.update(*batch)
    return [round(float(metric.compute()), 3) for metric in metrics]


whole, pairs, single = figures(2000), figures(2), figures(1)
true = [round(accuracy_score(labels, logits > 0), 3), round(roc_auc_score(labels, logits), 3)]
print(
    f"torchmetrics {torchmetrics.__version__}, batches of 2000: accuracy {whole[0]}, AUROC {whole[1]}; "
    f"of 2: {pairs[0]}, {pairs[1]}; of 1: {single[0]}, {single[1]}\n"
    f"scikit-learn {sklearn.__version__}: {true[0]}, {true[1]}"
)
scores = torch.randn(500, 3, generator=generator)
targets = torch.randint(0, 2, (500,), generator=generator)
scores[torch.arange(500), targets] += 1
per_class, mean = [], []
for metric in (MulticlassAUROC, MulticlassAveragePrecision):
    per_class.append([round(value, 3) for value in metric(3, average=None)(scores, targets).tolist()])
    mean.append(round(float(metric(3)(scores, targets)), 3))
print(
    f"three classes, none of the last: AUROC {per_class[0]}, mean {mean[0]}; precision {per_class[1]}, mean {mean[1]}"
)
assert whole == true and whole[0] > pairs[0] > single[0] and whole[1] - single[1] > 0.05
assert per_class[0][2] == 0 and abs(mean[0] - sum(per_class[0]) / 3) < 0.001
assert per_class[1][2] != per_class[1][2] and abs(mean[1] - sum(per_class[1][:2]) / 2) < 0.001
PYTHON
