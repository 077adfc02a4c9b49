"""Figures of an evaluation against scikit-learn, a published definition, and cases worked out by hand."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from conftest import each_value, seeded
from numpy.random import default_rng
from pytest import approx, mark
from scipy.special import expit
from sklearn.calibration import calibration_curve
from sklearn.metrics import (
    accuracy_score,
    balanced_accuracy_score,
    cohen_kappa_score,
    f1_score,
    precision_recall_curve,
    precision_recall_fscore_support,
    recall_score,
    roc_auc_score,
    top_k_accuracy_score,
)
from test_evaluation_files import files_for
from timm.task import MultiLabelClassificationEvaluator
from torch import Tensor

from configs.schema.operating_point import Goal
from datasets.batch import PADDING
from datasets.sources.samples import UNKNOWN
from engine.checkpoint.weights_record import Decision, check_description, decision_to_entries, read_decision
from engine.evaluation.evaluate import _rank_classes
from engine.evaluation.ranking import figure_at, log_odds, rank_labels, rank_samples
from engine.evaluation.results import (
    SampleResults,
    class_figures,
    coverage,
    join_results,
    mean_by_group,
    results_of_scores,
    score_classes,
    worst_mistakes,
)
from engine.evaluation.tables import read_scores
from utils.files import read_json
from utils.tables import read_csv_rows


def stored_decision(results: SampleResults) -> Decision:
    """The thresholds or the operating point of an evaluation, as a file has them."""
    content = json.loads(json.dumps(decision_to_entries(results.metrics().decision)))
    check_description(content)
    return read_decision(content)


def floats(rows: list[dict[str, str]], column: str) -> list[float]:
    return [float(row[column]) for row in rows]


def results_of(logits: Tensor, targets: Tensor, unreadable: tuple[int, ...] = ()) -> SampleResults:
    given = targets.clone()
    given[list(unreadable)] = PADDING
    results = results_of_scores(given.numpy(), log_odds(logits).numpy())
    return replace(results, errors=dict.fromkeys(unreadable, "truncated"))


def exact_odds(logits: Tensor) -> np.ndarray:
    """log(p / (1 - p)) of each class, from float64."""
    of_others = (np.delete(logits.double().numpy(), label, 1) for label in range(logits.shape[1]))
    others = np.stack([np.logaddexp.reduce(one, axis=1) for one in of_others], axis=1)
    return (logits.double().numpy() - others).astype(np.float32)


@mark.filterwarnings("ignore:y_pred contains classes not in y_true")  # of balanced_accuracy_score
@mark.parametrize("classes", [2, 7])
@each_value("scale | decimals\n1 | 0\n1 | 3\n40 | 3")
def test_figures_of_the_readable_samples_are_those_of_scikit_learn(classes, scale, decimals):
    """With ties, a class without samples, one that is never predicted, and probabilities of 1 in float32."""
    generator = seeded(classes)
    logits = (scale * torch.randn(300, classes, generator=generator)).round(decimals=decimals)
    targets = torch.randint(0, classes, (300,), generator=generator)
    if classes > 2:
        targets[targets == 1] = 0  # grades 0 and 2 are no neighbours
        if decimals:
            logits[:, classes - 2] -= 9 * scale  # never predicted
    results = results_of(logits, targets, unreadable=(0, 1))
    figures = class_figures(results, classes)
    predicted = torch.from_numpy(results.labels[2:, 0])
    labels = np.arange(classes)
    scores = exact_odds(logits)[2:]
    targets = targets[2:]
    present = np.unique(targets)
    areas = [100 * roc_auc_score(targets == label, scores[:, label]) for label in present]
    assert results.ranking.auroc[present] == approx(areas, rel=1e-12)
    assert np.isnan(np.delete(results.ranking.auroc, present)).all()
    specificities = 100 * np.array([recall_score(targets != label, predicted != label) for label in labels])
    assert figures.specificity == approx(specificities, rel=1e-12)
    expected = precision_recall_fscore_support(targets, predicted, labels=labels, zero_division=0)
    assert figures.count.tolist() == expected[3].tolist()
    assert figures.predicted.tolist() == np.bincount(predicted, minlength=classes).tolist()
    for values, theirs in zip((figures.precision, figures.recall, figures.f1), expected, strict=False):
        assert np.nan_to_num(values) == approx(100 * theirs)
    for values in (figures.recall, figures.f1, figures.top5):
        assert (np.isnan(values) == (figures.count == 0)).all()
    assert (np.isnan(figures.precision) == (figures.predicted == 0)).all()
    precision, recall, f1, _ = (values[present] for values in expected)
    of_all = {
        "auroc": np.mean(areas) / 100,
        "specificity": np.mean(specificities[present]) / 100,
        "top1": accuracy_score(targets, predicted),
        "precision": precision.mean(),
        "macro_f1": f1.mean(),
        "balanced_accuracy": balanced_accuracy_score(targets, predicted),
        "min_recall": recall.min(),
    }
    if decimals and classes > 5:  # of equal scores, scikit-learn takes the highest label
        of_all["top5"] = top_k_accuracy_score(targets, scores, k=5, labels=labels)
    for weights in ("linear", "quadratic"):
        of_all[f"{weights}_kappa"] = cohen_kappa_score(targets, predicted, labels=labels, weights=weights)
    metrics = results.metrics()
    assert metrics.samples == 298
    assert metrics.loss == approx(F.cross_entropy(logits[2:], targets).item())
    assert {name: metrics.values[name] / 100 for name in of_all} == approx(of_all, rel=1e-9, abs=1e-9)


def test_kappa_of_one_predicted_class_is_exactly_0():
    for samples in range(7, 120, 8):
        targets = torch.arange(samples) % 3
        values = results_of(torch.tensor([[0.0, 2.0, 1.0]]).repeat(samples, 1), targets).metrics().values
        assert values["linear_kappa"] == values["quadratic_kappa"] == 0


@mark.filterwarnings("error::RuntimeWarning")
def test_a_figure_that_is_not_defined_is_null_and_never_the_best(tmp_path, cpu):
    """Images of one class, which is predicted for all: no other class to rank against, no disagreement by chance."""
    results = results_of(torch.tensor([[9.0, 0.0]] * 4), torch.zeros(4, dtype=torch.int64))
    metrics = results.metrics("auroc")
    undefined = {"auroc", "specificity", "quadratic_kappa", "linear_kappa"}
    found = {name for name, value in metrics.values.items() if np.isnan(value)}
    assert undefined <= found != metrics.values.keys()
    assert metrics.metric.rank(metrics.values)[0] == -np.inf
    assert metrics.metric.text(metrics.score) == "undefined"
    files_for(tmp_path, ["cat", "dog"], list("abcd"), cpu).write(metrics, results, None)
    summary = read_json(tmp_path / "summary.json")
    assert {name for name in metrics.values if summary[name] is None} == found
    assert (summary["interval"], bool(summary["interval_missing"])) == (None, True)
    cat, dog = read_csv_rows(tmp_path / "per_class.csv")
    assert (cat["specificity"], cat["auroc"], dog["specificity"], dog["auroc"]) == ("", "", "100.0000", "")


def test_the_calibration_of_each_label_is_that_of_scikit_learn(tmp_path, cpu):
    """The bins of a label with samples, and its ECE; the means of the last class, without a positive, are defined."""
    targets, logits = random_case()
    targets[3] = PADDING
    results = results_for(targets, logits)
    names = [f"class {label}" for label in range(C)]
    files = files_for(tmp_path, names, IMAGES, cpu)
    summary = files.write(results.metrics(), results, None)
    true = np.delete(targets.numpy(), 3, 0)
    probabilities = np.delete(logits.sigmoid().double().numpy(), 3, 0)
    rows = read_csv_rows(tmp_path / "calibration.csv")
    errors = []
    columns = [("", true.ravel(), probabilities.ravel())]
    columns += [(name, true[:, label], probabilities[:, label]) for label, name in enumerate(names)]
    for name, is_true, of_label in columns:
        bins = [row for row in rows if row["class"] == name]
        shares, means = calibration_curve(is_true, of_label, n_bins=15)
        counts = np.histogram(of_label, 15, (0, 1))[0]
        assert [int(row["count"]) for row in bins] == counts.tolist()
        filled = [row for row in bins if row["count"] != "0"]
        assert floats(filled, "accuracy") == approx(100 * shares, abs=1e-4)
        assert floats(filled, "confidence") == approx(100 * means, abs=1e-4)
        errors.append(100 * (counts[counts > 0] * np.abs(shares - means)).sum() / len(is_true))
    classes = read_csv_rows(tmp_path / "per_class.csv")
    assert floats(classes, "ece") == approx(errors[1:], abs=1e-4)
    assert floats(classes, "probability") == approx(100 * probabilities.mean(0), abs=1e-4)
    assert summary["ece"] == approx(np.mean(errors[1:]), rel=1e-5)
    assert len(files.values["calibration"]) == 15  # the page has those of all labels


def test_accuracy_by_coverage_of_a_closed_form():
    """Of 1000 samples the 500 most confident ones are right: the accuracy is 100%, then 500 of the covered ones."""
    confidences = default_rng(0).permutation(np.linspace(0.1, 1, 1000, dtype=np.float32))
    targets = np.where(confidences > np.median(confidences), 0, 1)
    results = SampleResults(targets, np.zeros((1000, 1), np.int32), confidences[:, None], confidences)
    threshold, covered, accuracy = coverage(results).T
    assert len(covered) == 100
    assert covered[-1] == 100
    assert (np.diff(covered) > 0).all()
    assert covered == approx([100 * (confidences >= np.float32(t / 100) - 1e-6).mean() for t in threshold])
    assert accuracy == approx(np.minimum(100, 5000 / covered))
    equal = replace(results, probabilities=np.full((1000, 1), 0.25, np.float32))
    assert coverage(equal).tolist() == [[25, 100, 50]]


def test_worst_mistakes_come_worst_first_and_without_unreadable_images():
    targets, logits = random_case()
    results = results_of(logits, torch.arange(N) % C, (3, 50, 199))
    confident = worst_mistakes(results)
    assert len(confident) == 16
    assert not {3, 50, 199} & {*confident}
    wrong = results.readable[~results.hits(1)[results.readable]]
    assert results.probabilities[confident, 0].tolist() == sorted(results.probabilities[wrong, 0], reverse=True)[:16]
    several = results_for(targets, logits)
    assert several.losses[worst_mistakes(several)].tolist() == sorted(several.losses, reverse=True)[:16]


N = 200
C = 6
IMAGES = [f"{index}.jpg" for index in range(N)]


def results_for(targets: Tensor, logits: Tensor) -> SampleResults:
    return results_of_scores(targets.numpy(), logits.numpy())


def random_case(seed: int = 0) -> tuple[Tensor, Tensor]:
    """Multi-hot targets int8 (N, C), of which the last class has no positive, and logits."""
    generator = seeded(seed)
    targets = (torch.rand((N, C), generator=generator) < torch.linspace(0.5, 0.05, C)).to(torch.int8)
    targets[:, -1] = 0
    return targets, targets + 2 * torch.randn((N, C), generator=generator)


def highest_f1(targets: Tensor, scores: Tensor) -> float:
    """Of scikit-learn's curve, in percent."""
    precision, recall, _ = precision_recall_curve(targets, scores)
    return 100 * np.max(2 * precision * recall / np.maximum(precision + recall, 1e-9))


