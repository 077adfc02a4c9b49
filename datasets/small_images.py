"""What small versions of the images show: the pixel baseline, and evaluated images that are similar to training images.

The pixel baseline is the top-1 of a linear classifier of small images, which a trained model must exceed. It calls no
function of torch, and takes no random number of the run.

With similar images, an evaluation is optimistic. Two images are similar if the cosine of their thumbnails of 8x8
pixels, without the mean, is at least 0.99; or at least 0.93, and 0.1 above the cosine with the sixth most similar
training image, since skies and seas resemble many others. docs/data.md has what this finds in CIFAR-10.

Legend: N training images, M evaluated images, F values of a small image or thumbnail.
"""

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from tqdm import tqdm

from configs.schema import Data
from datasets.decoding.decode import MODES, decode_small
from datasets.decoding.images import BadImage
from datasets.sources.in_memory import ImageArray
from datasets.sources.samples import EncodedImages, Samples
from utils.errors import UserError
from utils.files import open_atomically
from utils.system import usable_cores

Readable = EncodedImages | ImageArray
_SIDE, _PENALTY = 16, 500  # the penalty was chosen on 100 to 5,000 hand signs and images of CIFAR-10
_TRAINING, _VALIDATION, _MAX_CLASSES = 5000, 2000, 1000
_SECONDS_PER_IMAGE = 4e-3  # of a core, at most on average; a JPEG of 500x375 pixels takes 1e-3
_READ_SECONDS = 60  # of a slow disk
_THUMBNAIL = 8
_SIMILAR, _EQUAL, _ABOVE_OTHERS, _OTHER = 0.93, 0.99, 0.1, 5
_CELLS = 1 << 26  # of similarities at a time
_CHUNK = 256  # images between two looks at signals


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
    by_class, counts = order[np.argsort(labels[order], kind="stable")], np.bincount(labels)
    turns = np.arange(len(labels)) - np.repeat(counts.cumsum() - counts, counts)
    return by_class[np.argsort(turns, kind="stable")[:number]]


def ridge_top1(pixels: np.ndarray, labels: np.ndarray, val_pixels: np.ndarray, val_labels: np.ndarray) -> float:
    """Top-1 in percent of ridge regression (Hoerl and Kennard, 1970) on one-hot targets, with an intercept.

    The penalty is 500 for pixels, float32 (N, F), that are divided by their common standard deviation.
    """
    mean, targets = pixels.mean(0), np.eye(labels.max() + 1, dtype=np.float32)[labels]
    centred = pixels - mean
    penalty = _PENALTY * max(centred.var(), 1) * np.eye(len(mean), dtype=np.float32)  # 1: of equal images
    weight = np.linalg.solve(centred.T @ centred + penalty, centred.T @ targets)
    scores = (val_pixels - mean) @ weight + targets.mean(0)
    return 100 * float(np.mean(scores.argmax(1) == val_labels))


def _read(data: Data, samples: Readable, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The readable images, float32 (N, F), and their labels; fewer if decoding takes too long.

    An image is the part that evaluations show: its center with DATA.RESIZE crop, else the whole image.
    """
    pixels, read = [], []
    deadlines = time.thread_time() + _SECONDS_PER_IMAGE * len(indices), time.monotonic() + _READ_SECONDS
    for index in indices.tolist():
        if time.thread_time() > deadlines[0] or time.monotonic() > deadlines[1]:
            break
        with suppress(BadImage):
            image = read_small(data, samples, index, 2 * _SIDE)
            width, height = image.size
            rows, columns = data.input_size
            scale = min(width / columns, height / rows) * min(data.crop_pct, 1)
            x, y = (columns * scale, rows * scale) if data.resize == "crop" else image.size
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


def find_similar(train: np.ndarray, others: np.ndarray) -> list[tuple[int, int, float]]:
    """The index of each image that is similar to a training image, the index of that image, and their similarity.

    train: uint8 (N, F). others: uint8 (M, F).
    """
    references, found = _directions(train), list[tuple[int, int, float]]()
    for rows in np.array_split(np.arange(len(others)), -(-len(others) * len(train) // _CELLS) or 1):
        similar, matches = (_directions(others[rows]) @ references.T).topk(min(_OTHER + 1, len(train)))
        stands_out = similar[:, 0] - similar[:, -1] >= _ABOVE_OTHERS
        places = ((similar[:, 0] >= _EQUAL) | ((similar[:, 0] >= _SIMILAR) & stands_out)).nonzero()[:, 0]
        columns = rows[places.numpy()].tolist(), matches[places, 0].tolist(), similar[places, 0].tolist()
        found += zip(*columns, strict=True)
    return found


def _directions(thumbnails: np.ndarray) -> torch.Tensor:
    values = torch.from_numpy(thumbnails).float()
    return F.normalize(values - values.mean(1, keepdim=True))


def read_thumbnails(data: Data, samples: Readable, kept: Path) -> np.ndarray:
    """Thumbnails, uint8 (N, F); zeros for unreadable images. kept: the folder for the thumbnails of earlier runs."""
    file = kept / f"thumbnails-{data.image_channels}.npy"
    row = [("key", np.uint64), ("values", np.uint8, (_THUMBNAIL**2 * data.image_channels,))]
    rows = np.zeros(len(samples), row)
    known, is_missing = rows[:0], np.ones(len(samples), bool)
    if not samples.in_memory:
        rows["key"] = _keys(samples, data)
        with suppress(Exception):  # none, or damaged; mapped: it is never larger than the file
            stored = np.load(file, mmap_mode="r", allow_pickle=False)
            known = np.array(stored) if (stored.dtype, stored.ndim) == (rows.dtype, 1) else known
        places = np.searchsorted(known["key"], rows["key"])
        is_missing = np.append(known["key"], 0)[places] != rows["key"]
        rows[~is_missing] = known[places[~is_missing]]

    def read(indices: np.ndarray) -> None:
        for index in indices.tolist():
            with suppress(BadImage):
                image = read_small(data, samples, index, 2 * _THUMBNAIL)
                rows["values"][index] = np.asarray(image.resize((_THUMBNAIL, _THUMBNAIL), Image.Resampling.BOX)).ravel()

    missing = np.flatnonzero(is_missing)
    chunks, pool = np.array_split(missing, -(-len(missing) // _CHUNK) or 1), ThreadPoolExecutor(len(usable_cores()))
    try:
        for _ in tqdm(pool.map(read, chunks), "similar images", len(chunks), leave=False, disable=None):
            pass
    finally:
        pool.shutdown(cancel_futures=True)
    if len(missing) and not samples.in_memory:
        all_rows = np.concatenate([rows, known])
        kept.mkdir(parents=True, exist_ok=True)
        with open_atomically(file, "wb") as opened:
            np.save(opened, all_rows[np.unique(all_rows["key"], return_index=True)[1]], allow_pickle=False)
    return rows["values"]


def _keys(samples: Samples, data: Data) -> np.ndarray:
    """A hash of the name and the state of each image: uint64 (N,)."""
    states, digests = samples.states(), []
    for index in range(len(samples)):
        text = f"{samples.name(index)}\0{states[index]}\0{data.grey_range}"
        digests.append(blake2b(text.encode("utf-8", "surrogateescape"), digest_size=8).digest())
    return np.frombuffer(b"".join(digests), np.uint64)
