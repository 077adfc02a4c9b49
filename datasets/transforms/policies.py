"""Augmentation policies of PaddleViT: RandAugment, AutoAugment and color jitter, on Pillow images.

A policy is called with (image, generator of the sample) and returns an image; the same object if it changes nothing.
"""

import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image

from configs.schema import Data, Train
from datasets.transforms.pillow_ops import ARGUMENTS, INCREASING_ARGUMENTS, MAX_MAGNITUDE, OPERATIONS
from datasets.transforms.timm_policy import TimmPolicy, timm_policies

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
