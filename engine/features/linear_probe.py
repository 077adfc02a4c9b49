"""Fits a linear classifier on features: multinomial logistic regression, or the loss of the run, with an L2 penalty.

Legend: N samples, F width of the features, C classes.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from engine.training.losses.loss import Loss

Linear = tuple[torch.Tensor, torch.Tensor]  # weight (C, F) and bias (C,)
_L2_VALUES = tuple(10.0**-exponent for exponent in range(6))  # from strong to weak
ROWS = 1 << 16  # of logits at a time
_FOLDS = 5
_TUNING_ITERATIONS, _ITERATIONS = 100, 1000


@contextmanager
def full_precision() -> Iterator[None]:
    """Switches off TF32, with whose rounding errors a line search finds no descent."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32 = before


def fit_probe(
    features: torch.Tensor, targets: torch.Tensor, num_classes: int, loss: Loss
) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Weight (C, F), bias (C,), and their L2 penalty, which has the lowest loss on five folds; deterministic.

    The fit is on standardized features; the weights are for the features as they are.

    Args:
        features: float32 (N, F), N >= 2. targets: int64 (N,), or multi-hot int8 (N, C). loss: see `build_loss`.
    """
    mean, std = features.mean(0), features.std(0, correction=0)
    std = torch.where(std > 0, std, 1)
    features = (features - mean) / std
    start = features.new_zeros(num_classes, features.shape[1]), features.new_zeros(num_classes)
    l2 = _choose_l2(features, targets, loss, start)
    weight, bias = fit_linear(features, targets, loss, l2, start)
    weight = weight / std
    return weight, bias - weight @ mean, l2


def fit_linear(
    features: torch.Tensor, targets: torch.Tensor, loss: Loss, l2: float, start: Linear, iterations: int = _ITERATIONS
) -> Linear:
    """Minimizes mean loss + l2 / 2 * |weight|^2 by L-BFGS from `start`; the bias has no penalty.

    scikit-learn's LogisticRegression has this objective with C = 1 / (l2 * N).
    """
    weight, bias = (tensor.clone().requires_grad_() for tensor in start)
    optimizer = torch.optim.LBFGS(
        [weight, bias], max_iter=iterations, tolerance_grad=1e-7, history_size=20, line_search_fn="strong_wolfe"
    )

    def objective() -> torch.Tensor:
        optimizer.zero_grad()
        penalty = l2 / 2 * weight.square().sum()
        penalty.backward()
        return penalty.detach() + _mean_loss(features, targets, loss, weight, bias, backward=True)

    optimizer.step(objective)
    return weight.detach(), bias.detach()


def _mean_loss(
    features: torch.Tensor,
    targets: torch.Tensor,
    loss: Loss,
    weight: torch.Tensor,
    bias: torch.Tensor,
    backward: bool = False,
) -> torch.Tensor:
    """The mean () over the samples; with `backward`, adds its gradient to weight and bias."""
    total = features.new_zeros(())
    for rows, labels in zip(features.split(ROWS), targets.split(ROWS), strict=True):
        value = loss(rows @ weight.T + bias, labels) / len(features)
        if backward:
            value.backward()
        total += value.detach()
    return total


def _choose_l2(features: torch.Tensor, targets: torch.Tensor, loss: Loss, start: Linear) -> float:
    """From the strongest penalty on, until the loss of the held-out folds rises; a fit starts from the one before."""
    folds = stratified_folds(targets, min(_FOLDS, len(targets)))
    fitted, best, lowest = [start] * (int(folds.max()) + 1), _L2_VALUES[0], math.inf
    for l2 in _L2_VALUES:
        held_out_loss = 0.0
        for fold, before in enumerate(fitted):
            held_out = folds == fold
            x, y = features[~held_out], targets[~held_out]
            fitted[fold] = fit_linear(x, y, loss, l2, before, _TUNING_ITERATIONS)
            x, y = features[held_out], targets[held_out]
            held_out_loss += float(_mean_loss(x, y, loss, *fitted[fold])) * len(x)
        if held_out_loss >= lowest:
            break
        best, lowest = l2, held_out_loss
    return best


def stratified_folds(targets: torch.Tensor, num_folds: int) -> torch.Tensor:
    """The fold of each sample, (N,): the samples of a class, or of a set of labels, go to the folds in turn."""
    classes = targets.unique(dim=0, return_inverse=True)[1]
    folds = torch.empty_like(classes)
    folds[classes.argsort(stable=True)] = torch.arange(len(targets), device=targets.device) % num_folds
    return folds
