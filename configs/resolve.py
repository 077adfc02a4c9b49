"""Options, facts of the data and number of ranks -> the one `Config` of a run.

Pure functions without torch. `resolve` fills in the number of classes and the accumulation steps. It returns a resolved
run unchanged, so that a resumed run is resolved again from its `config.yaml`.
"""

from dataclasses import dataclass

from configs.batch_plan import plan_batches
from configs.schema import Config
from utils.errors import UserError
from utils.metric_table import metrics_of


@dataclass(frozen=True)
class DataFacts:
    """The facts of the data that options depend on.

    classes: number of classes. named: whether the data names its classes; labels that are numbers may leave some out.
    """

    classes: int
    named: bool = False


def resolve(options: Config, facts: DataFacts | None, num_ranks: int) -> Config:
    """The options with all values that follow from the data and the number of ranks.

    facts: None before the data is read. An evaluation has no accumulation steps.

    Raises:
        UserError: the global batch is not a multiple of the batch size over all ranks; `EVAL.BEST_METRIC` does not
            apply to the data.
    """
    model, train = options.model, options.train
    if not options.eval.enabled:
        train = train.model_copy(update={"accum_iter": plan_batches(options, num_ranks).accumulation})
    if facts and model.num_classes is None:
        model = model.model_copy(update={"num_classes": facts.classes})
    _check_best_metric(options, model.num_classes)
    return options.model_copy(update={"model": model, "train": train})


def _check_best_metric(options: Config, num_classes: int | None) -> None:
    """Raises UserError if the metric does not apply to the kind of labels, or to so few classes."""
    metric, kind = options.best_metric, metrics_of(options.data.multi_label)
    possible = [one.name for one in kind if num_classes is None or num_classes >= one.min_classes]
    if metric.name not in possible:
        labels = "several labels per image" if options.data.multi_label else "one label per image"
        data = f"{num_classes} classes" if metric in kind else labels
        raise UserError(f"EVAL.BEST_METRIC {metric.name} does not apply to {data}; use {', '.join(possible)}")


def warnings(config: Config, facts: DataFacts) -> list[str]:
    """A line for each value of a resolved run that fits its data badly."""
    if not facts.named or config.model.num_logits <= facts.classes:
        return []
    return [
        f"MODEL.NUM_CLASSES is {config.model.num_classes}, but the data has {facts.classes} classes; remove the key to "
        f"train {facts.classes}"
    ]
