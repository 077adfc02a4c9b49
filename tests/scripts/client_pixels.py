"""Crops of photographs, to compare the pixels of other programs with those of an evaluation."""

import random
from itertools import product
from typing import Any

import numpy as np
from conftest import values_of
from PIL import Image
from pytest import importorskip

from configs.schema import Data
from configs.schema.section import as_tuple
from datasets.decoding.decode import LazyImage
from datasets.transforms.device import Normalize
from datasets.transforms.host import eval_crop

# Boxes in the photographs, 640 x 427 pixels: whole, wide, small, and three tall ones, for which Pillow 13 begins with
# the vertical pass. With an odd border of DATA.RESIZE pad, Pillow's own ImageOps.pad is one pixel off.
BOXES = """
0 | 0 | 640 | 427
0 | 200 | 640 | 261
50 | 60 | 90 | 90
0 | 0 | 100 | 427
9 | 0 | 69 | 427
80 | 10 | 160 | 400
"""


def photographs() -> list[Image.Image]:
    images = importorskip("sklearn.datasets").load_sample_images().images
    return [Image.fromarray(image).crop(box) for image, box in product(images, values_of(BOXES))]


def pixel_options(
    resize: str, size: Any, crop_pct: float, interpolation: str, channels: int = 3
) -> tuple[Data, dict[str, Any]]:
    """The section DATA, and the preprocessing as a client reads it."""
    values = {"image_size": as_tuple(size), "resize": resize, "crop_pct": crop_pct, "interpolation": interpolation}
    mean = (0.3, 0.4, 0.5)[:channels]
    std = (0.2, 0.25, 0.3)[:channels]
    colors = {"imagenet_mean": mean, "imagenet_std": std, "image_channels": channels}
    return Data().model_copy(update=values | colors), values | {"mean": mean, "std": std, "channels": channels}


def steps_between(data: Data, image: LazyImage, found: np.ndarray) -> np.ndarray:
    """The differences of the input of a model and the one of an evaluation, in steps of 1 of 255."""
    expected = Normalize(data)(eval_crop(data, image, random.Random())[None]).numpy()
    assert found.shape == expected.shape
    return np.abs(found - expected) * 255 * np.float32(data.imagenet_std)[:, None, None]
