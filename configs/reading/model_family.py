"""The model family that MODEL.TYPE names, and its PaddleViT options that are read in a special way."""

import os
from typing import NoReturn

from configs.reading.option_layers import OptionLayers
from configs.reading.yaml_io import format_value, shorten
from configs.schema.families.family import Family
from configs.schema.families.registry import FAMILIES, MODEL_SECTIONS, NOT_IN_TIMM, NOT_VERIFIED
from configs.schema.families.vit import ViT
from utils.errors import UserError, did_you_mean


def read_family(layers: OptionLayers) -> str:
    """The name of the family, a key of `MODEL_SECTIONS`; removes options that PaddleViT's code of it ignores.

    Raises:
        UserError: no such family, or one that timm does not have; another value of an ignored option.
    """
    model = layers.values.get("MODEL")
    if model is not None and not isinstance(model, dict):
        raise UserError(f"{layers.origin(('MODEL',))}MODEL is {shorten(model)}: must be a section of keys")
    name = (model or {}).get("TYPE", ViT.model_fields["type"].default)
    origin = layers.origin(("MODEL", "TYPE"))
    if not isinstance(name, str):
        raise UserError(f"{origin}MODEL.TYPE is {shorten(name)}: give one of {', '.join(MODEL_SECTIONS)}")
    if name.lower() not in MODEL_SECTIONS:
        _refuse(name, origin)
    if family := FAMILIES.get(name.lower()):
        _drop_ignored(layers, family)
        _set_paddle_classes(layers, family)
    return name.lower()


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
    """Sets NUM_CLASSES to evaluate PaddleViT's weights, if PaddleViT's code ignores the option."""
    weights = layers.values["MODEL"].get("PRETRAINED")
    section = layers.values.get("EVAL")
    evaluates = isinstance(section, dict) and section.get("ENABLED") is True
    if not (family.paddle_classes and isinstance(weights, str) and evaluates):
        return
    if weights.lower().endswith(".pdparams") or os.path.isfile(f"{weights}.pdparams"):
        layers.add_key("MODEL.NUM_CLASSES", family.paddle_classes, f"MODEL.TYPE {family.type}")


def _refuse(name: str, origin: str) -> NoReturn:
    if name.lower() in NOT_IN_TIMM:
        title, nearest = NOT_IN_TIMM[name.lower()]
        raise UserError(f"{origin}MODEL.TYPE {name}: timm has no {title}; the nearest families: {', '.join(nearest)}")
    if reason := NOT_VERIFIED.get(name.lower()):
        raise UserError(f"{origin}MODEL.TYPE {name}: {reason}")
    hint = did_you_mean(name.lower(), MODEL_SECTIONS)
    known = ", ".join(MODEL_SECTIONS)
    raise UserError(f"{origin}MODEL.TYPE: unknown family {name[:80]}{hint} (known: {known})")
