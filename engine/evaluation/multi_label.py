"""The evaluation of several labels per image (DATA.MULTI_LABEL): average precision of each class.

Legend: B images per batch, N samples, K ranked classes, C classes.
"""

import numpy as np
import torch
import torch.nn.functional as F

from datasets.batch import PADDING


def score_classes(logits: torch.Tensor, targets: torch.Tensor, top_k: int) -> dict[str, torch.Tensor]:
    """The fields of `SampleResults` for a batch: logits float32 (B, C), multi-hot targets int8 (B, C) -> (B, ...).

    The loss is binary cross-entropy, the mean over the classes, without label smoothing and class weights.

    Targets int64 (B,) mean images without labels, which are only predicted: they have no loss and no scores.
    """
    best = logits.topk(min(top_k, logits.shape[-1]), dim=-1)
    ranked = {"targets": targets, "labels": best.indices.int(), "probabilities": best.values.sigmoid()}
    if targets.ndim == 1:
        return ranked | {"losses": torch.zeros(len(logits), device=logits.device)}
    losses = F.binary_cross_entropy_with_logits(logits, targets.clamp(min=0).float(), reduction="none").mean(-1)
    return ranked | {"losses": losses.masked_fill(targets[:, 0] == PADDING, 0), "scores": logits}


def average_precisions(targets: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """The average precision of each class in percent (C,), as scikit-learn defines it; NaN without a positive sample.

    targets: multi-hot (N, C), without padding. scores: float32 (N, C), any increasing function of the probability. A
    score that is NaN is the lowest.
    """
    ranked = np.nan_to_num(scores, nan=float(np.finfo(np.float32).min))
    precisions = np.full(targets.shape[1], np.nan)
    for label in np.flatnonzero(targets.any(axis=0)):
        precisions[label] = 100 * _average_precision(targets[:, label], ranked[:, label])
    return precisions


def _average_precision(targets: np.ndarray, scores: np.ndarray) -> float:
    """The sum over the thresholds of precision x increase of recall. targets: 0 or 1 (N,), scores (N,).

    A threshold is a score that occurs: samples with equal scores are selected together.
    """
    order = np.argsort(-scores, kind="stable")
    targets, scores = targets[order], scores[order]
    selected = np.append(np.flatnonzero(scores[1:] != scores[:-1]) + 1, len(scores))
    hits = np.cumsum(targets, dtype=np.int64)[selected - 1]
    increases = np.diff(hits / hits[-1], prepend=0)
    return float(np.sum((hits / selected * increases)[::-1]))  # from the lowest score on, as scikit-learn adds


def mean_average_precision(precisions: np.ndarray) -> float:
    """The mean over the classes with positive samples; 0 without any."""
    return 0.0 if np.isnan(precisions).all() else float(np.nanmean(precisions))
