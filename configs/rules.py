"""The rules by which options follow from others, or from facts, in their order; `-h RULES` prints them. Without torch.

Rules of layers (configs/reading/layer_rules.py) run first, while the command line is read. Rules of words change
`Draft.values`, whose values have the types of their fields, before contradictions are checked. Both return lines for
the log. Rules of weights (configs/weights.py) and of facts change the checked options, as soon as the facts are known.
The first sentence of a rule's docstring states it; a value that is given wins, unless the rule says otherwise.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from configs.batch_plan import plan_batches
from configs.reading.option_layers import OptionLayers, flatten, nest
from configs.schema import Config, Data, Train
from configs.schema.config import model_type
from configs.schema.data import AUTO, of_channels
from configs.schema.families.family import Family
from configs.schema.families.registry import FAMILIES, MODEL_SECTIONS
from configs.weights import NORMALIZATION
from utils.errors import UserError
from utils.metric_table import metrics_of

WARMUP, EPOCHS = "TRAIN.WARMUP_EPOCHS", "TRAIN.NUM_EPOCHS"
_SIZE, _EVAL_SIZE = "DATA.BATCH_SIZE", "DATA.BATCH_SIZE_EVAL"
_PROBE_DATA = {"DATA.GLOBAL_BATCH_SIZE": None, "DATA.BALANCED_SAMPLING": False, "DATA.REPEATED_AUGMENTATION": 1}
_WITHOUT_AMP = ("AMP.ENABLED", "AMP.PRESET", "AMP.TF32", "AMP.MAX_SKIPPED_STEPS")  # have an effect without -amp


@dataclass
class Draft:
    """The options of a command while the rules complete them.

    values: by dotted key; keys that are absent have the default of their field. given: the layers that were written.
    model_only: data and training do not follow the family: -model replaces the model of a recipe.
    """

    values: dict[str, Any]
    given: OptionLayers
    family_name: str
    model_only: bool = False

    @property
    def family(self) -> Family | None:
        return FAMILIES.get(self.family_name)


def complete(given: OptionLayers, model_only: bool = False) -> tuple[dict[str, Any], list[str]]:
    """Applies all rules to the given options; returns the sections, not yet checked, and lines for the log."""
    draft = Draft(dict(flatten(given.values)), given, model_type(given.values), model_only)
    notes = [note for rule in RULES for note in rule(draft)]
    return nest(draft.values), notes


def defaults_follow_family(draft: Draft) -> list[str]:
    """Keys that are not given have the defaults of the family MODEL.TYPE: PaddleViT's."""
    family, values = draft.family, draft.values
    if not family:
        return []
    used = {}
    for key, value in flatten(dict(family.defaults)):
        other_scaling = key == "TRAIN.LINEAR_SCALED_LR" and "TRAIN.SQRT_SCALED_LR" in values
        name = str(values.get("TRAIN.OPTIMIZER.NAME", "AdamW")).lower()
        other_optimizer = key.startswith("TRAIN.OPTIMIZER.") and name not in ("adamw", "adamwdl")
        applies = key.startswith("MODEL.") or not (draft.model_only or other_scaling or other_optimizer)
        if applies and key not in values:
            used[key] = copy.deepcopy(value)
    values |= used
    notes = [f"Defaults of MODEL.TYPE {draft.family_name}: {', '.join(used)}"] if used else []
    notes += [f"{family.title}, unlike PaddleViT's: {correction}" for correction in family.corrections]
    return notes + ([f"{family.title}, unlike timm's: {family.differs}"] if family.differs else [])


def normalization_follows_weights_of_family(draft: Draft) -> list[str]:
    """With -model and weights of a family of PaddleViT's, mean and standard deviation are the family's."""
    if draft.family and draft.model_only and draft.values.get("MODEL.PRETRAINED"):
        for key in NORMALIZATION:
            draft.values.setdefault(f"DATA.{key}", draft.family.defaults["DATA"][key])
    return []


