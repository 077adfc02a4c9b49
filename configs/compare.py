"""Compares the options of a run with the defaults and with the options of another run."""

import os
from itertools import pairwise
from pathlib import Path
from typing import Any

from configs.load import OptionTable, expand_switches, flatten, keep_old_meanings
from configs.schema import Config
from configs.schema.config import model_type
from configs.schema.families.registry import MODEL_SECTIONS
from configs.schema.model import present_keys
from configs.schema.section import as_tuple, without
from configs.versions import GONE_KEYS
from configs.yaml_io import Values, format_value, parse_value, read_yaml, shorten
from utils.errors import UserError
from utils.notes import Note

_OF_HOST = ("DATA.DATA_PATH", "DATA.IMAGE_ROOT", "DATA.CACHE_DIR", "DATA.CACHE_GB", "DATA.NUM_WORKERS")
_OF_EXPERIMENT = (
    "DATA.DATASET", "DATA.DATA_PATH", "DATA.KWARGS", "DATA.MULTI_LABEL", "DATA.FOLDS", "DATA.FOLD", "DATA.GROUPS",
    "SEED",
)  # fmt: skip
# They choose the images of a run, and their classes.
_OF_SPLIT = (
    "DATA.FOLD", "DATA.FOLDS", "DATA.SPLIT_SEED", "DATA.VAL_FRACTION", "DATA.GROUPS", "DATA.FRACTION",
    "DATA.ONLY_CLASSES", "DATA.RENAME",
)  # fmt: skip
# For the whole run: with another value its figures are of other images, or its state or best.pth has other entries.
FIXED = (
    *_OF_SPLIT, "DATA.MULTI_LABEL", "MODEL.TUNE", "TRAIN.MODEL_EMA", "TRAIN.OPTIMIZER.NAME", "TRAIN.OPTIMIZER.KWARGS",
    "EVAL.BEST_METRIC", "EVAL.OPERATING_POINT", "MODEL.TYPE",
)  # fmt: skip
# Initial weights, and keys that change how the model is trained or computed, but not its weights.
_SAME_ARCHITECTURE = (
    "MODEL.RESUME", "MODEL.PRETRAINED", "MODEL.GRAD_CHECKPOINTING", "MODEL.ATTENTION", "MODEL.FUSED_BLOCKS",
    "MODEL.DROPOUT", "MODEL.ATTENTION_DROPOUT", "MODEL.DROPPATH", "MODEL.TUNE",
)  # fmt: skip
# They end a training, or change with the number of devices.
_OF_LENGTH = (
    "TRAIN.LAST_EPOCH", "TRAIN.NUM_EPOCHS", "TRAIN.PLANS", "TRAIN.WARMUP_EPOCHS", "TRAIN.MAX_STEPS",
    "TRAIN.PATIENCE",
    "TRAIN.ACCUM_ITER", "TRAIN.COMPILE", "TRAIN.TEACHER_WEIGHTS",
)  # fmt: skip

# TRAIN.MINUTES decides them in a new run.
_OF_MINUTES = (
    "TRAIN.NUM_EPOCHS", "TRAIN.PLANS", "TRAIN.EPOCH_STEPS", "TRAIN.WARMUP_EPOCHS", "TRAIN.MIXUP_OFF_EPOCH",
    "TRAIN.LR_SCHEDULER.DECAY_EPOCHS",
)  # fmt: skip


def changed_options(then: str, now: str) -> dict[str, tuple[Any, Any]]:
    """Both values of each key that differs between two texts of `to_yaml`, by dotted key.

    MODEL.RESUME and NAME are ignored.
    """
    before = with_defaults(parse_value(then))
    after = dict(flatten(expand_switches(parse_value(now))))
    return {
        key: (before.get(key), value)
        for key, value in after.items()
        if key not in ("MODEL.RESUME", "NAME") and _comparable(key, before.get(key)) != _comparable(key, value)
    }


def changes_training(key: str) -> bool:
    """Returns whether the option changes how the weights are trained; the length of the training does not count."""
    is_of_training = key.startswith(("TRAIN.", "LOSS.")) and key not in _OF_LENGTH
    return is_of_training or key in ("AMP.ENABLED", "AMP.LEVEL", "AMP.DTYPE")


