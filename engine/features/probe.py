"""Classifiers on features, and a run whose only step fits the head on the features of the frozen backbone.

The classifiers: weighted k-NN, as DINO evaluates its backbones (Caron et al., 2021), and a linear one: multinomial
logistic regression, or the loss of the run, with an L2 penalty.

Legend: N samples, F width of the features, C classes.
"""

import math
from dataclasses import replace
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from datasets.sources.samples import Samples
from engine.features.store import extract
from engine.run.result import Result
from engine.training.losses.loss import Loss, build_loss, read_class_weights
from engine.training.trainer import Trainer
from models.features import FeatureModel
from models.timm_model import classifiers
from utils.distributed import broadcast_object, call_on_main
from utils.errors import UserError
from utils.metrics import BatchSums

_NEIGHBORS, _TEMPERATURE = 20, 0.07
_ROWS = 1024  # of similarities at a time


def knn_top1(
    features: torch.Tensor, targets: torch.Tensor, queries: torch.Tensor, query_targets: torch.Tensor, num_classes: int
) -> float:
    """The share of queries whose class the neighbors predict, in percent.

    The 20 training images of the highest cosine similarity s vote, with the weight exp(s / 0.07).

    Args:
        features: of the training, (N, F). queries: (M, F). targets, query_targets: int64 (N,), (M,).
    """
    features, hits = F.normalize(features), 0
    for rows, labels in zip(F.normalize(queries).split(_ROWS), query_targets.split(_ROWS), strict=True):
        similarity, neighbors = (rows @ features.T).topk(min(_NEIGHBORS, len(features)))
        votes = F.one_hot(targets[neighbors], num_classes) * (similarity / _TEMPERATURE).exp().unsqueeze(-1)
        hits += int((votes.sum(dim=1).argmax(dim=-1) == labels).sum())
    return 100 * hits / len(queries)


ROWS = 1 << 16  # of logits at a time
_L2_VALUES = tuple(10.0**-exponent for exponent in range(7))  # from strong to weak
_FOLDS, _TUNING_ITERATIONS, _ITERATIONS = 5, 100, 1000


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
    inputs = torch.cat([(features - mean) / std, features.new_ones(len(features), 1)], dim=1)
    start = inputs.new_zeros(num_classes, inputs.shape[1])
    l2 = _choose_l2(inputs, targets, loss, start)
    fitted = fit_linear(inputs, targets, loss, l2, start)
    weight = fitted[:, :-1] / std
    return weight, fitted[:, -1] - weight @ mean, l2


def fit_linear(
    inputs: torch.Tensor,
    targets: torch.Tensor,
    loss: Loss,
    l2: float,
    start: torch.Tensor,
    iterations: int = _ITERATIONS,
) -> torch.Tensor:
    """Minimizes mean loss + l2 / 2 * |weight|^2 by L-BFGS: weight and bias (C, F + 1), from `start`.

    scikit-learn's LogisticRegression has this objective with C = 1 / (l2 * N).

    Args:
        inputs: (N, F + 1); the last column, of ones, is for the bias, which has no penalty.
    """
    fitted = start.clone().requires_grad_()
    optimizer = torch.optim.LBFGS(
        [fitted], max_iter=iterations, tolerance_grad=1e-7, history_size=20, line_search_fn="strong_wolfe"
    )

    def objective() -> torch.Tensor:
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


def _choose_l2(inputs: torch.Tensor, targets: torch.Tensor, loss: Loss, start: torch.Tensor) -> float:
    """From the strongest penalty on, until the loss of the held-out folds rises; a fit starts from the one before."""
    folds = stratified_folds(targets, min(_FOLDS, len(targets)))
    fitted, best, lowest = [start] * (int(folds.max()) + 1), _L2_VALUES[0], math.inf
    for l2 in _L2_VALUES:
        held_out_loss = 0.0
        for fold, before in enumerate(fitted):
            kept, held_out = folds != fold, folds == fold
            fitted[fold] = fit_linear(inputs[kept], targets[kept], loss, l2, before, _TUNING_ITERATIONS)
            held_out_loss += float(loss(inputs[held_out] @ fitted[fold].T, targets[held_out]))
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


Features = tuple[torch.Tensor, torch.Tensor]  # of the readable samples, float32 (N, F), and their targets, (N, ...)


