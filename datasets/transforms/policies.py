"""Augmentation policies on Pillow images: PaddleViT's RandAugment, AutoAugment and color jitter, and timm's strings.

A policy is called with (image, generator of the sample) and returns an image; the same object if it changes nothing.

timm draws from the global generators of `random` and NumPy. Here its module is loaded a second time, under another
name, and both generators are replaced in this copy only: draws are a function of the sample, and the process's
generators stay as they are. Loading the file alone also spares each worker the import of timm, two seconds.
"""

import functools
import importlib.util
import random
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image, ImageEnhance, ImageOps

from configs.schema import Data, Train

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


_MAGNITUDE_STD = 0.5
_LAYER_PROBABILITY = 0.5

Policy = Callable[[Image.Image, random.Random], Image.Image]


class PillowPolicies:
    """Policies in sequence on uint8 (C, S, S): one conversion to a Pillow image, and one back."""

    def __init__(self, policies: Sequence[Policy]) -> None:
        self.policies = policies

    def __call__(self, pixels: torch.Tensor, rng: random.Random) -> torch.Tensor:
        original = image = to_pillow(pixels)
        for policy in self.policies:
            image = policy(image, rng)
        return pixels if image is original else from_pillow(image)


def to_pillow(pixels: torch.Tensor) -> Image.Image:
    """uint8 (1 or 3, H, W) -> mode L, which may share memory with `pixels`, or RGB.

    A resized crop has planes in memory: to merge them takes a fifth of the time of a copy to interleaved channels.
    """
    planes = [Image.fromarray(plane.numpy()) for plane in pixels]
    return planes[0] if len(planes) == 1 else Image.merge("RGB", planes)


def from_pillow(image: Image.Image) -> torch.Tensor:
    """Mode L or RGB -> uint8 (1 or 3, H, W), a copy: plane by plane, in half of the time of `Image.split`."""
    bands = image.getbands()
    planes = np.empty((len(bands), image.height * image.width), np.uint8)
    for plane, band in zip(planes, bands, strict=True):
        plane[:] = np.frombuffer(image.tobytes("raw", band), np.uint8)
    return torch.from_numpy(planes).view(len(bands), image.height, image.width)


class _Step(NamedTuple):
    name: str
    probability: float
    magnitude: float


def _apply(image: Image.Image, step: _Step, arguments: dict[str, Any], rng: random.Random) -> Image.Image:
    if rng.random() >= step.probability:
        return image
    magnitude = min(max(rng.gauss(step.magnitude, _MAGNITUDE_STD), 0), MAX_MAGNITUDE)
    return OPERATIONS[step.name](image, arguments[step.name](magnitude / MAX_MAGNITUDE, rng))


class RandAugment:
    """`layers` of the 15 operations, with replacement, each with probability 0.5 (Cubuk et al., 2020).

    The magnitude is normally distributed with standard deviation 0.5, and clipped to 0..10.
    """

    def __init__(self, layers: int, magnitude: float) -> None:
        self.layers = layers
        self.steps = [_Step(name, _LAYER_PROBABILITY, magnitude) for name in OPERATIONS]

    def __call__(self, image: Image.Image, rng: random.Random) -> Image.Image:
        for step in rng.choices(self.steps, k=self.layers):
            image = _apply(image, step, INCREASING_ARGUMENTS, rng)
        return image


class AutoAugment:
    """One of the 25 pairs of operations found for ImageNet (Cubuk et al., 2019), with RandAugment's magnitude noise."""

    def __init__(self) -> None:
        found = timm_policies().auto_augment_policy_original({})
        self.pairs = [[_Step(op.name.removesuffix("Original"), op.prob, op.magnitude) for op in pair] for pair in found]

    def __call__(self, image: Image.Image, rng: random.Random) -> Image.Image:
        for step in rng.choice(self.pairs):
            image = _apply(image, step, ARGUMENTS, rng)
        return image


class ColorJitter:
    """Brightness, contrast and saturation times 1 +- `strength`, in random order, as torchvision and Paddle do it."""

    def __init__(self, strength: float) -> None:
        self.low, self.high = max(0, 1 - strength), 1 + strength

    def __call__(self, image: Image.Image, rng: random.Random) -> Image.Image:
        for name in rng.sample(("Brightness", "Contrast", "Color"), 3):
            image = OPERATIONS[name](image, rng.uniform(self.low, self.high))
        return image


def build_policies(data: Data, train: Train) -> list[Policy]:
    """AUGMENT_POLICY precedes RAND_AUGMENT, AUTO_AUGMENT and COLOR_JITTER; only 3a keeps the jitter, as in timm."""
    jitter: list[Policy] = [ColorJitter(train.color_jitter)] if train.color_jitter else []
    if train.augment_policy:
        policy = TimmPolicy(train.augment_policy, data.image_size, data.imagenet_mean, data.interpolation)
        return [policy, *jitter] if "3a" in train.augment_policy else [policy]
    if train.rand_augment:
        return [RandAugment(train.rand_augment_layers, train.rand_augment_magnitude)]
    return [AutoAugment()] if train.auto_augment else jitter


_NUMPY_SEED_BITS = 32


class TimmPolicy:
    """A policy such as rand-m9-mstd0.5-inc1, with the parameters that timm's `create_transform` gives it.

    Posterizing to 0 bits is black; timm's own raises with Pillow 13.
    """

    def __init__(self, policy: str, size: int, mean: tuple[float, ...], interpolation: str = "bicubic") -> None:
        self.arguments = policy, size, mean, interpolation

    def __call__(self, image: Image.Image, rng: random.Random) -> Image.Image:
        module = timm_policies()
        module.random = rng
        module.np.random.seed(rng.getrandbits(_NUMPY_SEED_BITS))
        return _build(*self.arguments)(image)


class _NumPy:
    """NumPy with a generator of its own as `random`."""

    def __init__(self) -> None:
        self.random = np.random.RandomState()

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)


@functools.cache
def timm_policies() -> Any:
    """timm's module of policies."""
    package = importlib.util.find_spec("timm")
    assert package and package.origin  # timm is a requirement
    path = Path(package.origin).parent / "data" / "auto_augment.py"
    spec = importlib.util.spec_from_file_location("timm_auto_augment_of_samples", path)
    assert spec and spec.loader
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.np = _NumPy()
    for name in ("Posterize", "PosterizeIncreasing", "PosterizeOriginal"):
        module.NAME_TO_OP[name] = posterize
    return module


@functools.cache
def _build(policy: str, size: int, mean: tuple[float, ...], interpolation: str) -> Callable[[Image.Image], Image.Image]:
    """The transform with the parameters of timm's `transforms_imagenet_train`."""
    module = timm_policies()
    parameters = {
        "translate_const": int(size * 0.45),
        "img_mean": tuple(min(255, round(255 * value)) for value in mean),
        "interpolation": Image.Resampling[interpolation.upper()],
    }
    if policy.startswith("rand"):
        return module.rand_augment_transform(policy, parameters)
    if policy.startswith("augmix"):
        return module.augment_and_mix_transform(policy, parameters | {"translate_pct": 0.3})
    return module.auto_augment_transform(policy, parameters)
