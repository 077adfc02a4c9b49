"""The keys of TRAIN about augmentation."""

import re
from typing import Literal

from pydantic import Field, field_validator

from configs.schema.section import Pair, Probability, Section

_MAX_MAGNITUDE = 10
_M, _STD, _PROBABILITY = r"m(\d|[12]\d|30)", r"mstd\d{1,3}(\.\d{1,9})?", r"p(0(\.\d{1,9})?|1(\.0)?)"
# timm's policy strings: name -> a section after it. n: weighted choice is without replacement, of 14 operations or more
_SECTIONS = {
    "rand": rf"{_M}|n([1-9]|1[0-4])|{_PROBABILITY}|{_STD}|mmax([1-9]|[12]\d|30)|inc[01]|tweights|t3a|t3aw",
    "augmix": rf"{_M}|w([1-9]|10)|d([1-9]|10)|a(0\.[1-9]\d{{0,8}}|[1-9]\d?(\.\d{{1,9}})?|100)|b[01]|{_STD}",
    **dict.fromkeys(("original", "originalr", "v0", "v0r", "3a"), _STD),
}


def check_policy(text: str) -> str:
    """Returns a string that `timm.data.auto_augment` reads completely. timm skips or asserts other parts.

    Raises:
        ValueError: an unknown policy, an unknown section, or a value out of range.
    """
    name, *sections = text.split("-")
    if name not in _SECTIONS:
        raise ValueError(f"the policy {name!r} is unknown; known: {', '.join(_SECTIONS)}")
    values = {}
    for section in sections:
        if not re.fullmatch(_SECTIONS[name], section, re.ASCII):
            raise ValueError(f"the section {section!r} of {name} is unknown, or its value is out of range")
        key = "t" if section.startswith("t") else section.rstrip("0123456789.")
        if key in values:
            raise ValueError(f"{key} is given twice")
        values[key] = section.removeprefix(key)
    if int(values.get("m", 0)) > int(values.get("mmax", _MAX_MAGNITUDE)):
        raise ValueError(f"m{values['m']} exceeds the maximum; lower it, or add mmax{values['m']}")
    return text


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
