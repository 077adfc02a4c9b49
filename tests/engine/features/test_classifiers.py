"""Classifiers on features beside scikit-learn's: linear ones, k-NN; suspect labels in the order of cleanlab."""

from itertools import product

import numpy as np
import torch
from conftest import assert_same_state, cells_of
from numpy.random import default_rng
from pytest import approx, fixture, importorskip, mark
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from torch import Tensor, nn
from torch.testing import assert_close

from configs.schema import Loss
from datasets.sources.samples import UNKNOWN
from engine.evaluation.suspects import Margins
from engine.features import classifiers
from engine.features.classifiers import (
    classes_of_one_fold,
    fit_linear,
    fit_probe,
    have_label,
    knn_top1,
    margins,
    out_of_fold_margins,
    standardize,
    stratified_folds,
)
from engine.training.loss import build_loss, read_class_weights

N = 400
F = 12
C = 5
PENALTIES = (1e-1, 1e-2, 1e-3, 1e-4)


@fixture
def data() -> tuple[Tensor, Tensor]:
    """Overlapping classes of different sizes, with features of very different scales."""
    rng = default_rng(0)
    targets = rng.choice(C, N, p=[0.4, 0.3, 0.15, 0.1, 0.05])
    features = rng.normal(size=(C, F))[targets] + 1.5 * rng.normal(size=(N, F))
    return torch.tensor(features * np.logspace(-2, 2, F) + 3, dtype=torch.float32), torch.tensor(targets)


@mark.parametrize("class_weight", [None, "balanced"])
@mark.parametrize("l2", [1e-1, 1e-3])
def test_loss_and_coefficients_of_scikit_learn(data, l2, class_weight):
    features, targets = data
    inputs = standardize(features)[0]
    options = Loss(CLASS_WEIGHTS=class_weight)
    weights = read_class_weights(options, targets.numpy(), C, torch.device("cpu"))
    fitted = fit_linear(inputs, targets, build_loss(options, 0.0, weights), l2, torch.zeros(C, F + 1)).double()
    reference = LogisticRegression(C=1 / (l2 * N), class_weight=class_weight, tol=1e-10, max_iter=10000)
    reference.fit(inputs[:, :-1].double().numpy(), targets.numpy())
    expected = torch.tensor(np.column_stack([reference.coef_, reference.intercept_]))

    def objective(parameters):
        losses = nn.functional.cross_entropy(inputs.double() @ parameters.T, targets, reduction="none")
        factors = weights.double()[targets] if weights is not None else 1
        return float((losses * factors).mean() + l2 / 2 * parameters[:, :-1].square().sum())

    assert objective(fitted) == approx(objective(expected), rel=1e-6)
    fitted[:, -1] -= fitted[:, -1].mean() - expected[:, -1].mean()  # a constant in all biases changes nothing
    assert_close(fitted, expected, atol=5e-3, rtol=1e-2)


def test_several_labels_are_independent_regressions(data):
    inputs = standardize(data[0])[0]
    features = inputs[:, :-1]
    targets = torch.tensor(default_rng(1).random((N, 3)) < 0.3 + 0.2 * (features[:, :3].numpy() > 0))
    loss = build_loss(Loss(NAME="bce"), 0.0)  # the mean over the three labels
    fitted = fit_linear(inputs, targets.to(torch.int8), loss, 1e-2 / 3, torch.zeros(3, F + 1))
    for label in range(3):
        reference = LogisticRegression(C=1 / (1e-2 * N), tol=1e-10, max_iter=10000).fit(features, targets[:, label])
        expected = torch.tensor([*reference.coef_[0], *reference.intercept_], dtype=torch.float32)
        assert_close(fitted[label], expected, atol=5e-3, rtol=1e-2)


