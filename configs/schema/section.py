"""The base class of the option sections, and the value types of options."""

import os
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Annotated, Any, ClassVar, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from configs.yaml_io import Values

MAX_NAME_CHARS = 100


def as_tuple(value: Any) -> Any:
    """A YAML list as a tuple; YAML has no tuples."""
    return tuple(map(as_tuple, value)) if isinstance(value, list) else value


def without(values: Mapping[str, Any], keys: Collection[Any]) -> Values:
    """The values of the other keys."""
    return {key: value for key, value in values.items() if key not in keys}


def only(values: Mapping[str, Any], keys: Iterable[str]) -> Values:
    """The values of these keys, as far as there are any."""
    return {key: values[key] for key in keys if key in values}


def as_names(value: Any) -> Any:
    """One name, or a list of names, as a tuple."""
    return (value,) if isinstance(value, str) else as_tuple(value)


def _as_image_size(size: Any) -> Any:
    """Height and width of equal numbers as one number; `128,32`, as flags have it, as two."""
    if isinstance(size, str) and not size.isdecimal():
        sides = re.fullmatch(r"[(\[]?(\d+), ?(\d+)[)\]]?", size)
        if not sides:
            raise ValueError("neither a number nor HEIGHT,WIDTH")
        size = tuple(map(int, sides.groups()))
    size = as_tuple(size)
    return size[0] if isinstance(size, tuple) and len(size) == 2 and size[0] == size[1] else size


def _check_path(path: str) -> str:
    if "\0" in path:
        raise ValueError("a path cannot contain a zero byte")
    path = os.path.expanduser(path)
    if path.startswith("~"):
        raise ValueError(f"no user has this home folder; write the path, or ./{path} for a folder of this name")
    return path


def _check_name(name: str) -> str:
    is_valid = 0 < len(name) <= MAX_NAME_CHARS and name.isprintable() and "/" not in name
    if not is_valid:
        raise ValueError(f"must be a printable name without /, at most {MAX_NAME_CHARS} characters long")
    return name


FROM_LIST = BeforeValidator(as_tuple)
Name = Annotated[str, AfterValidator(_check_name)]
Pair = Annotated[tuple[float, float], FROM_LIST]
Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0)]
ImageSize = Annotated[Count | tuple[Count, Count], BeforeValidator(_as_image_size)]
Bools = Annotated[tuple[bool, ...], FROM_LIST]
Ints = Annotated[tuple[int, ...], FROM_LIST]
Counts = Annotated[tuple[Count, ...], FROM_LIST]
Floats = Annotated[tuple[float, ...], FROM_LIST]
Names = Annotated[tuple[str, ...], BeforeValidator(as_names)]
Path = Annotated[str, Field(min_length=1), AfterValidator(_check_path)]
OptionalPath = Annotated[Path | None, BeforeValidator(lambda path: None if path == "" else path)]  # as PaddleViT
Probability = Annotated[float, Field(ge=0, le=1)]


def _check_ascending(pair: tuple[float, float]) -> tuple[float, float]:
    if not pair[0] <= pair[1]:
        raise ValueError("the two values must ascend")
    return pair


Range = Annotated[tuple[Positive, Positive], FROM_LIST, AfterValidator(_check_ascending)]
Shares = Annotated[tuple[Probability, Annotated[Probability, Field(gt=0)]], FROM_LIST, AfterValidator(_check_ascending)]


def option(default: Any, meaning: str, **limits: Any) -> Any:
    """An option of a section: its default, its meaning for -h, and its limits as arguments of pydantic's `Field`."""
    return Field(default, description=meaning, **limits)


def optional(meaning: str, **limits: Any) -> Any:
    """An option that is null by default."""
    return option(None, meaning, **limits)


def switch(meaning: str) -> Any:
    """An option that is false by default."""
    return option(False, meaning)


class Section(BaseModel):
    """A section of options.

    needs: an option, another option, and its values without which the first one has no effect.
    """

    needs: ClassVar[tuple[tuple[str, ...], ...]] = ()
    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, alias_generator=str.upper, allow_inf_nan=False, validate_default=True
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        for key, other, *values in self.needs:
            is_given = getattr(self, key.lower()) != type(self).model_fields[key.lower()].default
            value = getattr(self, other.lower())
            if is_given and value not in values:
                raise ValueError(f"{key} needs {other} {' or '.join(values)}, not {value}; remove it or change {other}")
        for text in self._problems():
            raise ValueError(text)
        return self

    def changed(self, **changes: Any) -> Self:
        """A copy with other values of some keys, which are not checked."""
        return self.model_copy(update=changes)

    def _problems(self) -> Iterable[str]:
        """The contradictions between the options, as texts that begin with a key; the first one is the error."""
        return ()
