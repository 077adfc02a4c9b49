"""Figures of labels that are unknown of some samples: scikit-learn's and torch's over the known cells alone."""

from dataclasses import replace

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from conftest import seeded
from numpy.random import default_rng
from pytest import approx, fixture, mark
from scipy.special import expit
from sklearn.metrics import average_precision_score, confusion_matrix, f1_score, recall_score, roc_auc_score
from test_results import results_for

from configs.schema.operating_point import OperatingPoint
from datasets.batch import PADDING
from datasets.sources.samples import UNKNOWN
from engine.evaluation.intervals import confidence_interval, figures_at
from engine.evaluation.results import SampleResults, mean_by_group, results_of_scores
from engine.evaluation.tables import ResultTables, read_scores
from utils.files import read_json
from utils.metric_table import METRICS
from utils.tables import read_csv_rows

N = 300
C = 4
NAMES = ["ant", "bee", "cat", "dog"]


@fixture(params=[1, 5], ids=["ties", "no ties"])
def unknown(request) -> SampleResults:
    """A third of the cells is unknown: of the last label all, of ten samples all; three samples are unreadable."""
    generator = seeded(0)
    targets = (torch.rand((N, C), generator=generator) < 0.3).to(torch.int8)
    logits = (targets + torch.randn((N, C), generator=generator)).round(decimals=request.param)
    targets[torch.rand((N, C), generator=generator) < 0.33] = UNKNOWN
    targets[:, 3] = UNKNOWN
    targets[20:30] = UNKNOWN
    targets[40:43] = PADDING
    return results_for(targets, logits)