@mark.parametrize("seed", range(2))
@mark.parametrize("ties", [False, True])
def test_f1_of_several_labels_is_that_of_scikit_learn_and_timm(seed, ties):
    """At logit 0, and at the thresholds of the highest F1: no other one is better, also when they are given."""
    targets, logits = random_case(seed)
    logits = logits.round() if ties else logits
    targets[:9] = 0  # samples without labels
    given = replace(results_for(targets, logits), thresholds=np.zeros(C))
    evaluator = MultiLabelClassificationEvaluator(torch.device("cpu"))
    evaluator.update(logits, targets)
    theirs = evaluator.compute()
    found = given.metrics().values
    for kind, name in (("micro", "micro_f1"), ("samples", "sample_f1")):
        expected = f1_score(targets, logits >= 0, average=kind, zero_division=0)
        assert found[name] == approx(100 * expected) == approx(theirs[name])
    best = results_for(targets, logits)
    precision, recall, f1, _ = precision_recall_fscore_support(targets, best.predicted, zero_division=0)
    figures = best.per_class
    for name, expected in (("precision", precision), ("recall", recall), ("f1", f1)):
        assert getattr(figures, name)[:-1] == approx(100 * expected[:-1])
        assert best.metrics().values[name.replace("f1", "macro_f1")] == approx(100 * expected[:-1].mean())
    assert np.isnan(figures.f1[-1])
    for label in range(C - 1):
        assert figures.f1[label] == approx(highest_f1(targets[:, label], logits[:, label]))
    assert best.used_thresholds[-1] == 0  # without a positive sample
    again = replace(best, thresholds=np.array(best.metrics().decision.thresholds))
    assert (again.predicted == best.predicted).all()
    assert again.metrics() == best.metrics()


