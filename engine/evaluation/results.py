"""The results of an evaluation, one entry per sample, and their figures: per class, confusions, calibration, mistakes.

All figures are in percent. Legend: B images per batch, N samples, K ranked classes, C classes.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import NormalDist
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from datasets.batch import PADDING
from engine.progress import Metrics
from utils.metric_table import OPERATING, OPERATING_POINTS, Metric, best_metric, metrics_of


def score_classes(logits: torch.Tensor, targets: torch.Tensor, top_k: int) -> dict[str, torch.Tensor]:
    """The fields of `SampleResults` for a batch: logits float32 (B, C), multi-hot targets int8 (B, C) -> (B, ...).

    The loss is binary cross-entropy, the mean over the classes, without label smoothing and class weights.

    Targets int64 (B,) mean images without labels, which are only predicted: they have no loss.
    """
    best = logits.topk(min(top_k, logits.shape[-1]), dim=-1)
    ranked = {
        "targets": targets,
        "labels": best.indices.int(),
        "probabilities": best.values.sigmoid(),
        "scores": logits,
    }
    if targets.ndim == 1:
        return ranked | {"losses": torch.zeros(len(logits), device=logits.device)}
    losses = F.binary_cross_entropy_with_logits(logits, targets.clamp(min=0).float(), reduction="none").mean(-1)
    return ranked | {"losses": losses.masked_fill(targets[:, 0] == PADDING, 0)}


def log_odds(logits: torch.Tensor) -> torch.Tensor:
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

    @property
    def mean_auroc(self) -> float:
        return mean_defined(self.auroc)


def rank_samples(targets: np.ndarray, scores: np.ndarray) -> RankingFigures:
    """The figures of each class.

    targets: labels (N,) or multi-hot (N, C), without padding. scores: float32 (N, C), any increasing function of the
    probability. A score that is NaN is the lowest.
    """
    precision, auroc, threshold = (np.full(scores.shape[1], value) for value in (np.nan, np.nan, 0.0))
    operating = np.full((len(OPERATING), scores.shape[1]), np.nan)
    lowest, number = float(np.finfo(np.float32).min), len(scores)
    for label in np.unique(targets) if targets.ndim == 1 else np.flatnonzero(targets.any(axis=0)):
        values = np.nan_to_num(scores[:, label], nan=lowest)
        is_own = targets == label if targets.ndim == 1 else targets[:, label] > 0
        every, own, others = np.sort(values), np.sort(values[is_own]), np.sort(values[~is_own])
        positives, negatives = len(own), number - len(own)
        # A threshold is the score of a positive sample: samples with equal scores are selected together.
        below, up_to = (np.searchsorted(every, own, side) for side in ("left", "right"))
        selected, hits = number - below, positives - np.searchsorted(own, own)
        precision[label] = 100 * np.mean(hits / selected)
        best = positives - 1 - np.argmax((hits / (selected + positives))[::-1])  # of equal ones the highest threshold
        chosen, number_below = own[best], below[best]
        if number_below:
            threshold[label] = np.mean([every[number_below - 1], chosen], dtype=np.float64)
        else:  # a step below the lowest score of all
            threshold[label] = np.nextafter(chosen, lowest, dtype=np.float32)
        if negatives:  # twice the sum of the ranks of the positive samples: Mann and Whitney, 1947
            doubled = np.sum(below + up_to + 1) - positives * (positives + 1)
            auroc[label] = 100 * doubled / (2 * positives * negatives)
            lowest_own = [own[positives + -point * positives // 100] for point in OPERATING_POINTS]
            highest_other = [others[-(-point * negatives // 100) - 1] for point in OPERATING_POINTS]
            sensitivity = 1 - np.searchsorted(own, highest_other, "right") / positives
            operating[:, label] = 100 * np.append(sensitivity, np.searchsorted(others, lowest_own) / negatives)
    return RankingFigures(precision, auroc, threshold, operating)


def mean_defined(values: np.ndarray) -> float:
    """The mean of the values that are not NaN; NaN without any."""
    defined = values[~np.isnan(values)]
    return float(defined.mean()) if len(defined) else math.nan


@dataclass(frozen=True)
class SampleResults:
    """The results of N samples in the order of the data.

    targets: int64 (N,), the labels; with several labels per sample int8 (N, C). `PADDING` for a sample that could not
        be read.
    labels: int32 (N, K), the classes with the highest logits, the highest first; meaningless without a target.
    probabilities: float32 (N, K), their softmax; with several labels their sigmoid.
    losses: float32 (N,), cross-entropy in nats; with several labels binary cross-entropy, the mean over the classes.
    errors: the reason for each sample that could not be read, by its index.
    scores: float32 (N, C), the `log_odds`, or with several labels the logits; see `Evaluator.classify`.
    thresholds: float64 (C,), with several labels: the logit from which on a class is predicted; None: the ones for the
        highest F1 of each class on these samples.
    logits: float16 (N, C), only on request, at most ±65504: also in place of -inf, the logit of a masked class.
    """

    targets: np.ndarray
    labels: np.ndarray
    probabilities: np.ndarray
    losses: np.ndarray
    errors: dict[int, str] = field(default_factory=dict)
    scores: np.ndarray | None = None
    logits: np.ndarray | None = None
    thresholds: np.ndarray | None = None

    @property
    def readable(self) -> np.ndarray:
        """The indices of the samples that were read, int64 (M,)."""
        return np.flatnonzero((self.targets if self.targets.ndim == 1 else self.targets[:, 0]) != PADDING)

    def hits(self, top_k: int) -> np.ndarray:
        """Returns whether the target is among the first `top_k` classes, bool (N,)."""
        return (self.labels[:, :top_k] == self.targets[:, None]).any(axis=1)

    @cached_property
    def ranking(self) -> RankingFigures:
        """All figures are NaN without scores."""
        if self.scores is None:
            unknown = np.full((len(OPERATING), 1), np.nan)
            return RankingFigures(unknown[0], unknown[0], unknown[0], unknown)
        return rank_samples(self.targets[self.readable], self.scores[self.readable])

    @property
    def mean_average_precision(self) -> float:
        """The mean over the classes with positive samples; 0 without any."""
        return float(np.nan_to_num(mean_defined(self.ranking.average_precision)))

    @property
    def used_thresholds(self) -> np.ndarray:
        return self.ranking.threshold if self.thresholds is None else self.thresholds

    @cached_property
    def label_probabilities(self) -> np.ndarray:
        """The sigmoid of each class with several labels per sample, float32 (N, C)."""
        sigmoid: np.ndarray = torch.from_numpy(self.scores).sigmoid().numpy()
        return sigmoid

    @cached_property
    def predicted(self) -> np.ndarray:
        """The predicted classes with several labels per sample, bool (N, C)."""
        return self.scores >= self.used_thresholds

    def f1_of_labels(self, axis: int | None) -> float:
        """F1 of all labels together (micro), or with axis 1 the mean over the samples, of predictions with several.

        0 for a sample without true and predicted labels, as in scikit-learn and timm.
        """
        true, predicted = self.targets[self.readable] > 0, self.predicted[self.readable]
        counts = np.maximum(true.sum(axis) + predicted.sum(axis), 1)
        return 200 * float(np.mean((true & predicted).sum(axis) / counts))

    def weighted_kappa(self, power: int) -> float:
        """Cohen's kappa (1968), percent: disagreements cost |true - predicted| ** power, 1: linear, 2: quadratic.

        The labels are the grades. NaN if chance cannot disagree, as with one class.
        """
        figures, readable = self.per_class, self.readable
        true, predicted = figures.count / len(readable), figures.predicted / len(readable)
        observed = np.mean(np.abs(self.targets[readable] - self.labels[readable, 0]).astype(np.float64) ** power)
        if power == 1:
            below, below_predicted = np.cumsum(true), np.cumsum(predicted)
            by_chance = float(below @ (1 - below_predicted) + below_predicted @ (1 - below))
        else:
            grades = np.arange(len(true))
            by_chance = float((true + predicted) @ grades**2 - 2 * (true @ grades) * (predicted @ grades))
        return 100 * float(1 - observed / by_chance) if by_chance > 0 else math.nan

    @property
    def mean_loss(self) -> float:
        """The mean over the samples that were read, summed in float64 in the order of the data."""
        return float(self.losses[self.readable].astype(np.float64).sum()) / len(self.readable)

    def accuracy(self, top_k: int) -> float:
        """The share of the samples that were read whose target is among the first `top_k` classes, percent."""
        return 100 * float(self.hits(top_k).sum()) / len(self.readable)

    @cached_property
    def per_class(self) -> "ClassFigures":
        """The figures of the classes up to the highest label that occurs; with several labels per sample, of all."""
        return class_figures(self, 1 + int(max(self.targets.max(), self.labels.max())))

    def metrics(self, best: str | None = None) -> Metrics:
        """All metrics that apply, NaN if no sample was read. best: the one that decides; None: mean AP or top-1."""
        samples, multi_label = len(self.readable), self.targets.ndim == 2
        values = {metric.name: metric.compute(self) if samples else np.nan for metric in metrics_of(multi_label)}
        thresholds = tuple(self.used_thresholds.tolist()) if multi_label and samples else None
        return Metrics(values, samples, best=best_metric(best, multi_label).name, thresholds=thresholds)


@dataclass(frozen=True)
class ClassFigures:
    """Figures of each class (C,). count, predicted: samples of the class, and samples for which it was predicted.

    recall is the sensitivity; specificity: the share of the other samples for which the class was not predicted.

    A figure is NaN where it is not defined: precision of a class that was never predicted, specificity of the only
    class, the others of a class without samples.
    """

    count: np.ndarray
    predicted: np.ndarray
    precision: np.ndarray
    recall: np.ndarray
    f1: np.ndarray
    specificity: np.ndarray
    top5: np.ndarray

    @property
    def mean_specificity(self) -> float:
        """The mean over the classes with samples."""
        return mean_defined(self.specificity[self.count > 0])

    def macro(self) -> dict[str, float]:
        """The means of precision, recall and F1 over the classes with samples; an undefined precision counts as 0."""
        present = self.count > 0
        figures = {"precision": self.precision, "recall": self.recall, "f1": self.f1}
        return {name: mean_defined(np.nan_to_num(values[present])) for name, values in figures.items()}

    @property
    def min_recall(self) -> float:
        """The lowest recall of a class with samples."""
        return float(np.nanmin(self.recall))


def class_figures(results: SampleResults, num_classes: int) -> ClassFigures:
    """Precision, recall and F1 as scikit-learn defines them; recall is the top-1 accuracy of the class.

    With several labels per sample, `num_classes` and top-5 mean nothing.
    """
    readable = results.readable
    targets, labels = results.targets[readable], results.labels[readable, 0]
    if targets.ndim == 2:
        chosen = results.predicted[readable]
        count, predicted, hits = (x.sum(axis=0) for x in (targets > 0, chosen, chosen & (targets > 0)))
        top5_hits = hits
    else:
        rows = (targets, labels, labels[labels == targets])
        count, predicted, hits = (np.bincount(x, minlength=num_classes) for x in rows)
        top5_hits = np.bincount(targets, results.hits(5)[readable], minlength=num_classes)
    others = len(targets) - count
    return ClassFigures(
        count=count,
        predicted=predicted,
        precision=100 * divide(hits, predicted),
        recall=100 * divide(hits, count),
        f1=100 * divide(2 * hits, np.where(count > 0, count + predicted, 0)),
        specificity=100 * divide(others - predicted + hits, others),
        top5=100 * divide(top5_hits, count),
    )


def name_of_target(target: np.ndarray, names: Sequence[str]) -> str:
    """The class of a target (), or the classes of a multi-hot target (C,) with ' | ' between them."""
    labels: list[int] = [int(target)] if target.ndim == 0 else np.flatnonzero(target).tolist()
    return " | ".join(names[label] for label in labels)


def divide(numerators: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The quotients; NaN where the count is 0."""
    return np.divide(numerators, counts, out=np.full(len(counts), np.nan), where=counts > 0)