def cells_of(results: SampleResults, label: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of the known cells of a label: 0 or 1, scores, and whether the label is predicted."""
    is_known = results.targets[:, label] >= 0
    scores = results.scores[is_known, label]
    return results.targets[is_known, label], scores, scores >= results.used_thresholds[label]


def test_figures_are_those_of_the_known_cells(unknown):
    found = unknown.per_class
    cells = [cells_of(unknown, label) for label in range(3)]
    precision = [100 * average_precision_score(true, scores) for true, scores, _ in cells]
    f1 = [100 * f1_score(true, predicted) for true, _, predicted in cells]
    assert unknown.ranking.average_precision[:3] == approx(precision)
    assert unknown.ranking.auroc[:3] == approx([100 * roc_auc_score(*cell[:2]) for cell in cells])
    assert found.f1[:3] == approx(f1)
    assert found.specificity[:3] == approx([100 * recall_score(1 - t, 1 - p) for t, _, p in cells])
    assert np.isnan([unknown.ranking.auroc[3], found.f1[3], found.specificity[3]]).all()
    assert unknown.value(METRICS["mean_ap"]) == approx(np.mean(precision))
    assert found.macro("f1") == approx(np.mean(f1))
    true, predicted = (np.concatenate(parts) for parts in list(zip(*cells, strict=True))[::2])
    assert unknown.value(METRICS["micro_f1"]) == approx(100 * f1_score(true, predicted))
    is_known = unknown.targets >= 0
    true, predicted = (np.where(is_known, cells > 0, False) for cells in (unknown.targets, unknown.predicted))
    rows = is_known.any(1)
    of_images = f1_score(true[rows], predicted[rows], average="samples", zero_division=0)
    assert unknown.value(METRICS["sample_f1"]) == approx(100 * of_images)
    logits = torch.from_numpy(unknown.scores[is_known])
    loss = F.binary_cross_entropy_with_logits(logits, torch.from_numpy(unknown.targets[is_known]).float())
    assert unknown.value(METRICS["loss"]) == approx(loss.item())
    values = unknown.metrics().values
    assert values["mean_ap"] == approx(np.mean(precision))
    assert all(np.isfinite(value) for value in values.values())


@mark.parametrize("rule", [None, "any"])
def test_each_label_of_a_group_is_decided_alone(rule):
    """By the images of which it is known, if they agree, and of the class of a point with `any` by each.

    The thresholds of F1 are of the images, as in an evaluation of the weights.
    """
    rng = default_rng(0)
    patients = rng.integers(0, 40, 120).astype(str)
    targets = rng.choice(np.array([0, 0, 1, UNKNOWN], np.int8), (120, 3))
    scores = rng.normal(size=(120, 3)).astype(np.float32)
    point = OperatingPoint(name="bee", label=1, specificity=0.5, groups=rule)
    results = replace(results_of_scores(targets, scores), groups=patients, point=point)
    grouped = mean_by_group(replace(results, point=results.used_point))
    known = pd.DataFrame(np.where(targets == UNKNOWN, np.nan, targets)).groupby(patients)
    expected = known.max().where(known.nunique() == 1)
    if rule:
        expected[1] = known.max()[1]
    means = pd.DataFrame(expit(scores.astype(np.float64))).groupby(patients).mean()
    assert confidence_interval(results, METRICS["mean_ap"])[0]
    assert grouped.errors == {}
    assert grouped.targets.tolist() == expected.fillna(UNKNOWN).values.tolist()
    assert not expected[0].isna().equals(expected[1].isna())
    for label in range(3):
        true = expected[label].dropna()
        shares = means[label][true.index]
        assert grouped.ranking.auroc[label] == approx(100 * roc_auc_score(true, shares))
        of_images = expit(results.used_thresholds[label])
        assert grouped.per_class.f1[label] == approx(100 * f1_score(true, shares >= of_images))
        if label == 1:
            found = figures_at(grouped, grouped.point)["confusion"]
            assert found == confusion_matrix(true, shares >= expit(grouped.point.threshold)).tolist()


@mark.filterwarnings("error")
@mark.parametrize("others", [[], [[0, 0]]])
def test_a_figure_of_groups_without_a_label_is_undefined(others, tmp_path):
    """Of two groups whose images differ on all labels, and of a third one without labels."""
    targets = torch.tensor([[1, 0], [0, 1], [0, 1], [1, 0], *others], dtype=torch.int8)
    logits = torch.arange(2.0 * len(targets)).reshape(-1, 2) - 4
    point = OperatingPoint(name="bee", label=1, specificity=0.5)
    results = replace(results_for(targets, logits), groups=np.array([*"aabbc"])[: len(targets)], point=point)
    for metric in ("mean_ap", "sample_f1"):
        ResultTables(tmp_path, NAMES[:2], str).write(results.metrics(metric), results, {})
        groups = read_json(tmp_path / "groups/summary.json")
        assert (groups["samples"], groups["unreadable"], groups["interval"]) == (2 + len(others), 0, None)
        undefined = ["mean_ap", "auroc", "macro_f1"] + ["micro_f1", "sample_f1", "loss"] * (not others)
        assert [groups[name] for name in undefined] == [None] * len(undefined)
        of_point = groups["operating_point"]
        assert {of_point[name] for name in ("threshold", "sensitivity", "specificity", "confusion")} == {None}


def test_tables_and_scores(unknown, tmp_path):
    """`scores.npz` has the unknown cells, and gives the same figures again."""
    tables = ResultTables(tmp_path, NAMES, str)
    summary = tables.write(unknown.metrics(), unknown, {})
    assert 0 < summary["ece"] < 100
    rows = read_csv_rows(tmp_path / "per_class.csv")
    assert [int(row["known"]) for row in rows] == (unknown.targets >= 0).sum(0).tolist()
    assert rows[3]["auroc"] == rows[3]["ece"] == ""
    bins = [row for row in read_csv_rows(tmp_path / "calibration.csv") if row["class"] == "ant"]
    assert sum(int(row["count"]) for row in bins) == (unknown.targets[:, 0] >= 0).sum()
    again, _, _ = read_scores(tmp_path / "scores.npz")
    assert np.array_equal(again.targets, unknown.targets[unknown.readable])
    assert again.metrics().values == approx(unknown.metrics().values)
