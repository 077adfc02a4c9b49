"""The pixel baseline: top-1 of a linear classifier of small images, which a trained model must exceed.

It calls no function of torch, and takes no random number of the run. Legend: N images, F values of a small image.
"""

import time
from concurrent.futures import Future, wait
from contextlib import suppress

import numpy as np
from PIL import Image

from configs.schema import Data
from datasets.decoding.decode import MODES, decode_small
from datasets.decoding.images import BadImage
from datasets.sources.in_memory import ImageArray
from datasets.sources.samples import EncodedImages, Samples
from engine.progress import EpochProgress, Observer
from engine.run.facts import FACTS, PixelBaseline, read_facts
from engine.training.session import Record, Session
from utils.errors import UserError
from utils.threads import DaemonPool

Readable = EncodedImages | ImageArray
_SIDE, _PENALTY = 16, 500  # the penalty was chosen on 100 to 5,000 hand signs and images of CIFAR-10
_TRAINING, _VALIDATION, _MAX_CLASSES = 5000, 2000, 1000
_SECONDS_PER_IMAGE = 4e-3  # of a core, at most on average; a JPEG of 500x375 pixels takes 1e-3
_READ_SECONDS = 60  # of a slow disk
_WAIT_SECONDS = 10.0  # at the end of a run


class BaselineThread(Observer):
    """Computes the baseline of a run from its first step on; a resumed run has it in its facts."""

    def __init__(self, session: Session, record: Record) -> None:
        self._plan, self._logger = session.plan, record.logger
        self.result: PixelBaseline | None = None
        self._future: Future[PixelBaseline | str | None] | None = None
        with suppress(OSError):
            self.result = read_facts(record.folder / FACTS).get(PixelBaseline)
        self._is_due = session.state.context.is_main and self.result is None

    def after_step(self, progress: EpochProgress) -> None:
        if self._is_due:
            plan, self._pool, self._is_due = self._plan, DaemonPool(1), False
            self._future = self._pool.submit(measure_baseline, plan.config.data, plan.train, plan.val)

    def after_evaluation(self) -> None:
        self.record()

    def record(self, is_end: bool = False) -> None:
        """Records the result if it is there. A run ends before it only if the images take long to read."""
        if self._future and wait([self._future], _WAIT_SECONDS * is_end).done:
            note, self._future = self._future.result(), None
            self.result = note if isinstance(note, PixelBaseline) else None
            if note:
                self._logger.note(note)


def measure_baseline(data: Data, train: Samples, val: Samples) -> PixelBaseline | str | None:
    """The baseline, or a line for the log: no run fails for it. None for data that have none.

    These are data with several labels per image or more than 1,000 classes, shards on a server, and `fake`.
    """
    has_none = data.multi_label or "://" in data.data_path or train.targets.max() >= _MAX_CLASSES
    if has_none or not (isinstance(train, Readable) and isinstance(val, Readable)):
        return None
    try:
        pixels, labels = _read(data, train, draw_evenly(train.targets, _TRAINING))
        shown = _read(data, val, np.random.default_rng(0).permutation(len(val))[:_VALIDATION])
        majority = 100 * float(np.mean(val.targets == np.bincount(train.targets).argmax()))
        return PixelBaseline(
            pixel_baseline=ridge_top1(pixels, labels, *shown),
            majority_class=majority,
            training=len(labels),
            validation=len(shown[1]),
        )
    except Exception as error:
        return f"No pixel baseline: {error}" if isinstance(error, UserError) else f"No pixel baseline: {error!r}"


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
            side = min(width, height) * min(data.crop_pct, 1)
            x, y = (side, side) if data.resize == "crop" else image.size
            box = (width - x) / 2, (height - y) / 2, (width + x) / 2, (height + y) / 2
            pixels.append(np.asarray(image.resize((_SIDE, _SIDE), Image.Resampling.BILINEAR, box)).ravel())
            read.append(index)
    if not read:
        raise UserError("no image is readable")
    return np.stack(pixels).astype(np.float32), samples.targets[read]


def read_small(data: Data, samples: Readable, index: int, side: int) -> Image.Image:
    """The image with DATA.IMAGE_CHANNELS; of a large JPEG at a fraction of its size, at least `side` pixels on a side.

    Raises:
        BadImage: it cannot be read.
    """
    mode = MODES[data.image_channels]
    if isinstance(samples, ImageArray):
        return Image.fromarray(np.moveaxis(samples.images[index], 0, -1).squeeze()).convert(mode)
    return decode_small(samples.read_bytes(index), mode, side, samples.grey_range)
