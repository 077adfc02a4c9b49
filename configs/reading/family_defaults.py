"""The defaults of a model family: below the options that a user gives, above the general defaults."""

import copy
import os
from typing import Any, NoReturn

from configs.reading.option_layers import OptionLayers, flatten, merge
from configs.reading.yaml_io import format_value, shorten
from configs.schema.families.family import Family
from configs.schema.families.registry import FAMILIES, MODEL_SECTIONS, NEAREST, NOT_IN_TIMM, NOT_VERIFIED
from configs.schema.families.vit import ViT
from utils.errors import UserError, did_you_mean


def apply_family(layers: OptionLayers, model_only: bool = False) -> list[tuple[str, str]]:
    """Adds the defaults of the family that MODEL.TYPE names; returns the (section, key) of those that are used.

    With `model_only`, data and training keep their options: only the defaults of the section MODEL are added.
    A key of a section within a section is dotted, such as ("TRAIN", "OPTIMIZER.BETAS").

    Raises:
        UserError: no such family, or one that timm does not have.
    """
    model = layers.values.get("MODEL")
    if model is not None and not isinstance(model, dict):
        raise UserError(f"{layers.origin(('MODEL',))}MODEL is {shorten(model)}: must be a section of keys")
    name = (model or {}).get("TYPE", ViT.model_fields["type"].default)
    if not isinstance(name, str):
        origin = layers.origin(("MODEL", "TYPE"))
        raise UserError(f"{origin}MODEL.TYPE is {shorten(name)}: give one of {', '.join(MODEL_SECTIONS)}")
    if name.lower() not in MODEL_SECTIONS:
        _refuse(name, layers.origin(("MODEL", "TYPE")))
    family = FAMILIES.get(name.lower())
    if family is None:
        return []
    _drop_ignored(layers, family)
    _set_paddle_classes(layers, family)
    given = layers.values
    defaults = {section: keys for section, keys in family.defaults.items() if section == "MODEL" or not model_only}
    written = {path for path, _ in flatten(given)}
    used = [
        (section, key)
        for section, keys in defaults.items()
        for key, _ in flatten(keys)
        if f"{section}.{key}" not in written
    ]
    values: dict[str, Any] = {"MODEL": {}, "TRAIN": {}} | copy.deepcopy(defaults)
    _fit_warmup(values, given)
    _fit_scaling(values, given)
    merge(values, given)
    train = values["TRAIN"]
    if "distilled" in family.keys.model_fields and isinstance(train, dict):
        values["MODEL"].setdefault("DISTILLED", train.get("DISTILLATION_TYPE") not in (None, "none"))
    layers.values = values
    return used


def _fit_warmup(defaults: dict[str, Any], given: dict[str, Any]) -> None:
    """A default warm-up that is not shorter than the run becomes a tenth of it."""
    train = given.get("TRAIN")
    epochs = train.get("NUM_EPOCHS") if isinstance(train, dict) else None
    if isinstance(epochs, int) and defaults["TRAIN"].get("WARMUP_EPOCHS", 0) >= epochs:
        defaults["TRAIN"]["WARMUP_EPOCHS"] = epochs / 10


def _fit_scaling(defaults: dict[str, Any], given: dict[str, Any]) -> None:
    """The two rules to scale the learning rates exclude each other: that of the user replaces the default."""
    train = given.get("TRAIN")
    if isinstance(train, dict) and train.get("SQRT_SCALED_LR") is not None:
        defaults["TRAIN"].pop("LINEAR_SCALED_LR", None)


def _drop_ignored(layers: OptionLayers, family: Family) -> None:
    for section, keys in family.ignored.items():
        given = layers.values.get(section)
        for key, accepted in keys.items():
            if not isinstance(given, dict) or key not in given:
                continue
            if given[key] != accepted:
                raise UserError(
                    f"{layers.origin((section, key))}{section}.{key}: {family.title} accepts only "
                    f"{format_value(accepted)}; remove it"
                )
            del given[key]


def _set_paddle_classes(layers: OptionLayers, family: Family) -> None:
    """To evaluate PaddleViT's weights, NUM_CLASSES becomes that of its code, if that ignores the option."""
    model = layers.values["MODEL"]
    weights = model.get("PRETRAINED")
    section = layers.values.get("EVAL")
    evaluates = isinstance(section, dict) and section.get("ENABLED") is True
    if not (family.paddle_classes and isinstance(weights, str) and evaluates):
        return
    if weights.lower().endswith(".pdparams") or os.path.isfile(f"{weights}.pdparams"):
        layers.add_key("MODEL.NUM_CLASSES", family.paddle_classes, f"MODEL.TYPE {family.type}")


def _refuse(name: str, origin: str) -> NoReturn:
    names = ", ".join(MODEL_SECTIONS)
    if title := NOT_IN_TIMM.get(name.lower()):
        nearest = ", ".join(near for near in NEAREST.get(name.lower(), ()) if near in MODEL_SECTIONS) or names
        raise UserError(
            f"{origin}MODEL.TYPE {name[:80]}: timm has no {title}; the nearest families that work: {nearest}"
        )
    if reason := NOT_VERIFIED.get(name.lower()):
        raise UserError(f"{origin}MODEL.TYPE {name[:80]}: {reason}")
    hint = did_you_mean(name.lower(), MODEL_SECTIONS)
    raise UserError(f"{origin}MODEL.TYPE: unknown family {name[:80]}{hint} (known: {names})")