def test_the_weights_are_for_the_features_as_they_are(data, few_penalties):
    """A constant feature, and other units of the features, change no prediction."""
    features, targets = data
    loss = build_loss(Loss(), 0.1)
    weight, bias, l2 = fit_probe(features, targets, C, loss)
    scaled = torch.cat([1000 * features - 7, torch.full((N, 1), 5.0)], dim=1)
    other_weight, other_bias, other_l2 = fit_probe(scaled, targets, C, loss)
    logits = features @ weight.T + bias
    other = scaled @ other_weight.T + other_bias
    assert_close(logits, other, atol=2e-2, rtol=1e-2)
    assert l2 == other_l2
    assert (logits.argmax(1) == targets).float().mean() > 0.6
    assert_same_state(fit_probe(features, targets, C, loss)[:2], (weight, bias))


def test_k_nn_is_that_of_scikit_learn(data):
    """Of scikit-learn, with the weights of DINO as a function of the cosine distance."""
    features, targets = data
    reference = KNeighborsClassifier(20, metric="cosine", weights=lambda distance: np.exp((1 - distance) / 0.07))
    reference.fit(features[:300], targets[:300])
    expected = 100 * (reference.predict(features[300:]) == targets[300:].numpy()).mean()
    assert knn_top1(features[:300], targets[:300], features[300:], targets[300:], C) == approx(expected)


def test_margins_are_those_of_cleanlab():
    rank = importorskip("cleanlab.rank")
    rng = default_rng(0)
    probabilities = rng.dirichlet(np.ones(5), 200)
    targets = rng.integers(5, size=200)
    found = margins(torch.tensor(probabilities), torch.tensor(targets))
    expected = rank.get_normalized_margin_for_each_label(targets, probabilities)
    assert (found.values + 1) / 2 == approx(expected)
    wrong = found.values < 0
    assert np.array_equal(found.others[wrong], probabilities.argmax(1)[wrong])


def test_margins_of_several_labels_are_those_of_cleanlab_for_each_label():
    """Also which labels are suspect: by confident learning, where another one is predicted. Unknown ones count not."""
    by_label = importorskip("cleanlab.multilabel_classification")
    rng = default_rng(0)
    targets = (rng.random((300, 3)) < (0.5, 0.4, 0.3)).astype(np.int8)
    planted = rng.random((300, 3)) < 0.08
    logits = rng.normal(2.0 * targets - 1.0, 0.8)
    probabilities = 1 / (1 + np.exp(-logits))
    given = np.where(planted, 1 - targets, targets)
    labels = [np.flatnonzero(row).tolist() for row in given]
    found = margins(torch.tensor(probabilities), torch.tensor(given))
    expected = by_label.rank.get_label_quality_scores_per_class(labels, probabilities, method="normalized_margin")
    assert (found.values + 1) / 2 == approx(expected)
    flat = Margins(*map(np.ravel, found))
    least = np.array([found.label_probabilities[found.labels == number].mean() for number in range(6)])
    assert least.max() < 0.7  # below the limit that makes a suspect of any model
    issues = by_label.filter.find_multilabel_issues_per_class(labels, probabilities, filter_by="confident_learning")
    is_suspect = np.zeros(900, bool)
    is_suspect[flat.suspects] = True
    assert np.array_equal(is_suspect.reshape(300, 3), issues & ((probabilities > 0.5) != given))
    assert is_suspect.sum() > 30
    unknown = given.copy()
    unknown[:, 1] = UNKNOWN
    flat = Margins(*map(np.ravel, margins(torch.tensor(probabilities), torch.tensor(unknown))))
    assert sorted(flat.suspects) == [one for one in np.flatnonzero(is_suspect) if one % 3 != 1]


def test_a_model_that_predicts_one_class_makes_no_label_suspect():
    rng = default_rng(0)
    for targets in (rng.integers(0, 3, 200), (rng.random((200, 1)) < 0.1).astype(np.int8)):
        probabilities = rng.uniform(0.0, 0.4, (200, 3 if targets.ndim == 1 else 1))
        probabilities[:, 0] = rng.uniform(0.41, 0.99, 200) if targets.ndim == 1 else rng.uniform(0, 0.4, 200)
        found = margins(torch.tensor(probabilities), torch.tensor(targets))
        assert (found.values < 0).any()
        assert Margins(*map(np.ravel, found)).suspects == []