_BLOCKS = 20  # of the jackknife
MIN_RANKED = 10  # images or groups of a class, and of the others, that the jackknife of an AUROC needs


def confidence_interval(
    results: SampleResults, metric: Metric, groups: Iterable[str] | None = None
) -> tuple[list[float] | None, str]:
    """The 95% interval of a metric in percent, of samples that are drawn one by one or, with the groups (N,), by group.

    Wilson's (1927) of a share of n samples, with n = share * (1 - share) / variance. The variance of top-k is the
    clustered one; of another metric a jackknife's that leaves out each of 20 blocks of groups. Of a mean over classes
    and of the worst class, each limit is also at least as far away as the limits of the classes are: the jackknife
    does not see that one image of a class may be right by chance.

    None for a loss, for a value that is not a share, and where too few samples show the variance; then the reason, too.
    """
    readable = results.readable
    units, unit = np.arange(len(readable)), "images"
    if groups is not None:
        units, unit = np.unique(np.array([*groups])[readable], return_inverse=True)[1], "groups"
    number = int(units.max(initial=-1)) + 1
    share = metric.compute(results) / 100 if number else math.nan
    if metric.name == "loss" or not 0 <= share <= 1:
        return None, ""
    if number == 1:
        return None, f"fewer than 2 {unit}"
    freedom = math.inf if groups is None else number - 1
    below = above = 0.0
    if top_k := {"top1": 1, "top5": 5}.get(metric.name):
        sums = np.bincount(units, results.hits(top_k)[readable] - share)
        variance = float(sums @ sums) / len(readable) ** 2
    else:
        with_class, without = _units_of_classes(results, units)
        sides = np.minimum(with_class, without)
        if metric.name == "auroc" and sides[sides > 0].min() < MIN_RANKED:
            return None, f"fewer than {MIN_RANKED} {unit} of a class, or of the others"
        if metric.name == "balanced_accuracy":
            variance = _variance_of_recalls(results, units, with_class)
        else:
            variance, freedom = _jackknife(results, metric, units)
        if math.isnan(variance):
            return None, f"too few {unit} of a class"
        below, above = _limits_of_classes(results, metric, with_class, without)
    n = max(share * (1 - share) / variance, 1.0) if variance > 0 else number
    low, high = _wilson(share, n, 1.96 + 2.4 / freedom)  # Student's t
    limits = max(min(low, share - below), 0.0), min(max(high, share + above), 1.0)
    return [100 * float(limit) for limit in limits], ""


