"""The dotted keys of all options, such as TRAIN.OPTIMIZER.NAME."""

import functools
from collections.abc import Iterator
from typing import Any

from configs.schema import Config
from configs.schema.families.registry import MODEL_SECTIONS
from configs.schema.section import Section


@functools.cache
def known_keys(family: str) -> tuple[str, ...]:
    """The keys of a run whose model is of this family."""
    others = (key for key in _keys(Config, "") if not key.startswith("MODEL."))
    return (*others, *_keys(MODEL_SECTIONS[family], "MODEL."))


def model_type(values: dict[str, Any]) -> str:
    """MODEL.TYPE of options, or its default."""
    model = values.get("MODEL")
    name = model.get("TYPE") if isinstance(model, dict) else None
    return name.lower() if isinstance(name, str) and name.lower() in MODEL_SECTIONS else "vit"


def _keys(section: type[Section], prefix: str) -> Iterator[str]:
    for name, field in section.model_fields.items():
        yield prefix + name.upper()
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            yield from _keys(field.annotation, f"{prefix}{name.upper()}.")