def run_probe(trainer: Trainer) -> Result:
    """Runs an epoch of one step, which fits the head; with the evaluation, files and result of a training.

    The features of the training and of the validation images are kept in SAVE/features, for the same run after a kill
    and for other probes with this backbone, these images and this preprocessing.

    Raises:
        UserError: the head is not one linear layer; the features are not finite, or of fewer than two images.
    """
    with trainer.started():
        if not trainer.has_ended():
            trainer.start_epoch()
            if not trainer.progress.done_steps:
                _fit_head(trainer)
            trainer.end_epoch()
    return trainer.finish()


def _fit_head(trainer: Trainer) -> None:
    weights, progress, context = trainer.state.precision.weights, trainer.progress, trainer.context
    model = FeatureModel(trainer.state.eval_model, trainer.config.model.name)
    heads = classifiers(weights.saved)
    if len(heads) > 1 or not isinstance(heads[0], nn.Linear) or heads[0].bias is None:
        raise UserError(
            f"MODEL.TUNE probe: the head of {trainer.config.model.name} is not one linear layer; set it to head"
        )
    train = _features(trainer, model, trainer.plan.train, "train")
    val = _features(trainer, model, trainer.plan.val, "val")
    fitted = call_on_main(lambda: _fit(trainer, train, val), context)  # None on other ranks
    weight, bias, figures = broadcast_object(fitted[:3] if fitted else None, context)  # type: ignore[misc]
    with torch.no_grad():
        heads[0].weight.copy_(weight)
        heads[0].bias.copy_(bias)
    weights.sync_after_load()
    trainer.result = replace(trainer.result, **figures)
    if fitted:  # the sums are over all ranks
        no = torch.zeros((), device=context.device)
        progress.sums.add_step(fitted[3], no, no > 0)
    progress.done_steps += 1
    trainer.after_step(progress)


def _features(trainer: Trainer, model: FeatureModel, samples: Samples, split: str) -> Features:
    """The features of a split on the main process, none on the others; a collective call."""
    config, bad_images, device = trainer.config, trainer.session.bad_images, trainer.context.device
    root = Path(config.save) / "features"
    place = lambda digest: root / f"{split}-{digest[:16]}" / "features.npy"  # noqa: E731
    evaluator = trainer.session.evaluator
    file = extract(config, samples, evaluator, model, place, bad_images, trainer.after_eval_batch)
    if file is None:
        return torch.empty(0), torch.empty(0)
    readable = np.setdiff1d(np.arange(len(samples)), list(file.errors))
    values = torch.from_numpy(file.values[readable])
    if len(values) < 2 or not values.isfinite().all():
        problem = "fewer than two images can be read" if len(values) < 2 else "NaN or infinite; use bfloat16"
        raise UserError(f"MODEL.TUNE probe: features of {split}: {problem}")
    return values.to(device), torch.from_numpy(samples.targets[readable]).to(device)


def _fit(
    trainer: Trainer, train: Features, val: Features
) -> tuple[torch.Tensor, torch.Tensor, dict[str, Any], BatchSums]:
    """Weight (C, F) and bias (C,) on the CPU, figures for result.json, and the sums of the training images."""
    config, matmul, classes = trainer.config, torch.backends.cuda.matmul, trainer.config.model.num_logits
    class_weights = read_class_weights(config.loss, trainer.plan.train.targets, classes, trainer.context.device)
    loss = build_loss(config.loss, config.train.smoothing, class_weights)
    tf32, matmul.allow_tf32 = matmul.allow_tf32, False  # its rounding errors end the line search
    weight, bias, l2 = fit_probe(*train, classes, loss)
    figures = {"probe_l2": l2}
    trainer.record.logger.info(f"----- Probe: L2 penalty {l2:g} of the weights for standardized features")
    if not config.data.multi_label:
        figures["knn_top1"] = knn_top1(*train, *val, classes)
        trainer.record.logger.info(f"----- k-NN top-1 on the same features: {figures['knn_top1']:.2f}%")
    sums = []
    for rows, labels in zip(*(tensor.split(ROWS) for tensor in train), strict=True):
        logits = F.linear(rows, weight, bias)
        sums.append(BatchSums.of(loss(logits, labels), logits, labels, len(labels)))
    matmul.allow_tf32 = tf32
    return weight.cpu(), bias.cpu(), figures, reduce(add, sums)
