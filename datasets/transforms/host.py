"""Host transforms: operations on one image, in a loading worker.

To add an operation, write a function of (options, image, rng) and add it to `_operations`. The operations of a sample
share one generator, which is a function of (seed, epoch, sample index, repeat).

Flips are computed here: on the host a flip takes a hundredth of the time of decoding; in a batch on a CPU, a tenth.

Legend: B images per batch, C channels, S pixels on a side.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch

from configs.parts import HOST_AUGMENTATIONS, running_plugins
from configs.schema import Data, Train
from datasets.decoding.decode import LazyImage
from datasets.transforms.crops import center_crop, pad_to_square, random_crop_box, resize
from datasets.transforms.device import RandomDeviceOperation, device_operations
from datasets.transforms.policies import PillowPolicies, build_policies
from utils.errors import UserError
from utils.seeding import derive_seed

_SMALL = 32  # pixels on a side, to which images are resized in 30 microseconds
_ImageOperation = Callable[[torch.Tensor, random.Random], torch.Tensor]


def random_resized_crop(data: Data, image: LazyImage, rng: random.Random) -> torch.Tensor:
    """A random box of the image, resized to (C, S, S) (Szegedy et al., 2014). Only the box is decoded if possible."""
    box = random_crop_box(*image.size, data.random_crop_scale, data.random_crop_ratio, rng)
    return resize(image.crop(box), data.image_size, data.image_size, data.interpolation)


def central_crop(data: Data, image: LazyImage, rng: random.Random) -> torch.Tensor:
    """The center of the image, resized to (C, S, S)."""
    return center_crop(image.pixels, data.image_size, data.crop_pct, data.interpolation)


def whole_image(data: Data, image: LazyImage, rng: random.Random) -> torch.Tensor:
    """The whole image as (C, S, S), in other proportions or with a border: DATA.RESIZE squash and pad."""
    if data.resize == "pad":
        return pad_to_square(image.pixels, data.image_size, data.imagenet_mean, data.interpolation)
    return resize(image.pixels, data.image_size, data.image_size, data.interpolation)


def random_flip(data: Data, image: torch.Tensor, rng: random.Random) -> torch.Tensor:
    return image.flip(-1) if rng.random() < data.hflip_prob else image


def random_vertical_flip(data: Data, image: torch.Tensor, rng: random.Random) -> torch.Tensor:
    return image.flip(-2) if rng.random() < data.vflip_prob else image


def _operations(data: Data, train: Train) -> Iterator[_ImageOperation]:
    """Yields the operations after the crop, uint8 (C, S, S) -> uint8 (C, S, S), in their order."""
    yield partial(random_flip, data)
    if data.vflip_prob:
        yield partial(random_vertical_flip, data)
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
    is_costly = augments or data.image_size > _SMALL
    first = random_resized_crop if data.resize == "crop" else whole_image
    return HostTransform(partial(first, data), operations, drawing, seed, is_costly=is_costly)


def build_eval_host_transform(data: Data) -> HostTransform:
    """The host transform of validation images."""
    crop = central_crop if data.resize == "crop" else whole_image
    return HostTransform(partial(crop, data), is_costly=data.image_size > _SMALL)
