"""Options, facts of the data and number of ranks -> the one `Config` of a run.

Pure functions without torch. `complete` adds the defaults of the model family and fits the warm-up, before the options
are checked; `resolve` fills in the number of classes and the accumulation steps. No other code decides them. Both
return a resolved run unchanged, so that a resumed run is resolved again from its `config.yaml`.
"""

import copy
from dataclasses import dataclass
from typing import Any

from configs.batch_plan import plan_batches
from configs.reading.option_layers import OptionLayers, flatten, merge
from configs.schema import Config, Train
from configs.schema.families.registry import FAMILIES, MODEL_SECTIONS
from configs.weights import NORMALIZATION
from utils.errors import UserError
from utils.metric_table import metrics_of

WARMUP, EPOCHS = "TRAIN.WARMUP_EPOCHS", "TRAIN.NUM_EPOCHS"


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


def complete(given: OptionLayers, family_name: str, model_only: bool = False) -> tuple[dict[str, Any], list[str]]:
    """Merges defaults, defaults of the family and `given`, in this order, and shortens the warm-up to fit NUM_EPOCHS.

    model_only: data and training keep their options; only the defaults of the section MODEL are added.

    Returns:
        the options, not yet checked, and lines for the log about the family and about values that differ from the given
        ones.
    """
    family, written = FAMILIES.get(family_name), dict(flatten(given.values))
    defaults = (family.defaults if family else {}).items()
    values: dict[str, Any] = {key: copy.deepcopy(keys) for key, keys in defaults if key == "MODEL" or not model_only}
    values = values | {"MODEL": values.get("MODEL", {}), "TRAIN": values.get("TRAIN", {})}
    if "TRAIN.SQRT_SCALED_LR" in written:  # it excludes the other rule to scale the learning rates
        values["TRAIN"].pop("LINEAR_SCALED_LR", None)
    if str(written.get("TRAIN.OPTIMIZER.NAME", "AdamW")).lower() not in ("adamw", "adamwdl"):
        values["TRAIN"].pop("OPTIMIZER", None)  # AdamW's betas
    used = [key for key, _ in flatten(values) if key not in written]
    notes = [f"Defaults of MODEL.TYPE {family_name}: {', '.join(used)}"] if used else []
    if family:
        notes += [f"{family.title}, unlike PaddleViT's: {correction}" for correction in family.corrections]
        notes += [f"{family.title}, unlike timm's: {family.differs}"] if family.differs else []
    notes += _unused_amp_keys(given)
    if family and model_only and given.values["MODEL"].get("PRETRAINED"):  # PaddleViT's weights of the family
        values["DATA"] = {key: family.defaults["DATA"][key] for key in NORMALIZATION}
    merge(values, given.values)
    model, train, data, loss = values["MODEL"], values["TRAIN"], values.get("DATA"), values.get("LOSS", {})
    if isinstance(data, dict) and data.get("MULTI_LABEL") is True and isinstance(loss, dict):
        values["LOSS"] = {"NAME": "bce"} | loss  # no other loss accepts several labels
    if not isinstance(train, dict):  # an error that the check of the options reports
        return values, notes
    if given.level("TRAIN.BASE_LR") > given.level("TRAIN.BASE_LR_BATCH_SIZE"):  # which belongs to another rate
        train.pop("BASE_LR_BATCH_SIZE", None)
    if family and family.teacher_distils and train.get("TEACHER_WEIGHTS") and "TRAIN.DISTILLATION_TYPE" not in written:
        train["DISTILLATION_TYPE"] = "hard"
        notes.append(f"TRAIN.DISTILLATION_TYPE is hard: {family.title} has a teacher")
    if "distilled" in MODEL_SECTIONS[family_name].model_fields:
        model.setdefault("DISTILLED", train.get("DISTILLATION_TYPE") not in (None, "none"))
    return values, notes + _fit_warmup(train, given)


def _unused_amp_keys(given: OptionLayers) -> list[str]:
    """A line for the log about keys of AMP in -opts that need -amp; a recipe may hold them for runs with the flag."""
    amp = given.values.get("AMP")
    if not isinstance(amp, dict) or amp.get("ENABLED") is True:
        return []
    needed = (key for key in amp if key not in ("ENABLED", "PRESET", "TF32", "MAX_SKIPPED_STEPS"))
    unused = [f"AMP.{key}" for key in needed if given.origin(("AMP", key)) == "-opts: "]
    return [f"{', '.join(unused)}: no effect without -amp"] if unused else []


def _fit_warmup(train: dict[str, Any], given: OptionLayers) -> list[str]:
    """Makes the warm-up a tenth of the epochs if it is not shorter than the run; returns lines for the log.

    A warm-up stays if the option layer of NUM_EPOCHS, or a higher one, gives it: the user chose it for these epochs.
    """
    epochs, warmup = (train.get(key, _train_default(key)) for key in ("NUM_EPOCHS", "WARMUP_EPOCHS"))
    are_numbers = isinstance(epochs, int) and isinstance(warmup, int | float)
    if not are_numbers or warmup < epochs or given.level(WARMUP) >= given.level(EPOCHS):
        return []
    train["WARMUP_EPOCHS"] = epochs / 10
    source = given.origin(("TRAIN", "WARMUP_EPOCHS")).removesuffix(": ") if given.level(WARMUP) else "default"
    return [f"{WARMUP} is {epochs / 10:g} in place of {warmup:g} ({source}): NUM_EPOCHS is {epochs}"]


def _train_default(key: str) -> Any:
    return Train.model_fields[key.lower()].default
