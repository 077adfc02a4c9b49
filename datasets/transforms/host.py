"""Host transforms: operations on one image, in a loading worker, and the cropping and resizing of uint8 images.

To add an operation, write a function of (options, image, rng) and add it to `_operations`. The operations of a sample
share one generator, which is a function of (seed, epoch, sample index, repeat).

Flips are computed here: on the host a flip takes a hundredth of the time of decoding; in a batch on a CPU, a tenth.

Legend: B images per batch, C channels, S pixels on a side.
"""

import math
import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch.nn.functional import interpolate

from configs.parts import HOST_AUGMENTATIONS, running_plugins
from configs.schema import Data, Train
from datasets.decoding.decode import LazyImage
from datasets.decoding.partial_jpeg import Box
from datasets.transforms.device import RandomDeviceOperation, device_operations
from datasets.transforms.policies import PillowPolicies, build_policies
from utils.errors import UserError
from utils.seeding import derive_seed

_MAX_TRIES = 10


def resize(image: torch.Tensor, height: int, width: int, interpolation: str = "bicubic") -> torch.Tensor:
    """Resamples torch.uint8 (C, H, W) to (C, height, width): bicubic or bilinear, antialiased, as Pillow does.

    An image that already has this size is returned unchanged.
    """
    if image.shape[1:] == (height, width):
        return image
    return interpolate(image[None], size=(height, width), mode=interpolation, antialias=True)[0]


