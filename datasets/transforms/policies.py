"""Augmentation policies on Pillow images: PaddleViT's RandAugment, AutoAugment and color jitter, and timm's strings.

A policy is called with (image, generator of the sample) and returns an image; the same object if it changes nothing.

timm draws from the global generators of `random` and NumPy. Here its module is loaded a second time, under another
name, and both generators are replaced in this copy only: draws are a function of the sample, and the process's
generators stay as they are. Loading the file alone also spares each worker the import of timm, two seconds.
"""

import functools
import importlib.util
import math
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageEnhance, ImageOps

from configs.schema import Data, Train

_FILL = 128  # gray, beside a sheared or shifted image
_RAND_AUGMENT = (
    *("AutoContrast", "Equalize", "Invert", "Rotate", "PosterizeIncreasing", "SolarizeIncreasing", "SolarizeAdd"),
    *("ColorIncreasing", "ContrastIncreasing", "BrightnessIncreasing", "SharpnessIncreasing"),
    *("ShearX", "ShearY", "TranslateX", "TranslateY"),
)  # all effects increase with the magnitude
_LAYER_PROBABILITY = 0.5
_NUMPY_SEED_BITS = 32

Policy = Callable[[Image.Image, random.Random], Image.Image]
_Operation = Callable[[Image.Image], Image.Image]


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


class RandAugment:
    """`layers` of the 15 operations, with replacement, each with probability 0.5 (Cubuk et al., 2020).

    The magnitude is normally distributed with standard deviation 0.5, and clipped to 0..10.
    """

    def __init__(self, layers: int, magnitude: float) -> None:
        self.layers, self.magnitude = layers, magnitude

    def __call__(self, image: Image.Image, rng: random.Random) -> Image.Image:
        timm_policies().random = rng
        for operation in rng.choices(_rand_augment(self.magnitude, len(image.getbands())), k=self.layers):
            image = operation(image)
        return image


class AutoAugment:
    """One of the 25 pairs of operations found for ImageNet (Cubuk et al., 2019), with RandAugment's magnitude noise."""

    def __call__(self, image: Image.Image, rng: random.Random) -> Image.Image:
        timm_policies().random = rng
        for operation in rng.choice(_auto_augment(len(image.getbands()))):
            image = operation(image)
        return image


@functools.cache
def _rand_augment(magnitude: float, channels: int) -> list[_Operation]:
    build, parameters = timm_policies().AugmentOp, _paddle_parameters(channels)
    return [_as_paddle(build(name, _LAYER_PROBABILITY, magnitude, parameters)) for name in _RAND_AUGMENT]


@functools.cache
def _auto_augment(channels: int) -> list[list[_Operation]]:
    pairs = timm_policies().auto_augment_policy_original(_paddle_parameters(channels))
    return [[_as_paddle(operation) for operation in pair] for pair in pairs]


def _paddle_parameters(channels: int) -> dict[str, Any]:
    return {
        "magnitude_std": 0.5,
        "translate_const": 100,  # pixels
        "img_mean": (_FILL,) * channels,
        "interpolation": Image.Resampling.NEAREST,
    }


def _as_paddle(operation: Any) -> _Operation:
    """timm's operation with a draw also for the probability 1, and with black corners after a rotation."""
    operation.prob = math.nextafter(operation.prob, 0)
    if operation.name == "Rotate":
        del operation.kwargs["fillcolor"]
    return operation


class ColorJitter:
    """Brightness, contrast and saturation times 1 +- `strength`, in random order, as torchvision and Paddle do it."""

    def __init__(self, strength: float) -> None:
        self.low, self.high = max(0, 1 - strength), 1 + strength

    def __call__(self, image: Image.Image, rng: random.Random) -> Image.Image:
        for kind in rng.sample((ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color), 3):
            image = kind(image).enhance(rng.uniform(self.low, self.high))
        return image


def build_policies(data: Data, train: Train) -> list[Policy]:
    """AUGMENT_POLICY precedes RAND_AUGMENT, AUTO_AUGMENT and COLOR_JITTER; only 3a keeps the jitter, as in timm."""
    jitter: list[Policy] = [ColorJitter(train.color_jitter)] if train.color_jitter else []
    if train.augment_policy:
        policy = TimmPolicy(train.augment_policy, min(data.input_size), data.imagenet_mean, data.interpolation)
        return [policy, *jitter] if "3a" in train.augment_policy else [policy]
    if train.rand_augment:
        return [RandAugment(train.rand_augment_layers, train.rand_augment_magnitude)]
    return [AutoAugment()] if train.auto_augment else jitter


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
        module.NAME_TO_OP[name] = _posterize
    return module


def _posterize(image: Image.Image, bits: int, **_: Any) -> Image.Image:
    """Keeps the upper `bits` of each value; 0 bits or fewer: black. Pillow 13 refuses 0 bits."""
    return ImageOps.posterize(image, min(bits, 8)) if bits > 0 else Image.new(image.mode, image.size)


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
