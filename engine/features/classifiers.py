"""Classifiers on features: weighted k-NN, as DINO evaluates its backbones (Caron et al., 2021), and a linear one.

The linear one is multinomial logistic regression, or has the loss of the run, with an L2 penalty.

Legend: N samples, F width of the features, C classes.
"""

import math
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from datasets.sources.samples import is_multi_hot, label_pairs
from datasets.sources.split import most_frequent
from engine.evaluation.suspects import Margins, margins

Loss = Callable[[Tensor, Tensor], Tensor]  # see `build_loss` in engine/training/loss.py
_NEIGHBORS = 20
_TEMPERATURE = 0.07
_ROWS = 1024  # of similarities at a time


def knn_top1(features: Tensor, targets: Tensor, queries: Tensor, query_targets: Tensor, num_classes: int) -> float:
    """The share of queries whose class the neighbors predict, in percent.

    The 20 training images of the highest cosine similarity s vote, with the weight exp(s / 0.07).

    features: of the training, (N, F). queries: (M, F). targets, query_targets: int64 (N,), (M,).
    """
    features = F.normalize(features)
    hits = 0
    for rows, labels in zip(F.normalize(queries).split(_ROWS), query_targets.split(_ROWS), strict=True):
        similarity, neighbors = (rows @ features.T).topk(min(_NEIGHBORS, len(features)))
        votes = F.one_hot(targets[neighbors], num_classes) * (similarity / _TEMPERATURE).exp().unsqueeze(-1)
        hits += int((votes.sum(dim=1).argmax(dim=-1) == labels).sum())
    return 100 * hits / len(queries)


ROWS = 1 << 16  # of logits at a time
_L2_VALUES = tuple(10.0 ** (-exponent / 2) for exponent in range(13))  # from strong to weak
_FOLDS = 5
_TUNING_ITERATIONS = 100
_ITERATIONS = 1000


def fit_probe(
    features: Tensor, targets: Tensor, num_classes: int, loss: Loss, folds: Tensor | None = None
) -> tuple[Tensor, Tensor, float]:
    """Weight (C, F), bias (C,), and their L2 penalty, which has the lowest loss on five folds; deterministic.

    The fit is on standardized features; the weights are for the features as they are. The loss of a fold is of the
    samples whose classes are in other folds, too.

    features: float32 (N, F), N >= 2. targets: int64 (N,), or multi-hot int8 (N, C). loss: see `build_loss`.
    folds: of each sample, (N,); default: stratified ones.
    """
    inputs, mean, std = standardize(features)
    start = inputs.new_zeros(num_classes, inputs.shape[1])
    folds = stratified_folds(targets) if folds is None else folds
    known = ~have_label(targets, classes_of_one_fold(targets, folds))
    of_folds = [start] * (int(folds.max()) + 1)
    best = _L2_VALUES[0]
    lowest = math.inf
    for l2 in _L2_VALUES:  # until the loss of the held-out folds rises; a fit starts from the one before
        held_out_loss = 0.0
        for fold, before in enumerate(of_folds):
            kept = folds != fold
            held_out = (folds == fold) & known
            of_folds[fold] = fit_linear(inputs[kept], targets[kept], loss, l2, before, _TUNING_ITERATIONS)
            held_out_loss += float(loss(inputs[held_out] @ of_folds[fold].T, targets[held_out]))
        if held_out_loss >= lowest:
            break
        best = l2
        lowest = held_out_loss
    fitted = fit_linear(inputs, targets, loss, best, start)
    weight = fitted[:, :-1] / std
    return weight, fitted[:, -1] - weight @ mean, best


