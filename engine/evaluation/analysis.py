"""Figures per class, confused classes, calibration and worst mistakes, from the results of an evaluation.

All figures are in percent. Legend: N samples, C classes.
"""

from dataclasses import dataclass

import numpy as np

from engine.evaluation.results import SampleResults, divide

NUM_BINS = 15  # of the confidence (Guo et al., 2017)
MAX_THRESHOLDS = 100  # of the coverage
NUM_MISTAKES = 16  # of each kind
HIGHEST_LOSS, MOST_CONFIDENT = "highest_loss", "most_confident"


def confused_pairs(results: SampleResults, num_classes: int) -> np.ndarray:
    """int64 (pairs, 3): true class, predicted class and count of each pair that occurs, equal classes included.

    The most frequent first, equally frequent ones in the order of the classes. Unlike a matrix, the pairs of 20,000
    classes fit into memory.
    """
    readable = results.readable
    codes = results.targets[readable] * num_classes + results.labels[readable, 0]
    pairs, counts = np.unique(codes, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    return np.stack([pairs // num_classes, pairs % num_classes, counts], axis=1)[order]


@dataclass(frozen=True)
class Calibration:
    """The samples in bins of equal width by their confidence, the probability of the predicted class.

    count: int64 (bins,). confidence, accuracy: means of the samples of a bin (bins,); NaN for an empty bin.
    """

    count: np.ndarray
    confidence: np.ndarray
    accuracy: np.ndarray

    @property
    def edges(self) -> np.ndarray:
        """The limits of the bins (bins + 1,)."""
        return np.linspace(0, 100, len(self.count) + 1)

    @property
    def error(self) -> float:
        """Expected calibration error (ECE): the mean over the samples of |accuracy - confidence| of their bin."""
        gaps = np.abs(np.nan_to_num(self.accuracy - self.confidence))
        return float((self.count * gaps).sum() / self.count.sum())


def calibration(results: SampleResults) -> Calibration:
    readable = results.readable
    confidence = np.nan_to_num(results.probabilities[readable, 0].astype(np.float64))
    bins = np.minimum((confidence * NUM_BINS).astype(np.int64), NUM_BINS - 1)
    count = np.bincount(bins, minlength=NUM_BINS)
    means = [
        100 * divide(np.bincount(bins, values, minlength=NUM_BINS), count)
        for values in (confidence, results.hits(1)[readable])
    ]
    return Calibration(count, *means)


def coverage(results: SampleResults) -> np.ndarray:
    """Confidence, coverage and accuracy by threshold, float64 (thresholds, 3), the highest threshold first.

    Coverage is the share of the samples whose confidence is at least the threshold, accuracy the share of these that
    are right (El-Yaniv and Wiener, 2010). Samples of equal confidence are covered together; the last row covers all.
    """
    readable = results.readable
    confidence = np.nan_to_num(results.probabilities[readable, 0].astype(np.float64))
    order = np.argsort(-confidence, kind="stable")
    confidence, hits = confidence[order], np.cumsum(results.hits(1)[readable][order])
    last = np.append(np.flatnonzero(np.diff(confidence)), len(confidence) - 1)  # of equal ones
    last = last[np.unique(np.searchsorted(last, np.linspace(last[0], last[-1], MAX_THRESHOLDS)))]
    return 100 * np.stack([confidence[last], (last + 1) / len(confidence), hits[last] / (last + 1)], axis=1)


def worst_mistakes(results: SampleResults) -> list[tuple[str, int]]:
    """(kind, index) of the samples with the highest loss, and of the most confident wrong ones, the worst first."""
    readable = results.readable
    wrong = readable[~results.hits(1)[readable]]
    by_confidence = wrong[np.argsort(-results.probabilities[wrong, 0], kind="stable")]
    return highest_losses(results) + [(MOST_CONFIDENT, int(index)) for index in by_confidence[:NUM_MISTAKES]]


def highest_losses(results: SampleResults) -> list[tuple[str, int]]:
    """(kind, index) of the samples with the highest loss, the highest first."""
    readable = results.readable
    by_loss = readable[np.argsort(-np.nan_to_num(results.losses[readable], nan=np.inf), kind="stable")]
    return [(HIGHEST_LOSS, int(index)) for index in by_loss[:NUM_MISTAKES]]
