"""Average precision of several labels per image: scikit-learn, a case by hand, several ranks, files."""

import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.metrics import average_precision_score
from test_evaluation_files import files_for
from torch import nn

from datasets.batch import PADDING
from engine.evaluation.results import SampleResults, average_precisions, score_classes
from utils.tables import read_rows

N, C = 200, 6


def results_for(targets: torch.Tensor, logits: torch.Tensor) -> SampleResults:
    return SampleResults(**{name: value.numpy() for name, value in score_classes(logits, targets, top_k=2).items()})


def random_case(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Multi-hot targets int8 (N, C), of which the last class has no positive, and logits."""
    generator = torch.Generator().manual_seed(seed)
    targets = (torch.rand((N, C), generator=generator) < torch.linspace(0.5, 0.05, C)).to(torch.int8)
    targets[:, -1] = 0
    return targets, targets + 2 * torch.randn((N, C), generator=generator)


def test_the_mean_over_the_classes_with_positives_is_that_of_scikit_learn():
    targets, logits = random_case()
    metrics = results_for(targets, logits).metrics()
    expected = average_precision_score(targets[:, :-1].numpy(), logits[:, :-1].numpy(), average="macro")
    assert metrics.values["mean_ap"] == metrics.score == pytest.approx(100 * expected)
    assert metrics.loss == pytest.approx(F.binary_cross_entropy_with_logits(logits, targets.float()).item(), rel=1e-6)
    assert metrics.values.keys() == {"loss", "mean_ap"} and metrics.samples == N
    assert results_for(torch.zeros_like(targets), logits).mean_average_precision == 0


@pytest.mark.parametrize("seed", range(4))
def test_equal_scores_are_selected_together_as_in_scikit_learn(seed):
    """Scores that are whole numbers, the lowest and the highest ones of float32 among them; bit for bit."""
    targets, logits = (values.numpy() for values in random_case(seed))
    scores = np.round(logits)
    scores[::9], scores[1::9] = np.finfo(np.float32).min, np.finfo(np.float32).max
    found = average_precisions(targets, scores)
    expected = [100 * average_precision_score(targets[:, label], scores[:, label]) for label in range(C - 1)]
    assert found[:-1].tolist() == expected and np.isnan(found[-1])


def test_unreadable_images_do_not_count():
    targets, logits = random_case()
    padded = targets.clone()
    padded[::7] = PADDING
    kept = torch.arange(N) % 7 != 0
    given, expected = results_for(padded, logits).metrics(), results_for(targets[kept], logits[kept]).metrics()
    assert given == expected and given.samples == int(kept.sum())


def test_a_score_that_is_not_a_number_is_the_lowest():
    targets, scores = np.array([[1], [0], [0]], dtype=np.int8), np.array([[np.nan], [1], [-5]], dtype=np.float32)
    assert average_precisions(targets, scores).tolist() == pytest.approx([100 / 3])


def test_images_without_labels_are_only_ranked():
    """A prediction of unlabelled images by a model of several labels: probabilities are independent of each other."""
    fields = score_classes(torch.tensor([[2.0, 1.0, -1.0]]), torch.zeros(1, dtype=torch.int64), top_k=2)
    assert fields["labels"].tolist() == [[0, 1]]
    assert fields["probabilities"][0].tolist() == pytest.approx([0.880797, 0.731059], rel=1e-5)


def test_the_files_have_average_precisions_and_the_highest_losses(tmp_path, cpu):
    targets, logits = random_case()
    results, names = results_for(targets, logits), ["=sum", "dog", "cat", "emu", "yak", "unseen"]
    summary = files_for(tmp_path / "e", names, [f"{index}.jpg" for index in range(N)], cpu).write(
        results.metrics(), results, nn.Identity(), epoch=3
    )
    assert summary == json.loads((tmp_path / "e" / "summary.json").read_text())
    assert summary["mean_ap"] == results.metrics().score and not {"top1", "f1", "ece"} & summary.keys()
    rows = read_rows(tmp_path / "e" / "per_class.csv")
    assert [row["class"] for row in rows] == ["'=sum", *names[1:]]
    assert [int(row["count"]) for row in rows] == targets.sum(0).tolist()
    assert [row["ap"] for row in rows] == [*(f"{ap:.4f}" for ap in results.average_precisions[:-1]), ""]
    worst = read_rows(tmp_path / "e" / "mistakes.csv")[0]
    index = int(results.losses.argmax())
    assert (int(worst["index"]), worst["kind"]) == (index, "highest_loss")
    assert set(worst["true"].split(" | ")) == {rows[label]["class"] for label in np.flatnonzero(targets[index])} or {""}
    assert not (tmp_path / "e" / "confusion.csv").exists() and not (tmp_path / "e" / "calibration.csv").exists()
