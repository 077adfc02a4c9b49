"""The model family that MODEL.TYPE names."""

from typing import NoReturn

from configs.reading.option_layers import OptionLayers
from configs.reading.yaml_io import shorten
from configs.schema.families.registry import MODEL_SECTIONS, NOT_IN_TIMM, NOT_VERIFIED
from configs.schema.families.vit import ViT
from utils.errors import UserError, did_you_mean


def read_family(layers: OptionLayers) -> str:
    """The name of the family, a key of `MODEL_SECTIONS`.

    Raises:
        UserError: no such family, or one that timm does not have.
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
    return name.lower()


def _refuse(name: str, origin: str) -> NoReturn:
    if name.lower() in NOT_IN_TIMM:
        title, nearest = NOT_IN_TIMM[name.lower()]
        raise UserError(f"{origin}MODEL.TYPE {name}: timm has no {title}; the nearest families: {', '.join(nearest)}")
    if reason := NOT_VERIFIED.get(name.lower()):
        raise UserError(f"{origin}MODEL.TYPE {name}: {reason}")
    hint = did_you_mean(name.lower(), MODEL_SECTIONS)
    known = ", ".join(MODEL_SECTIONS)
    raise UserError(f"{origin}MODEL.TYPE: unknown family {name[:80]}{hint} (known: {known})")
