"""The table of metrics: which evaluation is the best."""

import math
from typing import get_args

import pytest

from utils.metric_table import METRICS, MetricName, best_metric, metrics_of

NAN = math.nan


def test_the_options_name_the_table():
    assert set(get_args(MetricName)) == METRICS.keys()
    assert best_metric(None, False).name == "top1" and best_metric(None, True).name == "mean_ap"
    assert best_metric("loss", True).name == "loss" and [one.name for one in metrics_of(True)] == ["loss", "mean_ap"]


@pytest.mark.parametrize(
    ("name", "better", "worse"),
    [
        ("top1", (51, 9.0), (50, 0.1)),
        ("top1", (50, 0.9), (50, 1.0)),  # a tie: the loss
        ("top1", (50, 1.0), (50, NAN)),
        ("min_recall", (0, NAN), (NAN, 0.1)),
        ("min_recall", (0, 1.0), (None, 0.1)),  # of an earlier version
        ("loss", (0.9, 0.9), (1.0, 1.0)),
        ("loss", (9.0, 9.0), (math.inf, math.inf)),
    ],
)
def test_the_better_evaluation_has_the_higher_rank(name, better, worse):
    high, low = (METRICS[name].rank({name: value, "loss": loss}) for value, loss in (better, worse))
    assert high > low and METRICS[name].rank({"loss": NAN}) == METRICS[name].rank({}) <= low
