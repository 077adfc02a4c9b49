"""Crops and resizing, compared with Pillow and torchvision."""

import math
import random

import numpy as np
import pytest
import torch
from PIL import Image
from timm.data import create_transform
from torchvision.transforms import InterpolationMode, RandomResizedCrop
from torchvision.transforms.v2 import CenterCrop, Resize

from datasets.decoding.decode import LazyImage
from datasets.decoding.partial_jpeg import Box
from datasets.transforms.host import center_crop, pad_to_square, random_crop_box, resize
from tests.datasets.photo import PHOTO, as_tensor

BOXES = [(20, 30, 150, 100), (3, 5, 7, 250), (0, 0, 1, 1)]


def resize_crop(image: torch.Tensor, box: Box, size: int, interpolation: str = "bicubic") -> torch.Tensor:
    return resize(LazyImage(image).crop(box), size, size, interpolation)


@pytest.mark.parametrize("box", BOXES)
@pytest.mark.parametrize(
    ("mode", "interpolation", "size"), [("RGB", "bicubic", 32), ("L", "bicubic", 224), ("RGB", "bilinear", 224)]
)
def test_resize_crop_is_pillows_antialiased_filter(box, mode, interpolation, size):
    photo = PHOTO.resize((320, 280)).convert(mode)
    top, left, height, width = box
    part = photo.crop((left, top, left + width, top + height))
    reference = as_tensor(part.resize((size, size), Image.Resampling[interpolation.upper()]))
    crop = resize_crop(as_tensor(photo), box, size, interpolation)
    assert crop.dtype == torch.uint8
    assert crop.shape == reference.shape
    difference = (crop.int() - reference.int()).abs()
    assert difference.float().mean() < 0.25
    assert difference.max() <= 3


def test_resize_crop_of_its_own_size_touches_no_pixel():
    image = as_tensor(PHOTO)
    assert torch.equal(resize_crop(image, (40, 7, 96, 96), 96), image[:, 40:136, 7:103])


@pytest.mark.parametrize(
    ("width", "height", "size", "crop_pct", "interpolation"),
    [
        (261, 199, 224, 0.875, "bicubic"),
        (333, 500, 64, 0.56, "bilinear"),
        (90, 64, 33, 0.8, "bicubic"),
    ],
)
def test_center_crop_is_torchvisions(width, height, size, crop_pct, interpolation):
    photo = PHOTO.resize((width, height))
    image = as_tensor(photo)
    resize = Resize(math.floor(round(size / crop_pct, 6)), InterpolationMode(interpolation), antialias=True)
    crop = center_crop(image, size, crop_pct, interpolation)
    assert torch.equal(crop, CenterCrop(size)(resize(image)))
    on_pillow = as_tensor(CenterCrop(size)(resize(photo)))
    assert (crop.int() - on_pillow.int()).abs().float().mean() < 0.1


@pytest.mark.parametrize(("width", "height", "size"), [(261, 199, 64), (300, 3, 225)])
def test_padding_is_timms_border(width, height, size):
    photo, mean, std = PHOTO.resize((width, height)), (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    as_timm = create_transform(
        size, interpolation="bicubic", mean=mean, std=std, crop_pct=1.0, crop_mode="border", normalize=False
    )
    padded, theirs = pad_to_square(as_tensor(photo), size, mean), as_timm(photo)
    assert padded.shape == theirs.shape
    assert (padded.int() - theirs.int()).abs().float().mean() < 0.1


@pytest.mark.parametrize(("width", "height", "size", "crop_pct"), [(199, 261, 223, 1.15), (300, 100, 96, 1.3)])
def test_a_share_above_one_gives_a_border_of_zeros(width, height, size, crop_pct):
    image = as_tensor(PHOTO.resize((width, height)))
    crop = center_crop(image, size, crop_pct)
    resized = Resize(math.floor(size / crop_pct), InterpolationMode.BICUBIC, antialias=True)(image)
    # PaddlePaddle's CenterCrop: Pillow's crop, whose box may exceed the image.
    top, left = (round((side - size) / 2) for side in resized.shape[1:])
    on_pillow = Image.fromarray(resized.permute(1, 2, 0).numpy()).crop((left, top, left + size, top + size))
    assert torch.equal(crop, as_tensor(on_pillow))


def draw_both(height, width, scale, ratio, count):
    rng = random.Random(0)
    torch.manual_seed(0)
    image = torch.empty(1, height, width)
    own = np.array([random_crop_box(height, width, scale, ratio, rng) for _ in range(count)])
    return own, np.array([RandomResizedCrop.get_params(image, scale, ratio) for _ in range(count)])


@pytest.mark.parametrize(("height", "width"), [(500, 375), (200, 1000)])
@pytest.mark.parametrize("scale", [(0.08, 1.0), (0.5, 0.6)])
def test_random_crop_box_is_distributed_as_torchvisions(height, width, scale):
    own, reference = draw_both(height, width, scale, (3 / 4, 4 / 3), 3000)
    top, left, box_height, box_width = own.T
    assert (own >= [0, 0, 1, 1]).all()
    assert (top + box_height <= height).all()
    assert (left + box_width <= width).all()
    spread = reference.std(axis=0) + 0.5
    assert (np.abs(own.mean(axis=0) - reference.mean(axis=0)) < 0.1 * spread).all()
    quantiles = np.quantile(own, (0.1, 0.5, 0.9), axis=0) - np.quantile(reference, (0.1, 0.5, 0.9), axis=0)
    assert (np.abs(quantiles) < 0.2 * spread).all()


@pytest.mark.parametrize(("height", "width"), [(20, 3000), (7, 3)])
def test_random_crop_box_falls_back_to_the_center(height, width):
    own, reference = draw_both(height, width, (1.0, 1.0), (3 / 4, 4 / 3), 3)
    assert (own == reference).all()
