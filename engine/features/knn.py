"""Weighted k-nearest neighbors on features, as DINO evaluates its backbones (Caron et al., 2021)."""

import torch
import torch.nn.functional as F

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