EXACT = """
logits | positive
[-20, 9, 8] | [1, 1, 1]  # all have the label
[0.3, 0.3, 0.3, 0.3] | [1, 0, 1, 0]
[20, 22, -3, 30, 35] | [0, 0, 0, 1, 1]  # sigmoids of 1 in float32
[-120, -130, -140, -110] | [0, 0, 0, 1]  # and of 0
[0.5, 0.50000006] | [0, 1]  # no float32 is between them
[-3.4028234663852886e+38, 3] | [1, 1]
"""


@each_value(EXACT)
def test_exactly_the_images_from_the_best_score_on_are_predicted(logits, positive):
    """The F1 is the highest one of scikit-learn's curve, also with the thresholds of a file."""
    targets = torch.tensor(positive, dtype=torch.int8)[:, None]
    scores = torch.tensor(logits)[:, None].float()
    results = results_for(targets, scores)
    assert results.metrics().values["macro_f1"] == approx(highest_f1(targets, scores[:, 0]))
    again = replace(results, thresholds=np.array(stored_decision(results).thresholds))
    assert (again.predicted == results.predicted).all()


def test_thresholds_of_an_older_file_are_probabilities():
    """0.5 and 1: reached by logits of 0 and from about 17.3 on, whose sigmoid is 1 in float32; 1e-300: by all."""
    logits = read_decision({"thresholds": [0.5, 1.0, 1e-300, 0.9]}).thresholds
    assert logits == approx([0, 17.3287, -690.7755, np.log(9)], rel=1e-5)
    assert read_decision({"thresholds": None}).thresholds is None


