"""Options that are lists with a value per stage."""

from typing import Annotated

from pydantic import AfterValidator

from configs.schema.section import Ints, Section


def _positive(values: tuple[int, ...]) -> tuple[int, ...]:
    if not values or min(values) < 1:
        raise ValueError("needs at least one value, and each must be at least 1")
    return values


Counts = Annotated[Ints, AfterValidator(_positive)]


def check_lengths(section: Section, key: str, *others: str, length: int | None = None) -> None:
    """Raises ValueError unless the list `key` has `length` values, and the `others` as many as `key`."""
    expected = len(getattr(section, key.lower()))
    if length is not None and expected != length:
        raise ValueError(f"{key} has {expected} values; this family needs {length}")
    for other in others:
        values = len(getattr(section, other.lower()))
        if values != expected:
            raise ValueError(f"{other} has {values} values, {key} {expected}; give one per stage")


def check_divisible(section: Section, key: str, divisor: str) -> None:
    """Raises ValueError unless each value of the list `key` is a multiple of the value of `divisor` at its place."""
    pairs = zip(getattr(section, key.lower()), getattr(section, divisor.lower()), strict=True)
    for value, part in pairs:
        if value % part:
            raise ValueError(f"{key} {value} is not a multiple of its {divisor} {part}; change one of them")