def experiment_mismatch(options_file: Path, config: Config) -> str | None:
    """'SEED 0, this run has 1' for the first key in which a run differs from `config`; None if there is none.

    The keys are the data set, its fold, the model (MODEL without paths of weights, dropout and kernels) and SEED; of a
    training, also the other keys of the split, a NAME that is given, the keys of `changes_training`, and NUM_EPOCHS,
    which may only grow; without the keys that an equal TRAIN.MINUTES has decided.
    """
    try:
        before = with_defaults(read_yaml(options_file))
    except UserError as error:
        return str(error)
    values = values_of(config)
    keys = _keys_of_experiment(values, before, config)
    for key, value in values.items():
        then = before.get(key)
        if key in keys and _comparable(key, then) != _comparable(key, value):
            return f"{key} {shorten(then)}, this run has {shorten(value)}"
    return None


def _keys_of_experiment(values: Values, before: Values, config: Config) -> set[str]:
    """values: all options of this run. before: of the other one."""
    keys = {*_OF_EXPERIMENT, *(key for key in values if key.startswith("MODEL."))} - {*_SAME_ARCHITECTURE}
    if not config.eval.enabled:
        keys |= {*_OF_SPLIT, *(key for key in values if changes_training(key))}
        if None not in (config.name, before["NAME"]):
            keys.add("NAME")
        epochs = before["TRAIN.NUM_EPOCHS"]
        if isinstance(epochs, int) and epochs > config.train.num_epochs:
            keys.add("TRAIN.NUM_EPOCHS")
    if config.train.minutes and config.train.minutes == before["TRAIN.MINUTES"]:
        keys -= {*_OF_MINUTES}
    if config.model.num_classes is None:
        keys.remove("MODEL.NUM_CLASSES")  # it follows the data
    if values.get("MODEL.KWARGS") is None and config.model.pretrained not in (None, "timm"):
        keys.discard("MODEL.KWARGS")  # it follows the weights
    return keys


def keep_minutes(config: Config, of_run: Values) -> Config:
    """The options with the epochs of a run of equal TRAIN.MINUTES. of_run: its options by dotted key."""
    train = config.train
    if train.minutes is None or train.minutes != of_run["TRAIN.MINUTES"]:
        return config
    epochs = {key.rpartition(".")[2].lower(): as_tuple(of_run[key]) for key in _OF_MINUTES}
    scheduler = train.lr_scheduler.changed(decay_epochs=epochs.pop("decay_epochs"))
    return config.with_train(**epochs, lr_scheduler=scheduler)


def _comparable(key: str, value: Any) -> Any:
    """One folder may be named in several ways."""
    return os.path.abspath(str(value)) if key == "DATA.DATA_PATH" else value


def shared_options(config: Config) -> Values:
    """Returns all options but paths and workers, which belong to a host, by dotted key."""
    return without(values_of(config), _OF_HOST)


def values_of(config: Config) -> Values:
    """All options by dotted key, as a YAML file gives them."""
    return dict(flatten(config.model_dump(by_alias=True, mode="json")))


def set_by(places: dict[str, Config]) -> list[Note]:
    """'MODEL.NUM_CLASSES 5 (follow_facts), ...': what each place has changed. places: the options after each one."""
    texts = []
    for (_, before), (place, after) in pairwise(places.items()):
        then = values_of(before)
        now = values_of(after)
        texts += [f"{key} {format_value(value)} ({place})" for key, value in now.items() if value != then.get(key)]
    return [Note("log", f"Options set: {', '.join(texts)}")] if texts else []


def with_defaults(values: Values) -> Values:
    """The options of a run by dotted key, with the defaults of the keys that its version did not write."""
    family = OptionTable(values).family
    model = present_keys(values.get("MODEL", {}), family)
    table = OptionTable(values | {"MODEL": model})
    keep_old_meanings(table, values)
    options = _defaults(family) | {key: row.value for key, row in table.rows.items()}
    off = {key: value for key, (value, _) in GONE_KEYS.items()}
    return {key: value for key, value in options.items() if key not in off or value != off[key]}


def _defaults(family: str) -> Values:
    # Not checked: general defaults, such as the image size, need not be possible for each family.
    return values_of(Config.model_construct(model=MODEL_SECTIONS[family].model_construct()))


def differing_from_defaults(options: Values) -> dict[str, tuple[Any, Any]]:
    """(value, default) of the options by dotted key that differ from their defaults; unknown keys are left out."""
    defaults = _defaults(model_type(options["MODEL.TYPE"])) | {"MODEL.TYPE": "vit"}
    return {key: (value, defaults[key]) for key, value in options.items() if value != defaults.get(key, value)}


def non_default_options(config: Config) -> dict[str, str]:
    """The options that differ from their defaults by dotted key, as short texts."""
    return {key: format_value(value) for key, (value, _) in differing_from_defaults(values_of(config)).items()}
