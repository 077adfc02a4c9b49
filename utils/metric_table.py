"""The metrics of evaluations, one table: EVAL.BEST_METRIC, log, tables, page, loggers, JSON and CSV read it.

Without torch and numpy.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

MEAN_SPECIFICITY = "specificity, mean over classes"  # of two classes it is the balanced accuracy
MAX_SCORED_CLASSES = 256  # see `Evaluator.classify`
OPERATING_POINTS = (90, 95)  # percent
OPERATING = {  # columns of the figures per class, and their titles
    f"{figure}_at_{given}_{point}": f"{figure[:4]}. at {point}% {given[:4]}."
    for figure, given in (("sensitivity", "specificity"), ("specificity", "sensitivity"))
    for point in OPERATING_POINTS
}


@dataclass(frozen=True)
class Metric:
    """A metric, in percent except for the loss. With one label per image, macro recall is the balanced accuracy.

    name, title: in files; on the page and in the log.
    compute: from the `SampleResults` of the evaluation.
    multi_label: whether it is for several labels per image; None: for one label, too.
    sign: 1 if higher is better, -1 if lower is better.
    log_name: in PaddleViT's line of an evaluation, which has no other metrics but the one that decides.
    min_classes: from this number of classes on, the metric is shown: top-5 of 6 classes means little.
    max_classes: with more classes and one label per image, it has no value.
    is_ordinal: the order of the classes counts; it is shown if such a metric decides.
    kind: of the figure, which has a way to its interval (`KINDS`); None: no interval.
    of: the part of the results that the way of the kind reads.
    is_percent: false of the loss.
    """

    name: str
    title: str
    compute: Callable[[Any], float]
    multi_label: bool | None = False
    sign: int = 1
    log_name: str = ""
    min_classes: int = 1
    max_classes: float = math.inf
    is_ordinal: bool = False
    kind: Literal["share", "mean", "worst", "ranking", "agreement"] | None = None
    of: Any = None
    is_percent: bool = True

    def applies(self, num_classes: int, multi_label: bool) -> bool:
        return self.min_classes <= num_classes and (multi_label or num_classes <= self.max_classes)

    def rank(self, values: Mapping[str, float | None]) -> tuple[float, float]:
        """The highest for the best evaluation: by this metric, then by the loss. values: by name of the metric.

        A value that is missing or not finite is -inf: no evaluation is worse.
        """
        signed = ((values.get(self.name), self.sign), (values.get("loss"), -1))
        first, second = (-math.inf if x is None or not math.isfinite(x) else sign * x for x, sign in signed)
        return first, second

    def gain(self, new: Any, old: Any) -> float:
        """By how much one `SampleResults` is better than another one."""
        return self.sign * (self.compute(new) - self.compute(old))

    def text(self, value: float | None, unit: str = "%") -> str:
        """'97.83%', a loss '0.0931', '' for no value, 'undefined' for a metric that is NaN. unit: but of the loss."""
        if value is None:
            return ""
        if not self.is_percent:
            return f"{value:.4f}"
        return "undefined" if math.isnan(value) else f"{value:.2f}{unit}"


METRICS = {
    metric.name: metric
    for metric in (
        Metric(
            "loss",
            "loss",
            lambda results: results.mean_loss,
            None,
            sign=-1,
            log_name="Loss",
            kind="share",
            of=lambda results: results.loss_parts(),
            is_percent=False,
        ),
        Metric(
            "top1",
            "top-1",
            lambda results: results.accuracy(1),
            log_name="Acc@1",
            kind="share",
            of=lambda results: results.top_k_parts(1),
        ),
        Metric(
            "top5",
            "top-5",
            lambda results: results.accuracy(5),
            log_name="Acc@5",
            min_classes=10,
            kind="share",
            of=lambda results: results.top_k_parts(5),
        ),
        Metric(
            "mean_ap",
            "mean AP",
            lambda results: results.ranking.mean_average_precision,
            True,
            log_name="mAP",
            kind="ranking",
            of="average_precision",
        ),
        Metric("macro_f1", "macro F1", lambda results: results.per_class.macro("f1"), None, kind="mean", of="f1"),
        Metric(
            "balanced_accuracy",
            "balanced accuracy",
            lambda results: results.per_class.macro("recall"),
            kind="mean",
            of="recall",
        ),
        Metric("min_recall", "minimum recall", lambda results: results.per_class.min_recall, kind="worst", of="recall"),
        Metric(
            "auroc",
            "AUROC",
            lambda results: results.ranking.mean_auroc,
            None,
            max_classes=MAX_SCORED_CLASSES,
            kind="ranking",
            of="auroc",
        ),
        Metric(
            "specificity",
            MEAN_SPECIFICITY,
            lambda results: results.per_class.mean_specificity,
            None,
            kind="mean",
            of="specificity",
        ),
        Metric(
            "quadratic_kappa",
            "quadratic kappa",
            lambda results: results.weighted_kappa(2),
            is_ordinal=True,
            kind="agreement",
            of=2,
        ),
        Metric(
            "linear_kappa",
            "linear kappa",
            lambda results: results.weighted_kappa(1),
            is_ordinal=True,
            kind="agreement",
            of=1,
        ),
        Metric(
            "micro_f1",
            "micro F1",
            lambda results: results.f1_of_labels(None),
            True,
            kind="share",
            of=lambda results: results.f1_parts(None),
        ),
        Metric(
            "sample_f1",
            "F1 per image",
            lambda results: results.f1_of_labels(1),
            True,
            kind="share",
            of=lambda results: results.f1_parts(1),
        ),
        Metric(
            "precision",
            "macro precision",
            lambda results: results.per_class.macro("precision"),
            None,
            kind="mean",
            of="precision",
        ),
        Metric(
            "recall", "macro recall", lambda results: results.per_class.macro("recall"), True, kind="mean", of="recall"
        ),
        Metric("ece", "calibration error", lambda results: results.calibration_error, None, sign=-1),
    )
}
MetricName = Literal[*METRICS]  # type: ignore[valid-type]
_OLD_NAMES = {"f1": "macro_f1", "recall": "balanced_accuracy"}  # keys of JSON files


def with_old_names(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values by name, of some metrics also by the keys that earlier versions wrote."""
    missing = {old: name for old, name in _OLD_NAMES.items() if values.get(old) is None}
    return dict(values) | {old: values[name] for old, name in missing.items() if name in values}


def metrics_of(multi_label: bool) -> list[Metric]:
    """The metrics of data with several labels per image, or with one."""
    return [metric for metric in METRICS.values() if metric.multi_label in (None, multi_label)]


def best_metric(chosen: object, multi_label: bool) -> Metric:
    """The metric that decides which evaluation is the best: `EVAL.BEST_METRIC`, by default mean AP or top-1."""
    return METRICS.get(str(chosen)) or METRICS["mean_ap" if multi_label else "top1"]
