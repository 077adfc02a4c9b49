"""How a class ranks samples: its scores, the figures of their order, and the points of its curves.

Legend: B images per batch, N samples, C classes.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from configs.schema.operating_point import Goal
from datasets.sources.samples import UNKNOWN, is_multi_hot
from engine.evaluation.limits import share_by_limit
from utils.metric_table import OPERATING, OPERATING_POINTS

LOWEST = float(np.finfo(np.float32).min)  # the score of a class that is NaN
# that are read at a time
_FEWEST_COLUMNS = 64
_CELLS = 1 << 20


def log_odds(logits: Tensor) -> Tensor:
    """log(p / (1 - p)) of the softmax p of logits, float32 (B, C): ranks samples also where p is 1 in float32.

    Of two classes the margin. Of more classes in float64 and rounded, so that samples of equal p have equal scores.
    """
    if logits.shape[-1] == 2:
        return logits - logits.flip(-1)
    exact = logits.double()
    best = exact.argmax(-1, keepdim=True)
    others = exact.scatter(-1, best, -torch.inf).logsumexp(-1, keepdim=True)
    log_probabilities = exact.log_softmax(-1)
    odds = log_probabilities - torch.log1p(-log_probabilities.exp())
    return odds.scatter(-1, best, exact.gather(-1, best) - others).float()  # p may be 1 of the best class only


def rank_labels(logits: Tensor, top_k: int) -> Tensor:
    """The labels of the highest logits, int64 (B, at most top_k), of equal ones the lowest label first.

    logits: float32 (B, C). The order of equal values in torch's `topk` depends on their number, and a stable sort takes
    20 times as long on a CPU.
    """
    bits = (logits + 0.0).view(torch.int32)  # -0 becomes 0
    keys = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).long()  # integers in the order of the logits
    keys <<= 32
    keys -= torch.arange(logits.shape[-1], device=logits.device)  # no two are equal
    return keys.topk(min(top_k, logits.shape[-1]), dim=-1).indices


@dataclass(frozen=True)
class RankingFigures:
    """Figures of the order in which a class ranks the samples (C,), percent, as scikit-learn defines them.

    average_precision: NaN without a positive sample. auroc: the area under the ROC curve, a sample of the class against
    all others; equal scores count half. NaN unless there are positive and negative samples. threshold: the score from
    which on a class is predicted for the highest F1: halfway from the chosen sample to the next lower score, so that
    noise changes few predictions; 0 without positive samples.
    operating: a row for each of `OPERATING`, the highest sensitivity whose specificity is the given one or more, and
    the reverse; NaN as auroc.
    """

    average_precision: np.ndarray
    auroc: np.ndarray
    threshold: np.ndarray
    operating: np.ndarray


def rank_samples(targets: np.ndarray, scores: np.ndarray, rows: np.ndarray) -> RankingFigures:
    """The figures of each class.

    targets: labels (N,) or multi-hot (N, C), whose cells `UNKNOWN` do not count. scores: float32 (N, C), any
    increasing function of the probability. A score that is NaN is the lowest. rows: of the samples that count, without
    padding.
    """
    precision, auroc, threshold = (np.full(scores.shape[1], value) for value in (np.nan, np.nan, 0.0))
    operating = np.full((len(OPERATING), scores.shape[1]), np.nan)
    for label, unsorted, is_own, is_known in read_labels(targets, scores, rows):
        values = to_finite(unsorted[is_known])
        is_own = is_own[is_known]
        own = np.sort(values[is_own])
        others = np.sort(values[~is_own])
        positives = len(own)
        negatives = len(others)
        if not positives:
            continue
        every = np.sort(values)
        below = every.searchsorted(own)
        own_below = own.searchsorted(own)
        up_to = every.searchsorted(own, "right")
        precision[label] = 100 * np.mean((positives - own_below) / (len(every) - below))
        # A threshold is the score of a positive sample: samples with equal scores are selected together.
        f1 = (positives - own_below) / (len(every) - below + positives)
        best = positives - 1 - np.argmax(f1[::-1])  # of equal ones the highest threshold
        threshold[label] = threshold_at(every, below[best])
        if negatives:
            # Twice the sum of the ranks of the positive samples: Mann and Whitney, 1947
            doubled = np.sum(below + up_to + 1) - positives * (positives + 1)
            auroc[label] = 100 * doubled / (2 * positives * negatives)
            lowest_own = [own[positives + -point * positives // 100] for point in OPERATING_POINTS]
            highest_other = [others[-(-point * negatives // 100) - 1] for point in OPERATING_POINTS]
            sensitivity = 1 - np.searchsorted(own, highest_other, "right") / positives
            operating[:, label] = 100 * np.append(sensitivity, np.searchsorted(others, lowest_own) / negatives)
    return RankingFigures(precision, auroc, threshold, operating)


def read_labels(
    targets: np.ndarray, scores: np.ndarray, rows: np.ndarray
) -> Iterator[tuple[int, np.ndarray, np.ndarray, np.ndarray]]:
    """Each label, its scores of the samples at `rows`, float32 (M,), which of them have it, and of which it is known.

    A column of a large array is slow to read, and a copy of the array takes memory: a few columns are transposed.
    """
    number = max(_FEWEST_COLUMNS, _CELLS // max(len(rows), 1))
    for start in range(0, scores.shape[1], number):
        columns = slice(start, start + number)
        values = torch.from_numpy(scores[rows, columns]).t().contiguous().numpy()  # in a third of NumPy's time
        labels = range(start, start + len(values))
        if not is_multi_hot(targets):
            is_own = targets[rows] == np.array(labels)[:, None]
            is_known = np.ones_like(is_own)
        else:
            own = torch.from_numpy(targets[rows, columns]).t().contiguous().numpy()
            is_own = own > 0
            is_known = own != UNKNOWN
        yield from zip(labels, values, is_own, is_known, strict=True)


def to_finite(scores: np.ndarray) -> np.ndarray:
    """The scores, the lowest for NaN, and the highest for infinity."""
    return np.fmin(np.fmax(scores, np.float32(LOWEST)), np.float32(-LOWEST))


def reaches(scores: np.ndarray, threshold: float) -> np.ndarray:
    """Which scores, float32 (N,), are at or above a threshold: from the next float32 on, if it is between two."""
    least = np.float32(threshold)
    if float(least) < threshold:
        least = np.nextafter(least, np.float32(np.inf))
    return scores >= least


def threshold_at(scores: np.ndarray, index: int) -> float:
    """Halfway between a score and the next lower one, of ascending ones (N,), or a step below the lowest of all."""
    if index:
        return float(np.mean(scores[index - 1 : index + 1], dtype=np.float64))
    return float(np.nextafter(scores[0], LOWEST, dtype=np.float32))


def roc_points(scores: np.ndarray, is_own: np.ndarray) -> tuple[np.ndarray, ...]:
    """The distinct scores, ascending, and the sensitivity, specificity and precision from each on, in percent.

    A sample at or above a score is predicted to have the class. NaN without samples of the class, or without others.
    """
    every = np.unique(scores)
    missed = np.searchsorted(np.sort(scores[is_own]), every)
    right = np.searchsorted(np.sort(scores[~is_own]), every)
    positives = np.full(len(every), is_own.sum())
    negatives = len(scores) - positives
    hits = positives - missed
    shares = divide(hits, positives), divide(right, negatives), divide(hits, hits + negatives - right)
    return every, *(100 * share for share in shares)


def figure_at(point: Goal, scores: np.ndarray, is_own: np.ndarray) -> float:
    """The highest sensitivity, or for a goal of the sensitivity the specificity, of a threshold that reaches the goal,
    percent; 0 if none does."""
    _, _, other, is_possible = points_at(point, scores, is_own)
    return float(other[is_possible].max(initial=0))


def points_at(point: Goal, scores: np.ndarray, is_own: np.ndarray) -> tuple[np.ndarray, ...]:
    """Each distinct score, the figure of the goal from it on, the other one, and whether it reaches the goal."""
    every, sensitivity, specificity, _ = roc_points(scores, is_own)
    figure = sensitivity
    other = specificity
    of_figure = is_own
    if point.specificity:
        figure = specificity
        other = sensitivity
        of_figure = ~is_own
    goal = point.specificity or point.sensitivity or 0
    least = share_by_limit(goal, int(of_figure.sum())) if point.by_limit else goal
    return every, figure, other, (figure >= 100 * least) & (figure > 0) & (other > 0)


def mean_defined(values: np.ndarray) -> float:
    """The mean of the values that are not NaN; NaN without any."""
    defined = values[~np.isnan(values)]
    return float(defined.mean()) if len(defined) else math.nan


def mean_of(values: np.ndarray, weights: np.ndarray) -> float:
    """The weighted mean; NaN if all weights are 0."""
    total = weights.sum()
    return float((values * weights).sum() / total) if total else math.nan


def divide(numerators: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The quotients; NaN where the count is 0."""
    return np.divide(numerators, counts, out=np.full(len(counts), np.nan), where=counts > 0)
