"""Compares the options of two runs: the differing keys, and whether both are of the same experiment."""

import os
from pathlib import Path
from typing import Any

from configs.reading.layer_rules import REMOVED
from configs.reading.option_layers import expand_switches, flatten
from configs.reading.yaml_io import format_value, parse_value, read_yaml, shorten
from configs.schema import Config
from configs.schema.config import model_type
from configs.schema.families.registry import MODEL_SECTIONS
from configs.schema.model import without_fixed_keys
from utils.errors import UserError
from utils.tables import wrap_parts

_INITIAL_WEIGHTS = ("MODEL.RESUME", "MODEL.PRETRAINED")
_OF_HOST = ("DATA.DATA_PATH", "DATA.IMAGE_ROOT", "DATA.CACHE_DIR", "DATA.CACHE_GB", "DATA.NUM_WORKERS")
_OF_EXPERIMENT = (
    "DATA.DATASET", "DATA.DATA_PATH", "DATA.MULTI_LABEL", "DATA.FOLDS", "DATA.FOLD", "DATA.GROUPS", "SEED",
)  # fmt: skip
# They change how the model is trained or computed, but not its weights.
_SAME_WEIGHTS = (
    "MODEL.GRAD_CHECKPOINTING", "MODEL.ATTENTION", "MODEL.DROPOUT", "MODEL.ATTENTION_DROPOUT", "MODEL.DROPPATH",
    "MODEL.TUNE", "MODEL.FREEZE_BACKBONE",
)  # fmt: skip


def changed_options(then: str, now: str) -> dict[str, tuple[Any, Any]]:
    """Both values of each key that differs between two texts of `to_yaml`, by dotted key.

    MODEL.RESUME, MODEL.PRETRAINED and NAME are ignored.
    """
    before, after = REMOVED | with_defaults(parse_value(then)), REMOVED | dict(flatten(parse_value(now)))
    return {
        key: (before.get(key), value)
        for key, value in after.items()
        if key not in (*_INITIAL_WEIGHTS, "NAME") and _comparable(key, before.get(key)) != _comparable(key, value)
    }


def experiment_mismatch(options_file: Path, config: Config) -> str | None:
    """'SEED 0, this run has 1' for the first key in which a run differs from `config`; None if there is none.

    The keys are the data set, its fold, the model (MODEL without paths of weights, dropout and kernels) and SEED.
    """
    try:
        before = with_defaults(read_yaml(options_file)[0])
    except UserError as error:
        return str(error)
    for key, value in _values(config).items():
        if key not in _OF_EXPERIMENT and (not key.startswith("MODEL.") or key in (*_INITIAL_WEIGHTS, *_SAME_WEIGHTS)):
            continue
        follows_data, then = key == "MODEL.NUM_CLASSES" and value is None, before.get(key)
        if not follows_data and _comparable(key, then) != _comparable(key, value):
            return f"{key} {shorten(then)}, this run has {shorten(value)}"
    return None


def _comparable(key: str, value: Any) -> Any:
    """One folder may be named in several ways."""
    return os.path.abspath(value) if key == "DATA.DATA_PATH" and isinstance(value, str) else value


def shared_options(config: Config) -> dict[str, Any]:
    """Returns all options but paths and workers, which belong to a host, by dotted key."""
    return {key: value for key, value in _values(config).items() if key not in _OF_HOST}


def _values(config: Config) -> dict[str, Any]:
    """All options by dotted key, as a YAML file gives them."""
    return dict(flatten(config.model_dump(by_alias=True, mode="json")))


def with_defaults(values: dict[str, Any]) -> dict[str, Any]:
    """The options of a run by dotted key, with the defaults of the keys that its version did not write."""
    family = model_type(values)
    model = without_fixed_keys(values.get("MODEL", {}), family)  # which runs of earlier versions wrote
    return _defaults(family) | dict(flatten(expand_switches(values | {"MODEL": model})))


def _defaults(family: str) -> dict[str, Any]:
    # Not checked: general defaults, such as the image size, need not be possible for each family.
    return _values(Config.model_construct(model=MODEL_SECTIONS[family].model_construct()))


def differing_from_defaults(options: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """(value, default) of the options by dotted key that differ from their defaults; unknown keys are left out."""
    family = model_type({"MODEL": {"TYPE": options["MODEL.TYPE"]}})
    defaults = _defaults(family) | {"MODEL.TYPE": "vit"}
    return {key: (value, defaults[key]) for key, value in options.items() if value != defaults.get(key, value)}


def non_default_options(config: Config) -> dict[str, str]:
    """The options that differ from their defaults by dotted key, as short texts."""
    return {key: format_value(value) for key, (value, _) in differing_from_defaults(_values(config)).items()}


def non_default_lines(config: Config) -> str:
    """'KEY=value, ...' for each option that differs from its default, in indented lines of at most 120 columns.

    Without the options of the training, if the run only evaluates.
    """
    unused: tuple[str, ...] = ("TRAIN.", "LOSS.") if config.eval.enabled else ()
    options = non_default_options(config).items()
    parts = [part for key, value in options if not (part := f"{key}={value}").startswith(unused)]
    return "\n".join(wrap_parts(parts or ["none"], indent="      ", first_indent="      "))
