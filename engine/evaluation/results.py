"""The results of an evaluation, one entry per sample, and their figures: per class, confusions, calibration, mistakes.

All figures are in percent. Legend: B images per batch, N samples, K ranked classes, C classes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from configs.schema.operating_point import Decision, OperatingPoint
from configs.yaml_io import Values
from datasets.batch import PADDING, is_padding
from datasets.sources.samples import UNKNOWN, Samples, has_label, is_multi_hot
from engine.evaluation.calibration import Calibration, calibration, choose_temperature, temper
from engine.evaluation.ranking import (
    RankingFigures,
    divide,
    mean_defined,
    points_at,
    rank_labels,
    rank_samples,
    read_labels,
    threshold_at,
    to_finite,
)
from engine.progress import Metrics
from utils.metric_table import OPERATING, Metric, best_metric, metrics_of

TOP_K = 5
Fields = dict[str, Tensor]  # of `SampleResults`, (B, ...) of a batch


def score_classes(logits: Tensor, targets: Tensor, top_k: int) -> Fields:
    """The fields of `SampleResults` for a batch: logits float32 (B, C), multi-hot targets int8 (B, C) -> (B, ...).

    The loss is binary cross-entropy, the mean over the known classes, without label smoothing and class weights.

    Targets int64 (B,) mean images without labels, which are only predicted: they have no loss.
    """
    labels = rank_labels(logits, top_k)
    ranked = {
        "targets": targets,
        "labels": labels.int(),
        "probabilities": logits.gather(-1, labels).sigmoid(),
        "scores": logits,
    }
    if not is_multi_hot(targets):
        return ranked | {"losses": torch.zeros(len(logits), device=logits.device)}
    losses = F.binary_cross_entropy_with_logits(logits, targets.clamp(min=0).float(), reduction="none")
    is_unknown = targets == UNKNOWN
    ratio = logits.shape[-1] / (~is_unknown).sum(-1).clamp(min=1)  # 1 if all are known
    losses = losses.masked_fill(is_unknown, 0).mean(-1) * ratio
    return ranked | {"losses": losses.masked_fill(targets[:, 0] == PADDING, 0)}


def choose_threshold(results: "SampleResults", point: OperatingPoint) -> float | None:
    """The threshold that reaches the goal, with the highest other figure.

    None if the goal is reached only with a sensitivity or a specificity of 0, or without samples of both kinds.
    """
    every, figure, other, is_possible = points_at(point, *results.of_class(point.label))
    if not is_possible.any():
        return None
    return threshold_at(every, np.lexsort((figure, other, is_possible))[-1])


@dataclass(frozen=True)
class SampleResults:
    """The results of N samples in the order of the data.

    targets: int64 (N,), the labels; with several labels per sample int8 (N, C), also `UNKNOWN`. `PADDING` for a
        sample that could not be read.
    labels: int32 (N, K), the classes with the highest logits, the highest first; meaningless without a target.
    probabilities: float32 (N, K), their softmax; with several labels their sigmoid.
    losses: float32 (N,), cross-entropy in nats; with several labels binary cross-entropy, the mean over the classes.
    errors: the reason for each sample that could not be read, by its index.
    scores: float32 (N, C), the `log_odds`, or with several labels the logits; see `Evaluator.classify`.
    thresholds: float64 (C,), with several labels: the logit from which on a class is predicted; None: the ones for the
        highest F1 of each class on these samples.
    logits: float16 (N, C), only on request, at most ±65504: also in place of -inf, the logit of a masked class.
    groups: str (N,), with DATA.GROUPS: the name of the group of each sample.
    temperature: the divisor of the logits of `calibrated`. multi_label: of samples without labels.
    of_folds: `calibrated` of samples with several temperatures.
    point: EVAL.OPERATING_POINT; unless it is chosen, its thresholds are the ones of these samples.
    unit: what a sample is, in messages: images, or groups of `mean_by_group`.
    lacks_groups: with DATA.GROUPS, the groups are not known: the samples may depend on each other, without intervals.
    """

    targets: np.ndarray
    labels: np.ndarray
    probabilities: np.ndarray
    losses: np.ndarray
    errors: dict[int, str] = field(default_factory=dict)
    scores: np.ndarray | None = None
    logits: np.ndarray | None = None
    thresholds: np.ndarray | None = None
    groups: np.ndarray | None = None
    temperature: float = 1.0
    multi_label: bool = False
    of_folds: "SampleResults | None" = None
    point: OperatingPoint | None = None
    unit: str = "images"
    lacks_groups: bool = False

    def take(self, rows: np.ndarray) -> "SampleResults":
        """The results of the samples at `rows` (M,), without the reasons of unreadable ones."""
        arrays = {name: getattr(self, name) for name in _PER_SAMPLE}
        taken: Values = {name: array[rows] for name, array in arrays.items() if array is not None}
        return replace(self, errors={}, **taken)

    @cached_property
    def calibrated(self) -> "SampleResults":
        """The results with the scores, probabilities and losses of logits / temperature, which users see."""
        if self.of_folds or self.temperature == 1:
            return self.of_folds or self
        assert self.scores is not None
        scores = temper(self.scores, self.temperature, self.multi_label or is_multi_hot(self.targets))
        probabilities = torch.from_numpy(np.take_along_axis(scores, self.labels, 1)).sigmoid().numpy()
        losses = results_of_scores(self.targets, scores).losses
        thresholds = None if self.thresholds is None else self.thresholds / self.temperature
        return replace(
            self,
            scores=scores,
            probabilities=probabilities,
            losses=losses,
            thresholds=thresholds,
            temperature=1.0,
        )

    @property
    def readable(self) -> np.ndarray:
        """The indices of the samples that were read, int64 (M,)."""
        return np.flatnonzero(~is_padding(self.targets))

    def hits(self, top_k: int) -> np.ndarray:
        """Returns whether the target is among the first `top_k` classes, bool (N,)."""
        return (self.labels[:, :top_k] == self.targets[:, None]).any(axis=1)

    @cached_property
    def ranking(self) -> RankingFigures:
        """All figures are NaN without scores."""
        if self.scores is None:
            unknown = np.full((len(OPERATING), 1), np.nan)
            return RankingFigures(unknown[0], unknown[0], unknown[0], unknown)
        return rank_samples(self.targets, self.scores, self.readable)

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

    def f1_parts(self, axis: int | None) -> tuple[np.ndarray, np.ndarray]:
        """What each readable sample adds to the numerator and the denominator of a figure, float64 (M,), (M,): of F1 of
        all labels together (micro), or with axis 1 of the mean over the samples, of predictions with several.

        0 for a sample without true and predicted labels, as in scikit-learn and timm.
        """
        targets = self.targets[self.readable]
        is_known = targets != UNKNOWN
        is_true = targets > 0
        is_predicted = self.predicted[self.readable] & is_known
        hits = 2.0 * (is_true & is_predicted).sum(1)
        labels = is_true.sum(1) + is_predicted.sum(1)
        return (hits, labels) if axis is None else (hits / np.maximum(labels, 1), is_known.any(1))

    def top_k_parts(self, top_k: int) -> tuple[np.ndarray, np.ndarray]:
        """As `f1_parts`, of the accuracy."""
        hits = self.hits(top_k)[self.readable]
        return hits, np.ones(len(hits))

    def loss_parts(self) -> tuple[np.ndarray, np.ndarray]:
        """As `f1_parts`, of the mean loss over the samples, or over their known cells, in the order of the data."""
        rows = self.readable
        known = np.ones(len(rows))
        if is_multi_hot(self.targets):
            known = (self.targets[rows] != UNKNOWN).mean(1)
        return self.losses[rows] * known, known

    def weighted_kappa(self, power: int) -> float:
        """Cohen's kappa (1968), percent: disagreements cost |true - predicted| ** power, 1: linear, 2: quadratic.

        The labels are the grades. NaN if chance cannot disagree, as with one class.
        """
        figures = self.per_class
        readable = self.readable
        # Sums of whole numbers, which float64 has exactly: 0 where the agreement is the one by chance.
        number = len(readable)
        true = figures.count
        predicted = figures.predicted
        observed = number * np.sum(np.abs(self.targets[readable] - self.labels[readable, 0]).astype(float) ** power)
        if power == 1:
            below = np.cumsum(true)
            below_predicted = np.cumsum(predicted)
            by_chance = float(below @ (number - below_predicted) + below_predicted @ (number - below))
        else:
            grades = np.arange(len(true), dtype=float)
            by_chance = float(number * ((true + predicted) @ grades**2) - 2 * (true @ grades) * (predicted @ grades))
        return 100 * float(1 - observed / by_chance) if by_chance > 0 else math.nan

    def rows_of_class(self, label: int) -> np.ndarray:
        """The indices of the readable samples of which it is known whether they have the class, int64 (M,)."""
        if not is_multi_hot(self.targets):
            return self.readable
        return self.readable[self.targets[self.readable, label] != UNKNOWN]

    def of_class(self, label: int) -> tuple[np.ndarray, np.ndarray]:
        """Of `rows_of_class`: the scores, float32 (M,), the lowest for NaN, and which have the class, bool (M,)."""
        assert self.scores is not None
        rows = self.rows_of_class(label)
        return to_finite(self.scores[rows, label]), has_label(self.targets[rows], label)

    @cached_property
    def used_point(self) -> OperatingPoint | None:
        """The operating point with its thresholds, of images and of groups."""
        if self.point is None or self.point.is_chosen:
            return self.point
        of_groups = None
        if self.groups is not None:
            of_groups = choose_threshold(mean_by_group(self.calibrated), self.point)
        own = choose_threshold(self.calibrated, self.point)
        chosen = {"is_chosen": True, "threshold": own, "group_threshold": of_groups}
        return self.point.model_copy(update=chosen)

    def value(self, metric: Metric) -> float:
        """In percent except for the loss. A sample was read."""
        of = metric.of
        match metric.kind:
            case "share":
                if (self.targets[self.readable] == UNKNOWN).all():
                    return math.nan
                parts, sizes = of(self)
                return (100 if metric.is_percent else 1) * float(parts.sum()) / float(sizes.sum() or 1)
            case "mean":
                return self.per_class.macro(of)
            case "worst":
                return float(np.nanmin(getattr(self.per_class, of)))
            case "ranking":
                return mean_defined(getattr(self.ranking, of))
            case "agreement":
                return self.weighted_kappa(of)
        return self.calibration_error

    @cached_property
    def per_class(self) -> "ClassFigures":
        """The figures of the classes up to the highest label that occurs; with several labels per sample, of all."""
        return class_figures(self, 1 + int(max(self.targets.max(), self.labels.max())))

    @cached_property
    def calibrations(self) -> list[Calibration]:
        """Of the predicted classes; with several labels per sample of each label."""
        if not is_multi_hot(self.targets):
            return [calibration(self.probabilities[self.readable, 0], self.hits(1)[self.readable])]
        assert self.scores is not None
        found = []
        for _, scores, is_true, is_known in read_labels(self.targets, self.scores, self.readable):
            probabilities = torch.from_numpy(scores[is_known]).sigmoid().numpy()
            found.append(calibration(probabilities, is_true[is_known]))
        return found

    @property
    def calibration_error(self) -> float:
        """The expected calibration error; with several labels per sample the mean of the labels."""
        return mean_defined(np.array([one.error for one in self.calibrations]))

    @property
    def best_temperature(self) -> float:
        """The T of `choose_temperature`; 1 without scores, and unless the calibration error is lower with T.

        Of many scores, evenly spaced samples choose.
        """
        if self.scores is None:
            return 1.0
        own = self.take(self.readable[:: 1 + self.scores.size // _MAX_CELLS])
        assert own.scores is not None
        chosen = choose_temperature(own.scores, own.targets)
        tempered = replace(own, temperature=chosen).calibrated
        return chosen if tempered.calibration_error < own.calibration_error else 1.0

    def metrics(self, best: str | None = None) -> Metrics:
        """All metrics that apply; a sample was read. best: the one that decides; None: mean AP or top-1."""
        multi_label = is_multi_hot(self.targets)
        values = {metric.name: self.value(metric) for metric in metrics_of(multi_label)}
        thresholds = tuple(self.used_thresholds.tolist()) if multi_label else None
        decision = Decision(thresholds, self.used_point, temperature=self.temperature)
        return Metrics(values, len(self.readable), best=best_metric(best, multi_label).name, decision=decision)


_MAX_CELLS = 250_000  # scores that choose the temperature
_PER_SAMPLE = ("targets", "labels", "probabilities", "losses", "scores", "logits", "groups")


def join_results(parts: Sequence[SampleResults]) -> SampleResults:
    """The results of all samples of the parts, such as folds, without the reasons of unreadable ones."""
    arrays = {name: [getattr(part, name) for part in parts] for name in _PER_SAMPLE}
    joined: Values = {name: np.concatenate(found) for name, found in arrays.items() if found[0] is not None}
    return replace(parts[0], errors={}, **joined)


def mean_by_group(results: SampleResults) -> SampleResults:
    """The results of each group, in the order of the sorted names of `groups`, which must be known, as `scores`.

    The probability of a class is the mean over the readable samples of the group. With several labels per sample, each
    label is decided alone: it is unknown unless all samples of which it is known agree. With one, a group of different
    labels has no target, as one without a readable sample; `errors` has the reason. With `groups` of the operating
    point, a group with a sample of its class has this class.
    """
    assert results.scores is not None and results.groups is not None
    names, first, group_of = np.unique(results.groups, return_index=True, return_inverse=True)
    readable = results.readable
    number = group_of[readable]
    scores = torch.from_numpy(results.scores[readable]).double()
    sums = np.full((2, len(names), scores.shape[1]), -np.inf)  # of p and of 1 - p, their logarithms
    for logs, odds in zip(sums, (scores, -scores), strict=True):
        np.logaddexp.at(logs, number, F.logsigmoid(odds).numpy())
    means = np.zeros(sums[0].shape, np.float32)
    filled = np.unique(number)
    means[filled] = sums[0, filled] - sums[1, filled]  # -inf if p is 0 in all images, as of a masked class
    own = results.targets[readable]
    targets = np.full_like(results.targets[first], UNKNOWN)
    np.maximum.at(targets, number, own)
    differs = (targets[number] != own) & (own != UNKNOWN)
    errors = dict.fromkeys(np.setdiff1d(np.arange(len(names)), number).tolist(), "no image can be read")
    point = results.point
    if point and point.groups and is_multi_hot(own):
        differs[:, point.label] = False  # the maximum is right
    elif point and point.groups:
        has_class = number[own == point.label]
        targets[has_class] = point.label
        differs &= ~np.isin(number, has_class)
    if is_multi_hot(own):
        rows, labels = np.nonzero(differs)
        targets[number[rows], labels] = UNKNOWN
    else:
        errors |= dict.fromkeys(number[differs].tolist(), MIXED_LABELS)
    targets[list(errors)] = PADDING
    found = results_of_scores(targets, means)
    of_groups = point and point.model_copy(update={"threshold": point.group_threshold})
    thresholds = results.used_thresholds if is_multi_hot(own) else None  # of the samples
    return replace(found, errors=errors, thresholds=thresholds, point=of_groups, unit="groups")


MIXED_LABELS = "its images have different labels"


def results_of_scores(targets: np.ndarray, scores: np.ndarray) -> SampleResults:
    """The results of samples of which only these fields are known."""
    values = torch.from_numpy(scores)
    labels = torch.from_numpy(targets)
    ranked = score_classes(values, labels, TOP_K)
    if not is_multi_hot(labels):
        own = values.gather(1, labels.clamp(min=0)[:, None])[:, 0]
        ranked["losses"] = F.softplus(-own).masked_fill(labels == PADDING, 0)
    arrays: Values = {name: array.numpy() for name, array in ranked.items()}
    return SampleResults(**arrays)


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

    def macro(self, name: str) -> float:
        """The mean of a figure over the classes with samples; an undefined precision counts as 0."""
        values: np.ndarray = getattr(self, name)[self.count > 0]
        return mean_defined(np.nan_to_num(values) if name == "precision" else values)


def class_figures(results: SampleResults, num_classes: int) -> ClassFigures:
    """Precision, recall and F1 as scikit-learn defines them; recall is the top-1 accuracy of the class.

    With several labels per sample, `num_classes` and top-5 mean nothing.
    """
    readable = results.readable
    targets = results.targets[readable]
    labels = results.labels[readable, 0]
    if is_multi_hot(targets):
        is_known = targets != UNKNOWN
        chosen = results.predicted[readable] & is_known
        count, predicted, hits = (x.sum(axis=0) for x in (targets > 0, chosen, chosen & (targets > 0)))
        return figures_of_counts(count, predicted, hits, hits, is_known.sum(axis=0))
    rows = (targets, labels, labels[labels == targets])
    count, predicted, hits = (np.bincount(x, minlength=num_classes) for x in rows)
    top5_hits = np.bincount(targets, results.hits(5)[readable], minlength=num_classes)
    return figures_of_counts(count, predicted, hits, top5_hits, len(targets))


def figures_of_counts(
    count: np.ndarray, predicted: np.ndarray, hits: np.ndarray, top5_hits: np.ndarray, number: int | np.ndarray
) -> ClassFigures:
    """The figures of classes from their numbers of samples (C,), of `number` ones in all, or of each class."""
    others = number - count
    return ClassFigures(
        count=count,
        predicted=predicted,
        precision=100 * divide(hits, predicted),
        recall=100 * divide(hits, count),
        f1=100 * divide(2 * hits, np.where(count > 0, count + predicted, 0)),
        specificity=100 * divide(others - predicted + hits, others),
        top5=100 * divide(top5_hits, count),
    )


def classes_without_images(results: SampleResults | None, samples: Samples) -> list[str]:
    """The classes of whose samples none could be read; none without results, and with several labels per image."""
    targets = samples.targets
    if not results or is_multi_hot(targets):
        return []
    return [samples.class_names[label] for label in np.setdiff1d(targets, targets[results.readable])]


def name_of_target(target: np.ndarray, names: Sequence[str]) -> str:
    """The class of a target (), or the classes of a multi-hot target (C,) with ' | ' between them."""
    labels: list[int] = [int(target)] if target.ndim == 0 else np.flatnonzero(target > 0).tolist()
    return " | ".join(names[label] for label in labels)


MAX_THRESHOLDS = 100  # of the coverage
NUM_MISTAKES = 16


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


def coverage(results: SampleResults) -> np.ndarray:
    """Confidence, coverage and accuracy by threshold, float64 (thresholds, 3), the highest threshold first.

    Coverage is the share of the samples whose confidence is at least the threshold, accuracy the share of these that
    are right (El-Yaniv and Wiener, 2010). Samples of equal confidence are covered together; the last row covers all.
    """
    readable = results.readable
    confidence = np.nan_to_num(results.probabilities[readable, 0].astype(np.float64))
    order = np.argsort(-confidence, kind="stable")
    confidence = confidence[order]
    hits = np.cumsum(results.hits(1)[readable][order])
    last = np.append(np.flatnonzero(np.diff(confidence)), len(confidence) - 1)  # of equal ones
    last = last[np.unique(np.searchsorted(last, np.linspace(last[0], last[-1], MAX_THRESHOLDS)))]
    return 100 * np.stack([confidence[last], (last + 1) / len(confidence), hits[last] / (last + 1)], axis=1)


def worst_mistakes(results: SampleResults) -> list[int]:
    """The indices of the most confident wrong samples, or with several labels of the highest losses, worst first."""
    readable = results.readable
    if is_multi_hot(results.targets):
        order = np.argsort(-np.nan_to_num(results.losses[readable], nan=np.inf), kind="stable")
        return readable[order][:NUM_MISTAKES].tolist()
    wrong = readable[~results.hits(1)[readable]]
    order = np.argsort(-results.probabilities[wrong, 0], kind="stable")
    return wrong[order][:NUM_MISTAKES].tolist()