# The mean of a class over the samples with its label: 0.44, 0.4, none and 0.9.
SUSPECTS = """
label | probabilities       | is suspect
0     | 0.9  0.05 0.05 0.0  |
0     | 0.7  0.2  0.1  0.0  |
0     | 0.3  0.5  0.2  0.0  | yes
0     | 0.1  0.1  0.8  0.0  | yes
0     | 0.2  0.2  0.6  0.0  |
1     | 0.1  0.6  0.3  0.0  |
1     | 0.2  0.5  0.3  0.0  |
1     | 0.42 0.35 0.23 0.0  |
1     | 0.45 0.35 0.2  0.0  | yes
1     | 0.05 0.2  0.0  0.75 | yes
3     | 0.0  0.0  0.05 0.95 |
3     | 0.0  0.0  0.15 0.85 |
"""


def test_suspects_are_as_sure_as_their_class_is_on_average_or_have_70_percent():
    _, *rows = cells_of(SUSPECTS)
    labels = torch.tensor([int(label) for label, _, _ in rows])
    probabilities = torch.tensor([[*map(float, words.split())] for _, words, _ in rows])
    found = margins(probabilities, labels)
    assert sorted(found.suspects) == [row for row, (_, _, is_suspect) in enumerate(rows) if is_suspect]
    assert found.values[found.suspects] == approx([-0.7, -0.55, -0.2, -0.1])
    assert margins(probabilities[:0], labels[:0]).suspects == []


def test_a_class_of_one_fold_does_not_choose_the_penalty(monkeypatch):
    """The penalty is the one with the lowest loss of the other classes' held-out samples."""
    monkeypatch.setattr(classifiers, "_L2_VALUES", PENALTIES)
    targets = torch.tensor([0] * 30 + [1] * 30 + [2] + [3] * 2)
    folds = stratified_folds(targets)
    folds[-2:] = folds[-1]
    for given in (nn.functional.one_hot(targets).to(torch.int8), targets):
        assert classes_of_one_fold(given, folds).tolist() == [2, 3]
        assert have_label(given, torch.tensor([2, 3])).tolist() == (targets > 1).tolist()
    features = torch.tensor(default_rng(0).normal(size=(63, 4)), dtype=torch.float32)
    features[:, 0] += 3 * targets
    losses = build_loss(Loss(), 0.0)
    inputs = standardize(features)[0]
    of_all = dict.fromkeys(PENALTIES, 0.0)  # the held-out losses
    of_others = dict.fromkeys(PENALTIES, 0.0)
    for l2, fold in product(PENALTIES, range(5)):
        kept = folds != fold
        held_out = folds == fold
        fitted = fit_linear(inputs[kept], given[kept], losses, l2, torch.zeros(4, 5))
        for sums, of_fold in ((of_all, held_out), (of_others, held_out & (targets < 2))):
            sums[l2] += float(losses(inputs[of_fold] @ fitted.T, given[of_fold]))
    lowest = min(of_others, key=of_others.__getitem__)
    assert fit_probe(features, given, 4, losses, folds)[2] == lowest != min(of_all, key=of_all.__getitem__)


def test_folds_keep_groups_together():
    """An image is recognized by its copies: only folds of whole groups show that its label cannot be learned."""
    rng = default_rng(1)
    group_of = np.repeat(np.arange(40), 5)
    targets = torch.tensor(np.repeat(rng.integers(2, size=40), 5))
    features = torch.tensor(np.repeat(rng.normal(size=(40, 60)), 5, axis=0), dtype=torch.float32)
    loss = build_loss(Loss(), 0.0)
    errors = []
    for folds in (stratified_folds(targets), stratified_folds(targets, group_of)):
        errors.append((out_of_fold_margins(features, targets, 2, loss, 1e-3, folds).values < 0).mean())
    assert all(len(set(folds[group_of == group].tolist())) == 1 for group in range(40))
    assert len(folds.unique()) == 5
    assert errors[0] == 0
    assert errors[1] > 0.25
