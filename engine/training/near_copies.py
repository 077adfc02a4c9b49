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

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from tqdm import tqdm

from configs.schema import Config, Data
from datasets.decoding.images import BadImage
from datasets.sources.files.image_files import ImageFiles
from datasets.sources.samples import Samples, names_of_labels
from engine.evaluation.pictures import write_findings
from engine.evaluation.results import name_of_target
from engine.training.pixel_baseline import Readable, read_small
from utils.files import open_atomically
from utils.system import usable_cores
from utils.tables import safe_cell

COPIES = "copies"
_SIDE = 8
_SIMILAR, _EQUAL, _ABOVE_OTHERS, _OTHER = 0.93, 0.99, 0.1, 5
_MAX_PAIRS = 10_000
_CELLS = 1 << 26  # of similarities at a time
_CHUNK = 256  # images between two looks at signals
_COLUMNS = ("split", "path", "training_image", "similarity", "label", "label_in_training")


def note_copies(config: Config, splits: Mapping[str, Samples], folder: Path) -> str:
    """Looks for a near copy of each image among the training images, `splits['train']`; returns a line for the log.

    The list is `copies/copies.csv` in `folder`. The thumbnails of files are kept in SAVE/features for later runs.

    Raises OSError.
    """
    readable = {split: samples for split, samples in splits.items() if isinstance(samples, Readable)}
    if len(readable) < len(splits):
        return f"DATA.NEAR_COPIES: {config.data.dataset} has no images to compare"
    kept, train, others = Path(config.save) / "features", readable.pop("train"), readable
    thumbnails, names = read_thumbnails(config.data, train, kept), names_of_labels(train, config.model.num_logits)
    counts, rows = [], []
    for split, samples in others.items():
        found = find_copies(thumbnails, read_thumbnails(config.data, samples, kept))
        counts.append(f"{len(found)} of {len(samples)} {split}")
        for index, match, similarity in found:
            both = (samples, index), (train, match)
            paths = [one.name(place) for one, place in both]
            labels = [name_of_target(one.targets[place], names) for one, place in both]
            rows.append((both, [split, *map(safe_cell, paths), f"{similarity:.4f}", *map(safe_cell, labels)]))
    note = f"near copies of training images: {' and '.join(counts)} images"
    if not rows:
        return note
    images, cells = zip(*sorted(rows, key=lambda row: row[1][3], reverse=True)[:_MAX_PAIRS], strict=True)
    table = write_findings(folder / COPIES, _COLUMNS, cells, images, config.data)
    return f"Warning: {note}; their figures are too high by what the model remembers of them: {table}"


def find_copies(train: np.ndarray, others: np.ndarray) -> list[tuple[int, int, float]]:
    """The index of each image with a near copy, the index of that in the training, and their similarity.

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
    file, width = kept / f"thumbnails-{data.image_channels}.npy", _SIDE * _SIDE * data.image_channels
    rows = np.zeros(len(samples), [("key", np.uint64), ("values", np.uint8, (width,))])
    known, is_missing = rows[:0], np.ones(len(samples), bool)
    if not samples.in_memory:
        rows["key"] = _keys(samples, data)
        with suppress(OSError, ValueError, EOFError):  # none, or damaged
            stored = np.load(file, allow_pickle=False)
            known = stored if stored.dtype == rows.dtype else known
        places = np.searchsorted(known["key"], rows["key"])
        is_missing = np.append(known["key"], 0)[places] != rows["key"]
        rows[~is_missing] = known[places[~is_missing]]

    def read(indices: np.ndarray) -> None:
        for index in indices.tolist():
            with suppress(BadImage):
                image = read_small(data, samples, index, 2 * _SIDE)
                rows["values"][index] = np.asarray(image.resize((_SIDE, _SIDE), Image.Resampling.BOX)).ravel()

    missing = np.flatnonzero(is_missing)
    chunks, pool = np.array_split(missing, -(-len(missing) // _CHUNK) or 1), ThreadPoolExecutor(len(usable_cores()))
    try:
        for _ in tqdm(pool.map(read, chunks), "near copies", len(chunks), leave=False, disable=None):
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
    """A hash of path, size and time of each file, or in a shard of path and CRC-32: uint64 (N,)."""
    crcs, digests = samples.checksums(), []
    for index in range(len(samples)):
        name, version = samples.name(index), str(crcs[index])
        if isinstance(samples, ImageFiles):
            with suppress(OSError):
                status = os.stat(name)
                version = f"{status.st_size} {status.st_mtime_ns}"
        text = f"{name}\0{version}\0{data.grey_range}"
        digests.append(blake2b(text.encode("utf-8", "surrogateescape"), digest_size=8).digest())
    return np.frombuffer(b"".join(digests), np.uint64)