def _wilson(shares: Any, n: Any, z: float = 1.96) -> tuple[Any, Any]:
    """The limits of shares of n samples each; arrays or numbers."""
    middle, width = shares + z**2 / (2 * n), z * np.sqrt(shares * (1 - shares) / n + z**2 / (4 * n**2))
    return (middle - width) / (1 + z**2 / n), (middle + width) / (1 + z**2 / n)


def _units_of_classes(results: SampleResults, units: np.ndarray) -> np.ndarray:
    """The numbers of images or groups with an image of each class, and with one of another class, int64 (2, C).

    units: the number of the image or group of each readable sample, int64 (M,).
    """
    targets = results.targets[results.readable]
    labels = range(len(results.per_class.count))
    has_class = targets.T > 0 if targets.ndim == 2 else (targets == label for label in labels)
    counts = [[np.count_nonzero(np.bincount(units[one])) for one in (is_own, ~is_own)] for is_own in has_class]
    return np.array(counts).T


def _variance_of_recalls(results: SampleResults, units: np.ndarray, with_class: np.ndarray) -> float:
    """The variance of the mean of the recalls, as shares: each class has its own, that of its images or groups.

    It is at least the one of recalls that two more images of mean recall draw to their mean: the images of a class with
    one are always all right or all wrong.
    """
    figures, readable = results.per_class, results.readable
    recalls, counts, is_used = figures.recall / 100, with_class, figures.count > 0
    number, targets = np.count_nonzero(is_used), results.targets[readable]
    sums = np.bincount(units, (results.hits(1)[readable] - recalls[targets]) / figures.count[targets])
    recalls, counts = recalls[is_used], counts[is_used]
    drawn = (recalls * counts + 2 * recalls.mean()) / (counts + 2)
    return float(max(sums @ sums, np.sum(drawn * (1 - drawn) / counts))) / number**2


