"""The image operations of AutoAugment (Cubuk et al., 2019) and RandAugment (Cubuk et al., 2020), on Pillow images.

Names, arguments and their ranges follow PaddleViT: nearest-neighbour resampling, fill 128 (0 in rotations), and
translations in pixels. Images are gray (mode L) or RGB.
"""

import random
from collections.abc import Callable
from functools import partial
from typing import Any

from PIL import Image, ImageEnhance, ImageOps

MAX_MAGNITUDE = 10
_FILL = 128
_ENHANCED = ("Color", "Contrast", "Brightness", "Sharpness")


def posterize(image: Image.Image, bits: int, **_: Any) -> Image.Image:
    """Keeps the upper `bits` of each value; 0 bits or fewer: black. Pillow 13 refuses 0 bits."""
    mask = 256 - 2 ** (8 - min(max(bits, 0), 8))
    return _look_up(image, [value & mask for value in range(256)])


def _solarize_add(image: Image.Image, addend: int) -> Image.Image:
    """Adds to the values below 128."""
    return _look_up(image, [min(255, value + addend) if value < 128 else value for value in range(256)])


def _look_up(image: Image.Image, table: list[int]) -> Image.Image:
    return image.point(table * len(image.getbands()))


def _affine(image: Image.Image, *matrix: float) -> Image.Image:
    """matrix: a, b, c, d, e, f of Image.transform"""
    fill = _FILL if image.mode == "L" else (_FILL,) * 3
    return image.transform(image.size, Image.Transform.AFFINE, matrix, fillcolor=fill)


def _enhance(kind: Callable[[Image.Image], Any], image: Image.Image, factor: float) -> Image.Image:
    return kind(image).enhance(factor)


# Operation -> (image, argument) -> image
OPERATIONS: dict[str, Callable[[Image.Image, Any], Image.Image]] = {
    "AutoContrast": lambda image, _: ImageOps.autocontrast(image),
    "Equalize": lambda image, _: ImageOps.equalize(image),
    "Invert": lambda image, _: ImageOps.invert(image),
    "Rotate": lambda image, degrees: image.rotate(degrees),
    "Posterize": posterize,
    "Solarize": ImageOps.solarize,
    "SolarizeAdd": _solarize_add,
    **{name: partial(_enhance, getattr(ImageEnhance, name)) for name in _ENHANCED},
    "ShearX": lambda image, factor: _affine(image, 1, factor, 0, 0, 1, 0),
    "ShearY": lambda image, factor: _affine(image, 1, 0, 0, factor, 1, 0),
    "TranslateX": lambda image, pixels: _affine(image, 1, 0, pixels, 0, 1, 0),
    "TranslateY": lambda image, pixels: _affine(image, 1, 0, 0, 0, 1, pixels),
}

_Argument = Callable[[float, random.Random], Any]  # (share of the maximum magnitude, 0 to 1; generator) -> argument


def _signed(value: float, rng: random.Random) -> float:
    return -value if rng.random() > 0.5 else value


# Operation -> argument as a function of the magnitude, in AutoAugment.
ARGUMENTS: dict[str, _Argument] = {
    **dict.fromkeys(("AutoContrast", "Equalize", "Invert"), lambda share, rng: None),
    "Rotate": lambda share, rng: _signed(share * 30, rng),
    "Posterize": lambda share, _: int(share * 4) + 4,
    "Solarize": lambda share, _: int(share * 256),
    "SolarizeAdd": lambda share, _: int(share * 110),
    **dict.fromkeys(_ENHANCED, lambda share, rng: share * 1.8 + 0.1),
    "ShearX": lambda share, rng: _signed(share * 0.3, rng),
    "ShearY": lambda share, rng: _signed(share * 0.3, rng),
    "TranslateX": lambda share, rng: _signed(share * 100, rng),
    "TranslateY": lambda share, rng: _signed(share * 100, rng),
}

# The same in RandAugment, where all effects increase with the magnitude.
INCREASING_ARGUMENTS: dict[str, _Argument] = ARGUMENTS | {
    "Posterize": lambda share, _: 4 - int(share * 4),
    "Solarize": lambda share, _: 256 - int(share * 256),
    **dict.fromkeys(_ENHANCED, lambda share, rng: max(0.1, 1 + _signed(share * 0.9, rng))),
}
