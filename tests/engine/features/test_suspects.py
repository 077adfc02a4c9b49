"""Suspect labels: the order of cleanlab, by probes that have not seen the image."""

import numpy as np
import pytest
import torch

from configs.schema import Loss
from engine.features.classifiers import margins, out_of_fold_margins, stratified_folds
from engine.training.losses.loss import build_loss


def test_margins_are_those_of_cleanlab():
    rank = pytest.importorskip("cleanlab.rank")
    rng = np.random.default_rng(0)
    probabilities, targets = rng.dirichlet(np.ones(5), 200), rng.integers(5, size=200)
    found = margins(torch.tensor(probabilities), torch.tensor(targets))
    expected = rank.get_normalized_margin_for_each_label(targets, probabilities)
    assert (found.values + 1) / 2 == pytest.approx(expected)
    wrong = found.values < 0
    assert np.array_equal(found.others[wrong], probabilities.argmax(1)[wrong])


def test_swapped_labels_are_first():
    rng = np.random.default_rng(0)
    truth = rng.integers(4, size=400)
    features = torch.tensor(rng.normal(size=(4, 16))[truth] * 2 + rng.normal(size=(400, 16)), dtype=torch.float32)
    swapped = rng.choice(400, 20, replace=False)
    targets = torch.tensor(truth)
    targets[swapped] = (targets[swapped] + 1) % 4
    found = out_of_fold_margins(features, targets, 4, build_loss(Loss(), 0.0), 1e-2, stratified_folds(targets))
    first = np.argsort(found.values)[:20]
    assert len(set(first) & set(swapped)) >= 18
    assert (found.others[swapped] == truth[swapped]).mean() > 0.9


def test_folds_keep_groups_together():
    """An image is recognized by its copies: only folds of whole groups show that its label cannot be learned."""
    rng = np.random.default_rng(1)
    group_of = np.repeat(np.arange(40), 5)
    targets = torch.tensor(np.repeat(rng.integers(2, size=40), 5))
    features = torch.tensor(np.repeat(rng.normal(size=(40, 60)), 5, axis=0), dtype=torch.float32)
    loss, errors = build_loss(Loss(), 0.0), []
    for folds in (stratified_folds(targets), stratified_folds(targets, group_of)):
        errors.append((out_of_fold_margins(features, targets, 2, loss, 1e-3, folds).values < 0).mean())
    assert all(len(set(folds[group_of == group].tolist())) == 1 for group in range(40)) and len(folds.unique()) == 5
    assert errors[0] == 0 and errors[1] > 0.25