def normalization_follows_channels(draft: Draft) -> list[str]:
    """With DATA.IMAGE_CHANNELS 1, a mean and a standard deviation of RGB that are not given with it are averaged."""
    level = draft.given.level("DATA.IMAGE_CHANNELS")
    for key in (f"DATA.{key}" for key in NORMALIZATION):
        if key in draft.values and level > draft.given.level(key):
            draft.values[key] = of_channels(draft.values[key], draft.values["DATA.IMAGE_CHANNELS"])
    return []


def loss_follows_labels(draft: Draft) -> list[str]:
    """DATA.MULTI_LABEL: LOSS.NAME is bce, as no other loss accepts several labels."""
    if draft.values.get("DATA.MULTI_LABEL") is True:
        draft.values.setdefault("LOSS.NAME", "bce")
    return []


def batch_of_rate_follows_rate(draft: Draft) -> list[str]:
    """A BASE_LR of a higher layer than BASE_LR_BATCH_SIZE removes the latter, which belongs to another rate."""
    if draft.given.level("TRAIN.BASE_LR") > draft.given.level("TRAIN.BASE_LR_BATCH_SIZE"):
        draft.values.pop("TRAIN.BASE_LR_BATCH_SIZE", None)
    return []


def distillation_follows_teacher(draft: Draft) -> list[str]:
    """TRAIN.DISTILLATION_TYPE is hard if a family that distils, such as DeiT, has TEACHER_WEIGHTS."""
    family, values = draft.family, draft.values
    if not (family and family.teacher_distils and values.get("TRAIN.TEACHER_WEIGHTS")):
        return []
    if draft.given.level("TRAIN.DISTILLATION_TYPE"):
        return []
    values["TRAIN.DISTILLATION_TYPE"] = "hard"
    return [f"TRAIN.DISTILLATION_TYPE is hard: {family.title} has a teacher"]


def token_follows_distillation(draft: Draft) -> list[str]:
    """MODEL.DISTILLED is true with a TRAIN.DISTILLATION_TYPE, in families that have the key."""
    if "distilled" in MODEL_SECTIONS[draft.family_name].model_fields:
        distils = draft.values.get("TRAIN.DISTILLATION_TYPE") not in (None, "none")
        draft.values.setdefault("MODEL.DISTILLED", distils)
    return []


def warmup_follows_epochs(draft: Draft) -> list[str]:
    """A warm-up of NUM_EPOCHS or more is a tenth of them, unless the layer of NUM_EPOCHS, or a higher one, gives it."""
    given, values = draft.given, draft.values
    epochs, warmup = (values.get(key, Train.model_fields[key[6:].lower()].default) for key in (EPOCHS, WARMUP))
    if warmup < epochs or given.level(WARMUP) >= given.level(EPOCHS):
        return []
    values[WARMUP] = epochs / 10
    source = given.origin(tuple(WARMUP.split("."))).removesuffix(": ") if given.level(WARMUP) else "default"
    return [f"{WARMUP} is {epochs / 10:g} in place of {warmup:g} ({source}): NUM_EPOCHS is {epochs}"]


def probe_has_one_epoch(draft: Draft) -> list[str]:
    """MODEL.TUNE probe: NUM_EPOCHS is 1, images are read by BATCH_SIZE_EVAL; optimizer, order and steps have no effect.

    Raises:
        UserError: the strategy shards the model; no batch size.
    """
    values = draft.values
    if values.get("MODEL.TUNE") != "probe" or values.get("EVAL.ENABLED"):
        return []
    if (strategy := values.get("PARALLEL.STRATEGY", "ddp")) != "ddp":
        raise UserError(f"PARALLEL.STRATEGY {strategy}: MODEL.TUNE probe needs whole models; set it to ddp")
    sections = {"TRAIN": Train().model_dump(mode="json", by_alias=True), "EVAL_RAW": False, **_PROBE_DATA}
    used = dict(flatten(sections)) | {EPOCHS: 1, WARMUP: 0}
    del used["TRAIN.SMOOTHING"]  # of the loss
    unused = [key for key, value in used.items() if draft.given.level(key) and values[key] != value]
    values |= {key: value for key, value in used.items() if key in values} | {EPOCHS: 1, WARMUP: 0}
    size = values.get(_SIZE, Data.model_fields["batch_size"].default)
    size = size if (own := values.get(_EVAL_SIZE)) in (None, AUTO) else own
    if size == AUTO:
        raise UserError("DATA.BATCH_SIZE auto is for training steps; give -batch_size_eval")
    values |= {_SIZE: 1, _EVAL_SIZE: size}
    return [f"MODEL.TUNE probe: {', '.join(unused)} have no effect"] if unused else []