def standardize(features: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs of `fit_linear` (N, F + 1), and the mean and the standard deviation of the features, (F,)."""
    mean = features.mean(0)
    std = features.std(0, correction=0)
    std = torch.where(std > 0, std, 1)
    return torch.cat([(features - mean) / std, features.new_ones(len(features), 1)], dim=1), mean, std


def fit_linear(
    inputs: Tensor,
    targets: Tensor,
    loss: Loss,
    l2: float,
    start: Tensor,
    iterations: int = _ITERATIONS,
) -> Tensor:
    """Minimizes mean loss + l2 / 2 * |weight|^2 by L-BFGS: weight and bias (C, F + 1), from `start`.

    scikit-learn's LogisticRegression has this objective with C = 1 / (l2 * N); with two classes, which have one row
    there, C = 2 / (l2 * N).

    inputs: (N, F + 1); the last column, of ones, is for the bias, which has no penalty.
    """
    fitted = start.clone().requires_grad_()
    optimizer = torch.optim.LBFGS(
        [fitted], max_iter=iterations, tolerance_grad=1e-7, history_size=20, line_search_fn="strong_wolfe"
    )

    def objective() -> Tensor:
        optimizer.zero_grad()
        value = l2 / 2 * fitted[:, :-1].square().sum()
        value.backward()
        for rows, labels in zip(inputs.split(ROWS), targets.split(ROWS), strict=True):
            part = loss(rows @ fitted.T, labels) / len(inputs)
            part.backward()
            value = value.detach() + part.detach()
        return value

    optimizer.step(objective)
    return fitted.detach()


def stratified_folds(targets: Tensor, group_of: np.ndarray | None = None) -> Tensor:
    """The fold of each sample, (N,): the samples of a class, or of a set of labels, go to five folds in turn.

    group_of: numbers of groups from 0, (N,); whole groups go to the folds, by their most frequent class.
    """
    classes = targets.unique(dim=0, return_inverse=True)[1]
    if group_of is not None:
        of_groups = torch.from_numpy(most_frequent(classes.cpu().numpy(), group_of)).to(targets.device)
        return stratified_folds(of_groups)[group_of]
    folds = torch.empty_like(classes)
    folds[classes.argsort(stable=True)] = torch.arange(len(targets), device=targets.device) % min(_FOLDS, len(targets))
    return folds


def classes_of_one_fold(targets: Tensor, folds: Tensor) -> Tensor:
    """The classes whose samples are all in one fold, int64 (M,): fitted without it, a classifier does not know them."""
    rows, labels = label_pairs(targets.cpu().numpy())
    fold_of = folds.cpu()[rows]
    counts = torch.zeros(int(labels.max(initial=-1)) + 1, int(folds.max()) + 1)
    counts[labels, fold_of] = 1
    return (counts.sum(1) == 1).nonzero()[:, 0].to(targets.device)


def have_label(targets: Tensor, labels: Tensor) -> Tensor:
    """Whether each sample has one of the labels, bool (N,)."""
    return (targets[:, labels] > 0).any(1) if is_multi_hot(targets) else torch.isin(targets, labels)


def probabilities_of(logits: Tensor, targets: Tensor) -> Tensor:
    return logits.sigmoid() if is_multi_hot(targets) else logits.softmax(1)


def out_of_fold_margins(
    features: Tensor, targets: Tensor, num_classes: int, loss: Loss, l2: float, folds: Tensor
) -> Margins:
    """The margins by the linear classifiers that are fitted without the fold of a sample.

    features: float32 (N, F). targets: as of `fit_probe`. l2: as of `fit_linear`. folds: of each sample, (N,).
    """
    inputs = standardize(features)[0]
    start = inputs.new_zeros(num_classes, inputs.shape[1])
    found = Margins(*(np.empty(targets.shape, kind) for kind in (np.int64, np.float32, np.float32, np.int64)))
    for fold in folds.unique():
        kept = folds != fold
        held_out = (folds == fold).nonzero()[:, 0]
        fitted = fit_linear(inputs[kept], targets[kept], loss, l2, start)
        for rows in held_out.split(ROWS):
            part = margins(probabilities_of(inputs[rows] @ fitted.T, targets), targets[rows])
            for values, of_rows in zip(found, part, strict=True):
                values[rows.cpu()] = of_rows
    return found