@mark.parametrize("seed", range(2))
@mark.parametrize("decimals", [0, 3])
def test_operating_points_are_those_of_goals(seed, decimals, tmp_path, cpu):
    """Of several labels and of two classes, with ties; NaN without samples of the class or others."""
    targets, logits = random_case(seed)
    logits = logits.round(decimals=decimals)
    two = results_of(logits[:, :2], targets[:, 0].long())
    several = results_for(targets, logits)
    cases = [(several, label) for label in range(C - 1)] + [(two, 0), (two, 1)]
    goals = [{name: share} for name in ("specificity", "sensitivity") for share in (0.9, 0.95)]
    for results, label in cases:
        of_class = results.of_class(label)
        expected = [figure_at(Goal(name="", **goal), *of_class) for goal in goals]
        assert results.ranking.operating[:, label] == approx(expected)
    assert np.isnan(several.ranking.operating[:, -1]).all()
    files_for(tmp_path, ["no", "yes"], IMAGES, cpu).write(two.metrics(), two, None)
    row = read_csv_rows(tmp_path / "per_class.csv")[1]
    points = [float(value) for name, value in row.items() if "_at_" in name]
    assert points == approx(two.ranking.operating[:, 1], abs=1e-4)


def test_a_score_that_is_not_a_number_is_the_lowest():
    targets = np.array([[1], [0], [0]], dtype=np.int8)
    scores = np.array([[np.nan], [1], [-5]], dtype=np.float32)
    assert rank_samples(targets, scores, np.arange(len(targets))).average_precision.tolist() == approx([100 / 3])


