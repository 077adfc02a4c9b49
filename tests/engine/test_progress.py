"""Loss, accuracy and gradient norm from sums and counts; the table of metrics: which evaluation is the best."""

import math

import timm
import torch
from conftest import cells_of
from pytest import approx, mark
from torch import nn

from engine.progress import BatchSums, MetricSums, to_metrics
from utils.metric_table import METRICS


def test_metric_sums_count_each_sample_once(cpu):
    torch.manual_seed(0)
    logits = torch.randn(23, 7)
    targets = torch.randint(0, 7, (23,))
    sums = MetricSums(cpu.device)
    for start in range(0, 24, 6):
        batch = logits[start : start + 6]
        labels = targets[start : start + 6]
        padding = 6 - len(batch)
        batch = torch.cat([batch, torch.zeros(padding, 7)])
        labels = torch.cat([labels, torch.full((padding,), -1)])
        loss = nn.functional.cross_entropy(batch, labels, reduction="sum", ignore_index=-1)
        step = BatchSums.of(loss, batch, labels, 6 - padding)
        sums.add_step(step, torch.tensor(1.0), torch.tensor(False))
    metrics = to_metrics(sums.reduced(cpu))
    top1, top5 = timm.utils.accuracy(logits, targets, topk=(1, 5))
    assert (metrics.values["top1"], metrics.values["top5"]) == (approx(top1.item()), approx(top5.item()))
    assert metrics.loss == approx(nn.functional.cross_entropy(logits, targets).item(), abs=1e-6)
    assert metrics.samples == 23


def test_an_image_with_several_labels_is_hit_once_by_its_most_probable_one(cpu):
    """Top-1: images 0 and 3, and 4, which has no label and only negative logits; top-5: image 1 too.

    Image 2 has no label but positive logits, the last row is padding.
    """
    down = [6, 5, 4, 3, 2, 1]
    up = [1, 2, 3, 4, 5, 6]
    logits = torch.tensor([down, up, up, down, [-1.0] * 6, [-1.0] * 6])
    targets = torch.tensor([[1, 1, 0, 0, 0, 0], [0, 1, 1, 0, 0, 0], [0] * 6, [1, 0, 0, 0, 0, 1], [0] * 6, [-1] * 6])
    sums = MetricSums(cpu.device)
    sums.add_step(BatchSums.of(torch.tensor(0.0), logits, targets, 5), torch.tensor(1.0), torch.tensor(False))
    metrics = to_metrics(sums.reduced(cpu))
    assert (metrics.values["top1"], metrics.values["top5"]) == (60, 80)


def test_a_figure_that_an_earlier_version_did_not_record_is_the_lowest():
    recall = METRICS["min_recall"]
    assert recall.rank({"min_recall": None, "loss": 0.1}) < recall.rank({"min_recall": 0, "loss": 1.0})


# Metric; its value and the loss of the better evaluation, and of the worse one
RANKED = """
top1 | 51 9.0 | 50 0.1
top1 | 50 0.9 | 50 1.0  # a tie: the loss
top1 | 50 1.0 | 50 nan
min_recall | 0 nan | nan 0.1
loss | 0.9 0.9 | 1.0 1.0
loss | 9.0 9.0 | inf inf
"""


@mark.parametrize("name, better, worse", cells_of(RANKED))
def test_the_better_evaluation_has_the_higher_rank(name, better, worse):
    ranks = []
    for values in (better, worse):
        value, loss = map(float, values.split())
        ranks.append(METRICS[name].rank({name: value, "loss": loss}))
    assert ranks[0] > ranks[1]
    assert METRICS[name].rank({"loss": math.nan}) == METRICS[name].rank({}) <= ranks[1]
