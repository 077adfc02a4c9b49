"""Whether probabilities are as high as their accuracy, and the temperature T that makes them so (Guo et al., 2017).

T is one number per weights. Users see the probabilities of logits / T. Metrics, and stored scores and logits, are of
the logits as they are. Legend: N samples, C classes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from datasets.sources.samples import UNKNOWN, is_multi_hot
from engine.evaluation.ranking import divide, log_odds, mean_of

NUM_BINS = 15  # of the confidence
_TEMPERATURES = [2 ** (step / 32) for step in range(-64, 65)]
_SIGMA = 0.5  # of log(T)
_ROWS = 4096  # at a time, in float64


def choose_temperature(scores: np.ndarray, targets: np.ndarray) -> float:
    """The T of 1/4 to 4 with the lowest log loss, summed over samples or labels, plus log(T)**2 / (2 sigma**2).

    The last term is a normal prior, as few samples show little. 1 if all samples or labels are right, and if a loss is
    not finite.

    scores, targets: of the readable samples of `SampleResults`.
    """
    odds = torch.from_numpy(scores)
    labels = torch.from_numpy(targets)
    if is_multi_hot(labels):  # each label is a sample of two classes
        is_known = labels != UNKNOWN
        odds = odds[is_known][:, None] * torch.tensor([-1, 1])
        labels = labels[is_known].long()
    log_probabilities = F.logsigmoid(odds)

    def cost(temperature: float) -> float:
        loss = F.cross_entropy(log_probabilities / temperature, labels, reduction="sum").item()
        return loss + math.log(temperature) ** 2 / (2 * _SIGMA**2)

    if torch.equal(odds.argmax(1), labels) or not math.isfinite(cost(1)):
        return 1.0
    return min(_TEMPERATURES, key=cost)


def temper(scores: np.ndarray, temperature: float, multi_label: bool) -> np.ndarray:
    """The scores of logits / T from the scores of the logits, float32 (N, C)."""
    odds = torch.from_numpy(scores)
    if multi_label:
        return (odds / temperature).numpy()
    # The logarithms of the probabilities are logits, too.
    parts = [log_odds(F.logsigmoid(rows.double()) / temperature).float() for rows in odds.split(_ROWS)]
    return torch.cat(parts).numpy()


@dataclass(frozen=True)
class Calibration:
    """Samples in bins of equal width by their confidence: the probability of the predicted class, or of one label.

    count: int64 (bins,). confidences, hits: sums over the samples of a bin (bins,).
    """

    count: np.ndarray
    confidences: np.ndarray
    hits: np.ndarray

    @property
    def confidence(self) -> np.ndarray:
        """The means of the bins, percent; NaN for an empty bin."""
        return 100 * divide(self.confidences, self.count)

    @property
    def accuracy(self) -> np.ndarray:
        """As `confidence`; of a label the share of the samples that have it."""
        return 100 * divide(self.hits, self.count)

    @property
    def error(self) -> float:
        """Expected calibration error (ECE): the mean over the samples of |accuracy - confidence| of their bin; NaN
        without samples.
        """
        return mean_of(np.abs(np.nan_to_num(self.accuracy - self.confidence)), self.count)


def calibration(probabilities: np.ndarray, hits: np.ndarray) -> Calibration:
    """probabilities: float (N,), NaN counts as 0. hits: bool (N,), whether the class, or the label, is right."""
    confidence = np.nan_to_num(probabilities.astype(np.float64))
    bins = np.minimum((confidence * NUM_BINS).astype(np.int64), NUM_BINS - 1)
    count = np.bincount(bins, minlength=NUM_BINS)
    return Calibration(count, np.bincount(bins, confidence, NUM_BINS), np.bincount(bins, hits, NUM_BINS))


def join_bins(parts: Sequence[Calibration]) -> Calibration:
    """The bins of all samples of the parts, such as labels."""
    return Calibration(
        count=np.sum([part.count for part in parts], axis=0),
        confidences=np.sum([part.confidences for part in parts], axis=0),
        hits=np.sum([part.hits for part in parts], axis=0),
    )
