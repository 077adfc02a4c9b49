"""The pixel baseline: the top-1 of a linear classifier of small images, which a trained model must exceed.

It calls no function of torch, and takes no random number of the run.

Legend: N training images, F values of a small image.
"""

import time
from contextlib import suppress
from typing import NamedTuple

import numpy as np
from PIL import Image

from configs.schema import Data
from datasets.decoding.decode import MODES, decode_small
from datasets.decoding.images import BadImage
from datasets.sources.samples import EncodedImages, Samples
from datasets.sources.sets.in_memory import ImageArray
from datasets.sources.split import places_in_classes
from utils.errors import UserError

Readable = EncodedImages | ImageArray
# the penalty was chosen on 100 to 5,000 hand signs and images of CIFAR-10
_SIDE = 16
_PENALTY = 500
_TRAINING = 5000
_VALIDATION = 2000
_MAX_CLASSES = 1000
_READ_SECONDS = 30  # of a slow disk; 5,000 JPEGs of 500x375 pixels take 5


class Baseline(NamedTuple):
    """Top-1 in percent of a linear classifier of small images and of the largest class, and the numbers of images."""

    pixel_baseline: float
    majority_class: float
    training: int
    validation: int


def pixel_baseline(data: Data, train: Samples, val: Samples) -> Baseline | None:
    """The baseline; None for data with several labels per image or over 1,000 classes, shards on a server, and `fake`.

    Raises UserError: no image is readable.
    """
    has_none = data.multi_label or "://" in data.data_path or train.targets.max() >= _MAX_CLASSES
    if has_none or not (isinstance(train, Readable) and isinstance(val, Readable)):
        return None
    pixels, labels = _read(data, train, draw_evenly(train.targets, _TRAINING))
    shown = _read(data, val, np.random.default_rng(0).permutation(len(val))[:_VALIDATION])
    majority = 100 * float(np.mean(shown[1] == np.bincount(train.targets).argmax()))
    return Baseline(ridge_top1(pixels, labels, *shown), majority, len(labels), len(shown[1]))


def draw_evenly(labels: np.ndarray, number: int) -> np.ndarray:
    """Indices of at most `number` samples: one of each class in turn, as long as it has any; the same in each run."""
    order = np.random.default_rng(0).permutation(len(labels))
    turns, _ = places_in_classes(labels[order])
    return order[np.lexsort((labels[order], turns))[:number]]


def ridge_top1(pixels: np.ndarray, labels: np.ndarray, val_pixels: np.ndarray, val_labels: np.ndarray) -> float:
    """Top-1 in percent of ridge regression (Hoerl and Kennard, 1970) on one-hot targets, with an intercept.

    The penalty is 500 for pixels, float32 (N, F), that are divided by their common standard deviation.
    """
    mean = pixels.mean(0)
    targets = np.eye(labels.max() + 1, dtype=np.float32)[labels]
    centred = pixels - mean
    penalty = _PENALTY * max(centred.var(), 1) * np.eye(len(mean), dtype=np.float32)  # 1: of equal images
    weight = np.linalg.solve(centred.T @ centred + penalty, centred.T @ targets)
    scores = (val_pixels - mean) @ weight + targets.mean(0)
    return 100 * float(np.mean(scores.argmax(1) == val_labels))


def _read(data: Data, samples: Readable, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The readable images, float32 (N, F), and their labels; fewer if decoding takes too long.

    An image is the part that evaluations show: its center with DATA.RESIZE crop, else the whole image.
    """
    pixels = []
    read = []
    deadline = time.monotonic() + _READ_SECONDS
    for index in indices.tolist():
        if time.monotonic() > deadline:
            break
        with suppress(BadImage):
            image = read_small(data, samples, index, 2 * _SIDE)
            width, height = image.size
            rows, columns = data.input_size
            scale = min(width / columns, height / rows) * min(data.crop_pct, 1)
            x, y = (min(columns * scale, width), min(rows * scale, height)) if data.resize == "crop" else image.size
            box = (width - x) / 2, (height - y) / 2, (width + x) / 2, (height + y) / 2
            pixels.append(np.asarray(image.resize((_SIDE, _SIDE), Image.Resampling.BILINEAR, box)).ravel())
            read.append(index)
    if not read:
        raise UserError("no image is readable")
    return np.stack(pixels).astype(np.float32), samples.targets[read]


def read_small(data: Data, samples: Readable, index: int, side: int) -> Image.Image:
    """The image with DATA.IMAGE_CHANNELS; of a large JPEG at a fraction of its size, at least `side` pixels on a side.

    Raises BadImage: it cannot be read.
    """
    mode = MODES[data.image_channels]
    if isinstance(samples, ImageArray):
        return Image.fromarray(np.moveaxis(samples.images[index], 0, -1).squeeze()).convert(mode)
    return decode_small(samples.read_bytes(index), mode, side, samples.decoding)
