"""The keys of TRAIN about augmentation."""

import re
from typing import Literal

from pydantic import Field, field_validator

from configs.schema.section import Pair, Probability, Section

_AUTO_AUGMENT = ("original", "originalr", "v0", "v0r", "3a")
_MAX_MAGNITUDE = 10
# The sections of timm's policy strings: name -> (type, smallest, largest value).
_SECTIONS: dict[str, dict[str, tuple[type, float, float]]] = {
    "rand": {
        "m": (int, 0, 30),
        "n": (int, 1, 14),  # weighted choice is without replacement, of 14 operations or more
        "p": (float, 0, 1),
        "mstd": (float, 0, 1000),
        "mmax": (int, 1, 30),
        "inc": (int, 0, 1),
    },
    "augmix": {
        "m": (int, 0, _MAX_MAGNITUDE),
        "w": (int, 1, 10),
        "d": (int, 1, 10),
        "a": (float, 0.1, 100),
        "b": (int, 0, 1),
        "mstd": (float, 0, 100),
    },
    **{name: {"mstd": (float, 0, 100)} for name in _AUTO_AUGMENT},
}
_RAND_SETS = ("tweights", "t3a", "t3aw")


def check_policy(text: str) -> str:
    """Returns a string that `timm.data.auto_augment` reads completely. timm skips or asserts other parts.

    Raises:
        ValueError: an unknown policy, an unknown or repeated section, or a value out of range.
    """
    name, *sections = text.split("-")
    if name not in _SECTIONS:
        raise ValueError(f"the policy {name!r} is unknown; known: {', '.join(_SECTIONS)}")
    values: dict[str, float] = {}
    for section in sections:
        key, value = _parse_section(name, section)
        if key in values:
            raise ValueError(f"{key} is given twice")
        values[key] = value
    if values.get("m", 0) > values.get("mmax", _MAX_MAGNITUDE):
        raise ValueError(f"m{values['m']} exceeds the maximum; lower it, or add mmax{values['m']}")
    return text


def _parse_section(name: str, section: str) -> tuple[str, float]:
    if name == "rand" and section in _RAND_SETS:
        return "t", 0
    known = _SECTIONS[name]
    match = re.fullmatch(r"([a-z]+)(\d{1,9}(?:\.\d{1,9})?)", section, re.ASCII)
    if not match or match[1] not in known:
        sets = f", {', '.join(_RAND_SETS)}" if name == "rand" else ""
        raise ValueError(
            f"the section {section!r} is unknown; {name} has {', '.join(known)}, each with a number (mstd0.5){sets}"
        )
    key, number = match.groups()
    kind, low, high = known[key]
    if kind is int and "." in number:
        raise ValueError(f"{section} is not an integer")
    if not low <= float(number) <= high:
        raise ValueError(f"{section} is not in {key}{low:g}..{key}{high:g}")
    return key, kind(number)


class Augmentation(Section):
    color_jitter: float = Field(
        0.0,
        ge=0,
        description="maximum change of brightness, contrast and saturation; applied if no policy is on, or with a 3a "
        "policy",
    )
    auto_augment: bool = Field(False, description="AutoAugment's ImageNet policy, as PaddleViT has it")
    rand_augment: bool = Field(False, description="RandAugment as PaddleViT has it; precedes AUTO_AUGMENT")
    rand_augment_layers: int = Field(2, ge=1, le=100, description="RandAugment: operations per image")
    rand_augment_magnitude: float = Field(9, ge=0, le=_MAX_MAGNITUDE, description="RandAugment: mean magnitude")
    augment_policy: str | None = Field(
        None,
        description="timm's policy string, such as rand-m9-mstd0.5-inc1, 3a, augmix-m3-w3 or original; precedes "
        "RAND_AUGMENT",
    )
    mixup_alpha: float = Field(0.0, ge=0, description="mixup: Beta parameter; 0: off")
    mixup_prob: Probability = Field(1.0, description="probability of mixup or CutMix per batch, pair or image")
    mixup_switch_prob: Probability = Field(0.5, description="probability of CutMix if both are on")
    mixup_mode: Literal["batch", "pair", "elem"] = Field(
        "batch", description="one draw per batch, per pair of images that are mixed with each other, or per image"
    )
    mixup_off_epoch: int = Field(0, ge=0, description="no mixup and CutMix from this epoch, counted from 0; 0: never")
    cutmix_alpha: float = Field(0.0, ge=0, description="CutMix: Beta parameter; 0: off")
    cutmix_minmax: Pair | None = Field(
        None, description="CutMix: range of the box sides / image size, instead of CUTMIX_ALPHA; null: off"
    )
    random_erase_prob: Probability = Field(0.0, description="probability of random erasing per training image")
    random_erase_mode: Literal["const", "rand", "pixel"] = Field(
        "pixel", description="erased pixels become the mean color, one random color per rectangle, or noise"
    )
    random_erase_count: int = Field(1, ge=1, le=100, description="maximum number of rectangles per erased image")
    random_erase_split: bool = Field(False, description="no effect, as in PaddleViT, which erases per image")

    @field_validator("augment_policy")
    @classmethod
    def _check_policy(cls, policy: str | None) -> str | None:
        return policy if policy is None else check_policy(policy)

    @field_validator("cutmix_minmax")
    @classmethod
    def _check_minmax(cls, minmax: tuple[float, float] | None) -> tuple[float, float] | None:
        if minmax is not None and not 0 <= minmax[0] < minmax[1] <= 1:
            raise ValueError("the values must ascend, within 0..1")
        return minmax
