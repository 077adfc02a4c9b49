"""The dotted keys of all options, such as TRAIN.OPTIMIZER.NAME."""

import functools
from collections.abc import Iterator
from typing import Any

from pydantic.fields import FieldInfo

from configs.schema import Config
from configs.schema.families.registry import MODEL_SECTIONS
from configs.schema.model import FIXED_KEYS
from configs.schema.section import Section


@functools.cache
def known_keys(family: str) -> tuple[str, ...]:
    """The keys and sections of a run whose model is of this family; also MODEL's keys with one possible value."""
    fixed = (f"MODEL.{key}" for key in FIXED_KEYS.get(family, ()))
    return (*(key for key, _ in (*fields(Config), *fields(MODEL_SECTIONS[family], "MODEL."))), *fixed)


def fields(section: type[Section], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """The fields of a section and of the sections in it, by dotted key; MODEL without its keys."""
    for field in section.model_fields.values():
        key = f"{prefix}{field.alias}"
        yield key, field
        if is_section(field):
            yield from fields(field.annotation, f"{key}.")  # type: ignore[arg-type]


def is_section(field: FieldInfo) -> bool:
    return isinstance(field.annotation, type) and issubclass(field.annotation, Section)


def model_type(values: dict[str, Any]) -> str:
    """MODEL.TYPE of options, or its default."""
    model = values.get("MODEL")
    name = model.get("TYPE") if isinstance(model, dict) else None
    return name.lower() if isinstance(name, str) and name.lower() in MODEL_SECTIONS else "vit"