@mark.parametrize("classes", [2, 4])
@mark.parametrize("multi_label", [False, True])
def test_groups_and_folds_have_the_figures_of_pandas_and_scikit_learn(classes, multi_label, tmp_path, cpu):
    """Read again from the files of two folds; a group with different labels does not count for them."""
    rng = default_rng(classes)
    patients = rng.integers(0, 40, 300)
    labels = np.where(np.arange(300) == 7, classes - 1 - patients % classes, patients % classes)  # one is wrong
    logits = torch.from_numpy(rng.normal(size=(300, classes)) + 3 * np.eye(classes)[labels]).float()
    logits[patients == 5] *= 300  # whose probabilities are 0 and 1
    targets = torch.from_numpy(np.eye(classes, dtype=np.int8)[labels] if multi_label else labels)
    results = results_for(targets, logits) if multi_label else results_of(logits, targets)
    groups = np.array([f"P{patient:02d}" for patient in patients])
    class_names = list("abcd")[:classes]
    parts = []
    for fold in range(2):
        part = replace(results, groups=groups).take(np.flatnonzero(patients // 20 == fold))
        images = [f"{fold}/{one}" for one in range(len(part.targets))]
        files_for(tmp_path / str(fold), class_names, images, cpu).write(part.metrics(), part, None)
        found, names, of_classes = read_scores(tmp_path / f"{fold}/scores.npz")
        assert (names[3], of_classes) == (f"{fold}/3", class_names)
        assert found.metrics().values == approx(part.metrics().values, rel=1e-5)
        parts.append(found)
    probabilities = logits.sigmoid() if multi_label else logits.double().softmax(1)
    table = pd.DataFrame(probabilities.double().numpy()).groupby(groups).mean()
    of_group = pd.DataFrame(np.eye(classes)[labels]).groupby(groups)
    agrees = of_group.nunique().to_numpy() == 1
    kept = agrees.all(1)
    assert np.count_nonzero(~kept) == 1
    true = of_group.first().to_numpy()
    expected = np.where(agrees, true, UNKNOWN) if multi_label else np.where(kept, true.argmax(1), PADDING)
    grouped = mean_by_group(join_results(parts))
    assert [*grouped.errors] == ([] if multi_label else np.flatnonzero(~kept).tolist())
    assert grouped.targets.tolist() == expected.tolist()
    assert expit(grouped.scores) == approx(table.to_numpy(), abs=1e-6)
    for label in range(classes):
        rows = np.isin(expected[:, label], [0, 1]) if multi_label else kept
        auroc = 100 * roc_auc_score(true[rows, label], table[label][rows])
        assert grouped.ranking.auroc[label] == approx(auroc, rel=1e-9)


@mark.parametrize("classes", [2, 3])
def test_the_mean_of_probabilities_of_0_is_0(classes):
    """Of outputs that are merged or masked, in all images of a group or in some; 0.5 without a readable image."""
    generator = seeded(classes)
    logits = torch.randn(12, classes, generator=generator)
    logits[:6, 0] = -torch.inf
    logits[6:8, 1] = -torch.inf
    results = results_of(logits, torch.ones(12, dtype=torch.int64), unreadable=(11,))
    groups = np.repeat([*"abcde"], [3, 3, 2, 3, 1])
    grouped = mean_by_group(replace(results, groups=groups))
    expected = pd.DataFrame(logits.double().softmax(1).numpy()[:11]).groupby(groups[:11]).mean().to_numpy()
    found = grouped.label_probabilities
    assert found[:4] == approx(expected, abs=1e-6)
    assert found[:4].sum(1) == approx(np.ones(4), abs=1e-6)
    assert (found[:2, 0] == 0).all()
    assert found[4].tolist() == [0.5] * classes
    assert grouped.errors == {4: "no image can be read"}
    assert grouped.labels[:4, 0].tolist() == expected.argmax(1).tolist()
    assert grouped.ranking.auroc.shape == (classes,)


@mark.parametrize("top_k", [1, 3, 5, 200])
def test_of_equal_logits_the_lowest_label_is_first_for_any_number(top_k):
    """Logits of bfloat16, among them -0, infinities and denormal numbers, in the order of a stable sort of numpy."""
    generator = seeded(0)
    logits = (4 * torch.randn(300, 200, generator=generator)).bfloat16().float()
    logits[0] = 0
    logits[1, ::2] = -0.0
    logits[1, 1::2] = 0
    logits[2, 7:] = -torch.inf
    logits[3, [9, 5]] = torch.inf
    logits[4] = torch.tensor([1e-45, -1e-45]).repeat(100)
    expected = np.argsort(-logits.numpy(), axis=1, kind="stable")[:, :top_k]
    assert (rank_labels(logits, top_k).numpy() == expected).all()
    targets = torch.zeros(300, dtype=torch.int64)
    both = _rank_classes(logits, targets, top_k), score_classes(logits, F.one_hot(targets, 200), top_k)
    for found in both:
        assert (found["labels"].numpy() == expected).all()
