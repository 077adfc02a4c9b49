"""Near copies of evaluated images among the training images: with them, an evaluation is optimistic.

Two images are near copies if the cosine of their thumbnails of 8x8 pixels, without the mean, is 0.99; or 0.93, and 0.1
above that of the sixth most similar training image, since skies and seas resemble many others. docs/data.md has what
this finds in CIFAR-10.

Legend: N training images, M evaluated images, F values of a thumbnail.
"""

import os
from collections.abc import Mapping
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

from configs.schema import Config, Data
from datasets.decoding.bad_images import BadImage
from datasets.sources.class_names import names_of_labels
from datasets.sources.files.image_files import ImageFiles
from datasets.sources.samples import Samples
from engine.evaluation.findings import write_findings
from engine.evaluation.results import name_of_target
from engine.training.pixel_baseline import Readable, read_small
from utils.cpu_cores import usable_cores
from utils.files import open_atomically
from utils.tables import safe_cell

COPIES, THUMBNAILS = "copies", "thumbnails.npz"
_SIDE = 8
_SIMILAR, _EQUAL, _ABOVE_OTHERS, _OTHER = 0.93, 0.99, 0.1, 5
_MAX_PAIRS = 10_000
_CELLS = 1 << 26  # of similarities at a time
_COLUMNS = ("split", "path", "training_image", "similarity", "label", "label_in_training")


class _Pair(NamedTuple):
    split: str
    place: int
    match: int
    similarity: float


def note_copies(config: Config, splits: Mapping[str, Samples], folder: Path) -> str:
    """Looks for a near copy of each image among the training images, `splits['train']`; returns a line for the log.

    The list is `copies/copies.csv` in `folder`. The thumbnails of files are kept in SAVE for later runs.

    Raises OSError.
    """
    readable = {split: samples for split, samples in splits.items() if isinstance(samples, Readable)}
    if len(readable) < len(splits):
        return f"DATA.NEAR_COPIES: {config.data.dataset} has no images to compare"
    kept, train, others = Path(config.save) / THUMBNAILS, readable.pop("train"), readable
    thumbnails, pairs = read_thumbnails(config.data, train, kept), list[_Pair]()
    for split, samples in others.items():
        found = find_copies(thumbnails, read_thumbnails(config.data, samples, kept))
        pairs += [_Pair(split, *pair) for pair in found]
    counts = [f"{sum(pair.split == split for pair in pairs)} of {len(one)} {split}" for split, one in others.items()]
    note = f"near copies of training images: {' and '.join(counts)} images"
    if not pairs:
        return note
    pairs = sorted(pairs, key=lambda pair: -pair.similarity)[:_MAX_PAIRS]
    images = [[(others[pair.split], pair.place), (train, pair.match)] for pair in pairs]
    names = names_of_labels(train, config.model.num_logits)
    rows = []
    for pair, both in zip(pairs, images, strict=True):
        paths = [samples.name(index) for samples, index in both]
        labels = [name_of_target(samples.targets[index], names) for samples, index in both]
        rows.append([pair.split, *map(safe_cell, paths), f"{pair.similarity:.4f}", *map(safe_cell, labels)])
    table = write_findings(folder / COPIES, _COLUMNS, rows, images, config.data)
    return f"Warning: {note}; their figures are too high by what the model remembers of them: {table}"


def find_copies(train: np.ndarray, others: np.ndarray) -> list[tuple[int, int, float]]:
    """The index of each image with a near copy, the index of that in the training, and their similarity.

    train: uint8 (N, F). others: uint8 (M, F).
    """
    references, found = _directions(train), list[tuple[int, int, float]]()
    for start in range(0, len(others), rows := max(1, _CELLS // len(train))):
        similar, matches = (_directions(others[start : start + rows]) @ references.T).topk(min(_OTHER + 1, len(train)))
        stands_out = similar[:, 0] - similar[:, -1] >= _ABOVE_OTHERS
        places = ((similar[:, 0] >= _EQUAL) | ((similar[:, 0] >= _SIMILAR) & stands_out)).nonzero()[:, 0]
        columns = (places + start).tolist(), matches[places, 0].tolist(), similar[places, 0].tolist()
        found += zip(*columns, strict=True)
    return found


def _directions(thumbnails: np.ndarray) -> torch.Tensor:
    values = torch.from_numpy(thumbnails).float()
    return F.normalize(values - values.mean(1, keepdim=True))


def read_thumbnails(data: Data, samples: Readable, kept: Path) -> np.ndarray:
    """Thumbnails, uint8 (N, F), zeros for unreadable images. kept: the file of the thumbnails of earlier runs."""
    values = np.zeros((len(samples), _SIDE * _SIDE * data.image_channels), np.uint8)
    keys = np.zeros(0, np.uint64) if samples.in_memory else _keys(samples, data)
    missing = np.arange(len(samples))
    known = {"keys": keys[:0], "values": values[:0]}
    with suppress(OSError, ValueError, KeyError):  # none, or damaged
        known = dict(np.load(kept))
        places = np.searchsorted(known["keys"], keys).clip(max=len(known["keys"]) - 1)
        is_known = known["keys"][places] == keys
        values[is_known], missing = known["values"][places[is_known]], np.flatnonzero(~is_known)

    def read(index: int) -> None:
        with suppress(BadImage):
            image = read_small(data, samples, index, 2 * _SIDE)
            values[index] = np.asarray(image.resize((_SIDE, _SIDE), Image.Resampling.BOX)).ravel()

    with ThreadPoolExecutor(len(usable_cores())) as pool:
        reads = pool.map(read, missing.tolist())
        for _ in tqdm(reads, "near copies", len(missing), unit="image", leave=False, disable=None):
            pass
    if len(keys) and len(missing):
        keys, first = np.unique(np.concatenate([keys, known["keys"]]), return_index=True)
        kept.parent.mkdir(parents=True, exist_ok=True)
        with open_atomically(kept, "wb") as file:
            np.savez(file, keys=keys, values=np.concatenate([values, known["values"]])[first])
    return values


def _keys(samples: Samples, data: Data) -> np.ndarray:
    """A hash of path, size and time of each file, in a shard of path and CRC-32, with the channels: uint64 (N,)."""
    crcs, digests = samples.checksums(), []
    for index in range(len(samples)):
        name, version = samples.name(index), str(crcs[index])
        if isinstance(samples, ImageFiles):
            with suppress(OSError):
                status = os.stat(name)
                version = f"{status.st_size} {status.st_mtime_ns}"
        text = f"{name}\0{version}\0{data.image_channels}\0{data.grey_range}"
        digests.append(blake2b(text.encode("utf-8", "surrogateescape"), digest_size=8).digest())
    return np.frombuffer(b"".join(digests), np.uint64)