def _jackknife(results: SampleResults, metric: Metric, units: np.ndarray) -> tuple[float, int]:
    """The variance of a metric, as a share, and its degrees of freedom; NaN if a block leaves it undefined."""
    number = int(units.max()) + 1
    blocks = np.random.default_rng(0).permutation(number)[units] % _BLOCKS
    kept = (results.readable[blocks != block] for block in range(min(number, _BLOCKS)))
    names = ("targets", "labels", "probabilities", "losses", "scores")
    given = {name: array for name in names if (array := getattr(results, name)) is not None}
    parts = (replace(results, **{name: array[rows] for name, array in given.items()}) for rows in kept)
    values = np.array([metric.compute(part) / 100 for part in parts])
    return (len(values) - 1) * float(values.var()), len(values) - 1


def _limits_of_classes(
    results: SampleResults, metric: Metric, with_class: np.ndarray, without: np.ndarray
) -> tuple[float, float]:
    """The distances of a metric from its lower and upper limit that Wilson's limits of the classes alone give it.

    Of a mean by Zou and Donner (2008), who add the squares of the distances. 0 for a metric that is not of classes.
    with_class, without: of `_units_of_classes`.
    """
    figures = results.per_class
    of_classes = {
        "balanced_accuracy": (figures.recall, with_class),
        "min_recall": (figures.recall, with_class),
        "macro_f1": (figures.f1, with_class),
        "mean_ap": (results.ranking.average_precision, with_class),
        "specificity": (figures.specificity, without),
    }
    if metric.name not in of_classes:
        return 0.0, 0.0
    values, counts = of_classes[metric.name]
    is_used = (figures.count > 0) & ~np.isnan(values)
    shares, counts = values[is_used] / 100, counts[is_used]
    if metric.name == "min_recall":  # another class may be the worst one: limits that hold for all classes together
        low, high = _wilson(shares, counts, NormalDist().inv_cdf(1 - 0.025 / len(shares)))
        worst = np.lexsort((counts, shares))[0]  # of equal ones the smallest
        return shares[worst] - low.min(), high[worst] - shares[worst]
    low, high = _wilson(shares, counts)
    below, above = (math.sqrt(np.mean((limit - shares) ** 2) / len(shares)) for limit in (low, high))
    return below, above


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
    """Samples in bins of equal width by their confidence: the probability of the predicted class, or of one label.

    count: int64 (bins,). confidence, accuracy: means of the samples of a bin (bins,); NaN for an empty bin. The
    accuracy of a label is the share of the samples that have it.
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


def calibration(probabilities: np.ndarray, hits: np.ndarray) -> Calibration:
    """probabilities: float (N,), NaN counts as 0. hits: bool (N,), whether the class, or the label, is right."""
    confidence = np.nan_to_num(probabilities.astype(np.float64))
    bins = np.minimum((confidence * NUM_BINS).astype(np.int64), NUM_BINS - 1)
    count = np.bincount(bins, minlength=NUM_BINS)
    means = (100 * divide(np.bincount(bins, values, NUM_BINS), count) for values in (confidence, hits))
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
