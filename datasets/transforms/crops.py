"""Cropping and resizing of uint8 images."""

import math
import random
from collections.abc import Sequence

import torch
from torch.nn.functional import interpolate, pad

from datasets.decoding.partial_jpeg import Box

_MAX_TRIES = 10


def resize(image: torch.Tensor, height: int, width: int, interpolation: str = "bicubic") -> torch.Tensor:
    """Resamples torch.uint8 (C, H, W) to (C, height, width): bicubic or bilinear, antialiased, as Pillow does.

    An image that already has this size is returned unchanged.
    """
    if image.shape[1:] == (height, width):
        return image
    return interpolate(image[None], size=(height, width), mode=interpolation, antialias=True)[0]


def center_crop(image: torch.Tensor, size: int, crop_pct: float, interpolation: str = "bicubic") -> torch.Tensor:
    """The center of torch.uint8 (C, H, W) as (C, size, size), for evaluation.

    The shorter side is resized to floor(size / crop_pct), so that the crop shows `crop_pct` of it. It rounds as
    torchvision's Resize and CenterCrop. With `crop_pct` above 1 the resized image is smaller than the crop and gets a
    border of zeros, as from PaddlePaddle's CenterCrop; torchvision places it one pixel differently if it is odd.
    """
    short_side = math.floor(round(size / crop_pct, 6))  # 224 / 0.56 is 399.99999999999994
    height, width = (side * short_side // min(image.shape[1:]) for side in image.shape[1:])
    top, left = round((height - size) / 2), round((width - size) / 2)
    resized = resize(image, height, width, interpolation)
    if top < 0 or left < 0:
        border = (-left, left + size - width, -top, top + size - height)
        return pad(resized, border)
    return resized[:, top : top + size, left : left + size]


def pad_to_square(
    image: torch.Tensor, size: int, color: Sequence[float], interpolation: str = "bicubic"
) -> torch.Tensor:
    """The whole of torch.uint8 (C, H, W) as (C, size, size), as timm's crop mode `border`.

    The longer side is resized to `size`; the rest has the `color`, 0..1 per channel.
    """
    height, width = (max(1, round(side * size / max(image.shape[1:]))) for side in image.shape[1:])
    top, left = (size - height) // 2, (size - width) // 2
    padded = torch.tensor([round(255 * value) for value in color], dtype=torch.uint8).view(-1, 1, 1)
    padded = padded.repeat(1, size, size)
    padded[:, top : top + height, left : left + width] = resize(image, height, width, interpolation)
    return padded


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
