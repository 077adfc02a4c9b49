"""The results of an evaluation, one entry per sample.

Legend: N samples, K ranked classes, C classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from datasets.batch import PADDING
from engine.evaluation.multi_label import average_precisions, mean_average_precision
from utils.metrics import Metrics


@dataclass(frozen=True)
class SampleResults:
    """The results of N samples in the order of the data.

    targets: int64 (N,), the labels; with several labels per sample int8 (N, C). `PADDING` for a sample that could not
        be read.
    labels: int32 (N, K), the classes with the highest logits, the highest first; meaningless without a target.
    probabilities: float32 (N, K), their softmax; with several labels their sigmoid.
    losses: float32 (N,), cross-entropy in nats; with several labels binary cross-entropy, the mean over the classes.
    errors: the reason for each sample that could not be read, by its index.
    scores: float32 (N, C), the logits, only with several labels.
    """

    targets: np.ndarray
    labels: np.ndarray
    probabilities: np.ndarray
    losses: np.ndarray
    errors: dict[int, str] = field(default_factory=dict)
    scores: np.ndarray | None = None

    @property
    def readable(self) -> np.ndarray:
        """The indices of the samples that were read, int64 (M,)."""
        return np.flatnonzero((self.targets if self.targets.ndim == 1 else self.targets[:, 0]) != PADDING)

    def hits(self, top_k: int) -> np.ndarray:
        """Returns whether the target is among the first `top_k` classes, bool (N,)."""
        return (self.labels[:, :top_k] == self.targets[:, None]).any(axis=1)

    @cached_property
    def average_precisions(self) -> np.ndarray:
        """The average precision of each class (C,), percent, with several labels per sample; NaN without samples."""
        assert self.scores is not None
        return average_precisions(self.targets[self.readable], self.scores[self.readable])

    def metrics(self) -> Metrics:
        """Means over the samples that were read, summed in float64 in the order of the data.

        With several labels per sample, the mean average precision takes the place of top-1 and top-5.
        """
        samples = len(self.readable)
        count = max(samples, 1)
        loss = float(self.losses[self.readable].astype(np.float64).sum()) / count
        if self.scores is not None:
            return Metrics(loss, None, None, samples, mean_ap=mean_average_precision(self.average_precisions))
        top1, top5 = (100 * float(self.hits(top_k).sum()) / count for top_k in (1, 5))
        return Metrics(loss, top1, top5, samples)


def name_of_target(target: np.ndarray, names: Sequence[str]) -> str:
    """The class of a target (), or the classes of a multi-hot target (C,) with ' | ' between them."""
    labels: list[int] = [int(target)] if target.ndim == 0 else np.flatnonzero(target).tolist()
    return " | ".join(names[label] for label in labels)
