"""The image operations of AutoAugment (Cubuk et al., 2019) and RandAugment (Cubuk et al., 2020), on Pillow images.

Names, arguments and their ranges follow PaddleViT: nearest-neighbour resampling, fill 128 (0 in rotations), and
translations in pixels. Images are gray (mode L) or RGB.
"""

import random
from collections.abc import Callable
from typing import Any

from PIL import Image, ImageEnhance, ImageOps

MAX_MAGNITUDE = 10
_FILL = 128


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


# Operation -> (image, argument) -> image
OPERATIONS: dict[str, Callable[[Image.Image, Any], Image.Image]] = {
    "AutoContrast": lambda image, _: ImageOps.autocontrast(image),
    "Equalize": lambda image, _: ImageOps.equalize(image),
    "Invert": lambda image, _: ImageOps.invert(image),
    "Rotate": lambda image, degrees: image.rotate(degrees),
    "Posterize": posterize,
    "Solarize": ImageOps.solarize,
    "SolarizeAdd": _solarize_add,
    "Color": lambda image, factor: ImageEnhance.Color(image).enhance(factor),
    "Contrast": lambda image, factor: ImageEnhance.Contrast(image).enhance(factor),
    "Brightness": lambda image, factor: ImageEnhance.Brightness(image).enhance(factor),
    "Sharpness": lambda image, factor: ImageEnhance.Sharpness(image).enhance(factor),
    "ShearX": lambda image, factor: _affine(image, 1, factor, 0, 0, 1, 0),
    "ShearY": lambda image, factor: _affine(image, 1, 0, 0, factor, 1, 0),
    "TranslateX": lambda image, pixels: _affine(image, 1, 0, pixels, 0, 1, 0),
    "TranslateY": lambda image, pixels: _affine(image, 1, 0, 0, 0, 1, pixels),
}

_Argument = Callable[[float, random.Random], Any]  # (share of the maximum magnitude, 0 to 1; generator) -> argument


def _no_argument(share: float, rng: random.Random) -> None:
    return None


def _signed(value: float, rng: random.Random) -> float:
    return -value if rng.random() > 0.5 else value


def _enhance(share: float, rng: random.Random) -> float:
    return share * 1.8 + 0.1


# Operation -> argument as a function of the magnitude, in AutoAugment.
ARGUMENTS: dict[str, _Argument] = {
    "AutoContrast": _no_argument,
    "Equalize": _no_argument,
    "Invert": _no_argument,
    "Rotate": lambda share, rng: _signed(share * 30, rng),
    "Posterize": lambda share, _: int(share * 4) + 4,
    "Solarize": lambda share, _: int(share * 256),
    "SolarizeAdd": lambda share, _: int(share * 110),
    "Color": _enhance,
    "Contrast": _enhance,
    "Brightness": _enhance,
    "Sharpness": _enhance,
    "ShearX": lambda share, rng: _signed(share * 0.3, rng),
    "ShearY": lambda share, rng: _signed(share * 0.3, rng),
    "TranslateX": lambda share, rng: _signed(share * 100, rng),
    "TranslateY": lambda share, rng: _signed(share * 100, rng),
}


def _enhance_increasing(share: float, rng: random.Random) -> float:
    return max(0.1, 1 + _signed(share * 0.9, rng))


# The same in RandAugment, where all effects increase with the magnitude.
INCREASING_ARGUMENTS: dict[str, _Argument] = ARGUMENTS | {
    "Posterize": lambda share, _: 4 - int(share * 4),
    "Solarize": lambda share, _: 256 - int(share * 256),
    "Color": _enhance_increasing,
    "Contrast": _enhance_increasing,
    "Brightness": _enhance_increasing,
    "Sharpness": _enhance_increasing,
}
