"""The metrics of evaluations, one table: EVAL.BEST_METRIC, log, tables, page, loggers, JSON and CSV read it.

Without torch and numpy.
"""

import math
from collections.abc import Mapping
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
    kind: of the figure, which has a way to its value (`SampleResults.value`) and one to its interval (`KINDS`); None:
        the calibration error, without interval.
    of: the part of the results that these ways read.
    multi_label: whether it is for several labels per image; None: for one label, too.
    sign: 1 if higher is better, -1 if lower is better.
    log_name: in PaddleViT's line of an evaluation, which has no other metrics but the one that decides.
    min_classes: from this number of classes on, the metric is shown: top-5 of 6 classes means little.
    max_classes: with more classes and one label per image, it has no value.
    is_ordinal: the order of the classes counts; it is shown if such a metric decides.
    is_percent: false of the loss.
    """

    name: str
    title: str
    kind: Literal["share", "mean", "worst", "ranking", "agreement"] | None = None
    of: Any = None
    multi_label: bool | None = False
    sign: int = 1
    log_name: str = ""
    min_classes: int = 1
    max_classes: float = math.inf
    is_ordinal: bool = False
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
        return self.sign * (new.value(self) - old.value(self))

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
            "share",
            lambda results: results.loss_parts(),
            None,
            sign=-1,
            log_name="Loss",
            is_percent=False,
        ),
        Metric("top1", "top-1", "share", lambda results: results.top_k_parts(1), log_name="Acc@1"),
        Metric("top5", "top-5", "share", lambda results: results.top_k_parts(5), log_name="Acc@5", min_classes=10),
        Metric("mean_ap", "mean AP", "ranking", "average_precision", True, log_name="mAP"),
        Metric("macro_f1", "macro F1", "mean", "f1", None),
        Metric("balanced_accuracy", "balanced accuracy", "mean", "recall"),
        Metric("min_recall", "minimum recall", "worst", "recall"),
        Metric("auroc", "AUROC", "ranking", "auroc", None, max_classes=MAX_SCORED_CLASSES),
        Metric("specificity", MEAN_SPECIFICITY, "mean", "specificity", None),
        Metric("quadratic_kappa", "quadratic kappa", "agreement", 2, is_ordinal=True),
        Metric("linear_kappa", "linear kappa", "agreement", 1, is_ordinal=True),
        Metric("micro_f1", "micro F1", "share", lambda results: results.f1_parts(None), True),
        Metric("sample_f1", "F1 per image", "share", lambda results: results.f1_parts(1), True),
        Metric("precision", "macro precision", "mean", "precision", None),
        Metric("recall", "macro recall", "mean", "recall", True),
        Metric("ece", "calibration error", multi_label=None, sign=-1),
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