def amp_keys_need_amp(draft: Draft) -> list[str]:
    """Keys of AMP in -opts have no effect without -amp; a recipe may hold them for runs with the flag."""
    if draft.values.get("AMP.ENABLED") is True:
        return []
    keys = [key for key in draft.values if key.startswith("AMP.") and key not in _WITHOUT_AMP]
    unused = [key for key in keys if draft.given.origin(tuple(key.split("."))) == "-opts: "]
    return [f"{', '.join(unused)}: no effect without -amp"] if unused else []


RULES: tuple[Callable[[Draft], list[str]], ...] = (
    defaults_follow_family,
    amp_keys_need_amp,
    normalization_follows_weights_of_family,
    normalization_follows_channels,
    loss_follows_labels,
    batch_of_rate_follows_rate,
    distillation_follows_teacher,
    token_follows_distillation,
    warmup_follows_epochs,
    probe_has_one_epoch,
)


@dataclass(frozen=True)
class Facts:
    """The facts about a run that options depend on; each has its default until it is known.

    ranks: number of processes. classes: of the data. named: whether the data names them; labels that are numbers may
    leave some out. fitting_batch_size: the size that a resumed run has found, or the largest one that fits into the
    memory.
    """

    ranks: int = 1
    classes: int | None = None
    named: bool = False
    fitting_batch_size: int | None = None


def resolve(options: Config, facts: Facts) -> Config:
    """Applies the rules of facts. A resolved run stays as it is: a resumed run is resolved again from `config.yaml`.

    Raises:
        UserError: the global batch is not a multiple of the batch size over all ranks; `EVAL.BEST_METRIC` does not
            apply to the data.
    """
    for rule in FACT_RULES:
        options = rule(options, facts)
    _check_best_metric(options)
    return options


def batch_size_follows_memory(options: Config, facts: Facts) -> Config:
    """DATA.BATCH_SIZE auto is the largest size that fits into the memory; a resumed run keeps its size."""
    if options.data.batch_size or facts.fitting_batch_size is None:
        return options
    return options.with_data(batch_size=facts.fitting_batch_size)


def accumulation_follows_global_batch(options: Config, facts: Facts) -> Config:
    """TRAIN.ACCUM_ITER of a training is DATA.GLOBAL_BATCH_SIZE / (BATCH_SIZE x number of ranks), if that is given."""
    if options.eval.enabled:
        return options
    return options.with_train(accum_iter=plan_batches(options, facts.ranks).accumulation)


def classes_follow_data(options: Config, facts: Facts) -> Config:
    """MODEL.NUM_CLASSES: null is the number of classes of the data."""
    if options.model.num_classes is not None or facts.classes is None:
        return options
    return options.with_model(num_classes=facts.classes)


FACT_RULES: tuple[Callable[[Config, Facts], Config], ...] = (
    batch_size_follows_memory,
    accumulation_follows_global_batch,
    classes_follow_data,
)


def _check_best_metric(options: Config) -> None:
    """Raises UserError if the metric does not apply to the kind of labels, or to so few classes."""
    metric, kind, num_classes = options.best_metric, metrics_of(options.data.multi_label), options.model.num_classes
    possible = [one.name for one in kind if num_classes is None or num_classes >= one.min_classes]
    if metric.name not in possible:
        labels = "several labels per image" if options.data.multi_label else "one label per image"
        data = f"{num_classes} classes" if metric in kind else labels
        raise UserError(f"EVAL.BEST_METRIC {metric.name} does not apply to {data}; use {', '.join(possible)}")


def warnings(config: Config, facts: Facts) -> list[str]:
    """A line for each value of a resolved run that fits its data badly."""
    classes = facts.classes
    if not facts.named or classes is None or config.model.num_logits <= classes:
        return []
    given = f"MODEL.NUM_CLASSES is {config.model.num_classes}"
    return [f"{given}, but the data has {classes} classes; remove the key to train {classes}"]