def eval_crop(data: Data, image: LazyImage, rng: random.Random) -> torch.Tensor:
    """The part of the image that an evaluation shows, torch.uint8 (C, H, W) of DATA.IMAGE_SIZE.

    The image is resized for a crop of floor(IMAGE_SIZE / CROP_PCT), then its center is shown. DATA.RESIZE crop resizes
    it to cover this crop, pad to fit into it, squash to its proportions: timm's crop modes `center`, `border` and
    `squash`, which round as torchvision's Resize and CenterCrop. A border is black, with pad in the mean color. With
    crop it is placed as by PaddlePaddle's CenterCrop: torchvision and timm place it one pixel differently if it is odd.
    """
    pixels, size = image.pixels, data.input_size
    crop = [math.floor(round(side / data.crop_pct, 6)) for side in size]  # 224 / 0.56 is 399.99999999999994
    if data.resize == "crop" and crop[0] == crop[1]:
        crop = [side * crop[0] // min(pixels.shape[1:]) for side in pixels.shape[1:]]
    elif data.resize != "squash":
        ratios = [side / target for side, target in zip(pixels.shape[1:], crop, strict=True)]
        ratio = max(ratios) if data.resize == "pad" else min(ratios)
        crop = [max(1, round(side / ratio)) for side in pixels.shape[1:]]
    resized = resize(pixels, crop[0], crop[1], data.interpolation)
    margins = [side - target for side, target in zip(crop, size, strict=True)]
    top, left = (-(-margin // 2) if margin < 0 and data.resize != "crop" else round(margin / 2) for margin in margins)
    shown = resized[:, max(0, top) :, max(0, left) :][:, : size[0], : size[1]]
    if min(margins) >= 0:
        return shown
    color = [round(255 * value) if data.resize == "pad" else 0 for value in data.imagenet_mean]
    canvas = torch.tensor(color, dtype=torch.uint8).view(-1, 1, 1).repeat(1, *size)
    canvas[:, max(0, -top) :, max(0, -left) :][:, : shown.shape[1], : shown.shape[2]] = shown
    return canvas


def random_crop_box(
    height: int, width: int, scale: tuple[float, float], ratio: tuple[float, float], rng: random.Random
) -> Box:
    """A random box inside an image of `height` x `width` pixels, by the rule of torchvision's RandomResizedCrop.

    The box's area, as a share of the image's, is uniform in `scale`; the logarithm of its width / height is uniform in
    the logarithms of `ratio`. If ten boxes do not fit into the image, the result is the central box whose aspect ratio
    is closest to `ratio`.
    """
    log_ratio = [math.log(bound) for bound in ratio]
    for _ in range(_MAX_TRIES):
        area = height * width * rng.uniform(*scale)
        aspect = math.exp(rng.uniform(*log_ratio))
        box_height, box_width = round(math.sqrt(area / aspect)), round(math.sqrt(area * aspect))
        if 0 < box_height <= height and 0 < box_width <= width:
            return rng.randint(0, height - box_height), rng.randint(0, width - box_width), box_height, box_width
    box_height = min(height, round(width / ratio[0]))
    box_width = min(width, round(height * ratio[1]))
    return (height - box_height) // 2, (width - box_width) // 2, box_height, box_width


_SMALL = 32  # pixels on a side, to which images are resized in 30 microseconds
_ImageOperation = Callable[[torch.Tensor, random.Random], torch.Tensor]


def random_resized_crop(data: Data, image: LazyImage, rng: random.Random) -> torch.Tensor:
    """A random box of the image, resized to (C, S, S) (Szegedy et al., 2014). Only the box is decoded if possible."""
    height, width = data.input_size
    low, high = (ratio * (width / height) for ratio in data.random_crop_ratio)
    box = random_crop_box(*image.size, data.random_crop_scale, (low, high), rng)
    return resize(image.crop(box), *data.input_size, data.interpolation)


def random_flip(axis: int, probability: float, image: torch.Tensor, rng: random.Random) -> torch.Tensor:
    return image.flip(axis) if rng.random() < probability else image


def _operations(data: Data, train: Train) -> Iterator[_ImageOperation]:
    """Yields the operations after the crop, uint8 (C, S, S) -> uint8 (C, S, S), in their order."""
    yield partial(random_flip, -1, data.hflip_prob)
    if data.vflip_prob:
        yield partial(random_flip, -2, data.vflip_prob)
    if policies := build_policies(data, train):
        yield PillowPolicies(policies)
    for name, options in (data.host_augmentations or {}).items():
        yield HOST_AUGMENTATIONS.build(name, options)


class HostTransform:
    """A crop and operations on one image; it also draws the random parameters of the device operations.

    A device operation's parameters depend on the sample, not on its batch, so they are drawn here.
    `is_costly`: it takes longer than to send the image from a worker to the rank.
    """

    def __init__(
        self,
        crop: Callable[[LazyImage, random.Random], torch.Tensor],
        operations: Sequence[_ImageOperation] = (),
        device_operations: Sequence[RandomDeviceOperation] = (),
        seed: int = 0,
        *,
        is_costly: bool = True,
    ) -> None:
        self.plugins = running_plugins()  # the first attribute: a worker runs them before it unpickles the operations
        self.crop, self.operations, self.device_operations, self.seed = crop, operations, device_operations, seed
        self.is_costly = is_costly

    def generator(self, epoch: int, index: int, repeat: int = 0) -> random.Random:
        place = (epoch, index, repeat) if repeat else (epoch, index)
        return random.Random(derive_seed(self.seed, "augment", *place))

    def __call__(self, image: LazyImage, epoch: int, index: int, repeat: int = 0) -> tuple[torch.Tensor, list[Any]]:
        """Returns uint8 (C, S, S) and the parameters that each device operation has drawn for this sample."""
        rng = self.generator(epoch, index, repeat)
        pixels = self.crop(image, rng)
        expected = pixels.dtype, pixels.shape
        for operation in self.operations:
            pixels = operation(pixels, rng)
        if (pixels.dtype, pixels.shape) != expected:  # a plugin's error, which would train on noise
            found = f"{pixels.dtype} {(*pixels.shape,)}"
            raise UserError(f"DATA.HOST_AUGMENTATIONS: must return torch.uint8 {(*expected[1],)}, not {found}")
        return pixels, [operation.draw(rng) for operation in self.device_operations]

    def collate(self, drawn: Sequence[list[Any] | None]) -> dict[str, tuple[torch.Tensor, ...]]:
        """The drawn parameters of a batch (B,), None for padding, as tensors by the name of their operation."""
        tensors = {}
        for number, operation in enumerate(self.device_operations):
            parameters = operation.collate([sample and sample[number] for sample in drawn])
            if parameters is not None:
                tensors[operation.name] = parameters
        return tensors


def build_host_transform(data: Data, train: Train, seed: int) -> HostTransform:
    """The host transform of training images."""
    drawing = [
        operation for operation in device_operations(data, train) if isinstance(operation, RandomDeviceOperation)
    ]
    operations = list(_operations(data, train))
    crop = (*data.random_crop_scale, *data.random_crop_ratio)
    augments = len(operations) > 1 or data.hflip_prob > 0 or crop != (1, 1, 1, 1)
    is_costly = augments or max(data.input_size) > _SMALL
    first = random_resized_crop if data.resize == "crop" else eval_crop
    return HostTransform(partial(first, data), operations, drawing, seed, is_costly=is_costly)


def build_eval_host_transform(data: Data) -> HostTransform:
    """The host transform of validation images."""
    return HostTransform(partial(eval_crop, data), is_costly=max(data.input_size) > _SMALL)
