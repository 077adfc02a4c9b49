"""Finds unusable images before the first step, by the first and last bytes of each file; and equal files.

Files with unexpected bytes, and all files of a small data set, are decoded: the check refuses only images that the run
would refuse.
"""

import hashlib
import os
import threading
import time
import zlib
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from configs.schema import Data
from configs.yaml_io import shorten
from datasets.decoding.decode import is_affordable
from datasets.decoding.headers import HEAD_BYTES, TAIL_BYTES, size_if_whole
from datasets.decoding.images import HOW_TO_SKIP, BadImage, MissingImage
from datasets.sources.files.image_files import ImageFiles, group_missing
from datasets.sources.samples import Samples
from utils.distributed import ProcessContext, call_on_main
from utils.errors import combine_findings
from utils.files import open_descriptor, open_regular_file

_MAX_SECONDS = 30.0
_NUM_THREADS = 16  # they wait for the disk
_MAX_COMPARED, _MAX_COMPARE_SECONDS = 10_000, 10.0  # equal files: that are read as a whole
_decoding = threading.Semaphore(4)  # a large image takes 200 MB
_CHUNK = 256  # images between two looks at the clock
_FEW, _DECODING_SHARE = 5_000, 1 / 15  # so many images are all decoded, for this share of the time


def check_images(splits: Sequence[Samples], data: Data, context: ProcessContext) -> None:
    """Checks the image files of all splits on the main process, or as many as it can in half a minute.

    With DATA.ON_BAD_IMAGE: skip, the number of unusable images is a note of the split. Every rank must call it.

    Raises:
        UserError: all unusable images, in one error on every rank.
    """
    files = [samples for samples in splits if isinstance(samples, ImageFiles)]
    call_on_main(lambda: _check_images(files, data), context)


def _check_images(splits: Sequence[ImageFiles], data: Data) -> None:
    num_images, skips = sum(map(len, splits)), data.on_bad_image == "skip"
    bad: dict[str, BadImage] = {}  # by path: two splits may share images
    fingerprints = []
    for samples in splits:
        root, seconds = samples.listing.root, _MAX_SECONDS * len(samples) / num_images
        of_split, num_checked, ends = find_bad_images(samples, data.image_channels, seconds)
        fingerprints.append(ends)
        if num_checked < len(samples):
            samples.notes.append(
                f"{root}: checked the headers of {num_checked} of {len(samples)} images; the others are checked when "
                "they are read"
            )
        if of_split and skips:
            samples.notes.append(
                f"Warning: {root}: {len(of_split)} image(s) cannot be read and are skipped (DATA.ON_BAD_IMAGE), such "
                f"as {of_split[0].path!r}: {of_split[0].reason}"
            )
        bad |= {image.path: image for image in of_split}
    if bad and not skips:
        raise combine_findings(
            f"{len(bad)} images cannot be read; {HOW_TO_SKIP}",
            [image if len(bad) > 1 else image.with_hint() for image in group_missing(list(bad.values()))],
        )
    if splits:
        splits[0].notes += notes_on_equal_files(splits, fingerprints)


def find_bad_images(samples: ImageFiles, channels: int, seconds: float) -> tuple[list[BadImage], int, np.ndarray]:
    """The unusable images among those that can be checked within `seconds`, in order, and the number of the latter.

    Also returns the size and the CRC-32 of the end of each file, uint64 (N,): size << 32 | CRC-32, 0 if not checked.

    The order of the check is random, so that it covers the data set wherever the time ends it; it is the same in each
    run.
    """
    start = time.monotonic()
    deadline = start + seconds
    decode_until = start + seconds * _DECODING_SHARE if len(samples) <= _FEW else None

    def check(indices: np.ndarray) -> dict[int, BadImage | None]:
        if time.monotonic() > deadline:
            return {}
        return {index: find_problem(index) for index in indices.tolist()}

    def find_problem(index: int) -> BadImage | None:
        try:
            is_intact = _looks_intact(samples, index, fingerprints)
            if not is_intact or (decode_until and time.monotonic() < decode_until):
                with _decoding:
                    samples.open(index, channels).pixels  # noqa: B018  # decodes
        except BadImage as problem:
            return samples.missing_image(index) if samples.is_missing(index) else problem
        return None

    windows = samples.windows
    order = windows.order(0, 0).numpy() if windows else np.random.default_rng(0).permutation(len(samples))
    chunks = (np.sort(order[start : start + _CHUNK]) for start in range(0, len(order), _CHUNK))
    num_checked, fingerprints = 0, np.zeros(len(samples), np.uint64)
    found: dict[int, BadImage] = {}
    pool = ThreadPoolExecutor(_NUM_THREADS)
    try:
        for checked in pool.map(check, chunks):
            num_checked += len(checked)
            found |= {index: problem for index, problem in checked.items() if problem}
    finally:
        pool.shutdown(cancel_futures=True)
    samples.explain_missing({index: one for index, one in sorted(found.items()) if isinstance(one, MissingImage)})
    return [found[index] for index in sorted(found)], num_checked, fingerprints


def _looks_intact(samples: ImageFiles, index: int, fingerprints: np.ndarray) -> bool:
    """Tells whether the file begins and ends as a common image that is not too large; False if it cannot be read."""
    try:
        descriptor, size = open_descriptor(samples.name(index))
        try:
            head = os.pread(descriptor, HEAD_BYTES, 0)
            tail = os.pread(descriptor, TAIL_BYTES, size - TAIL_BYTES) if size > HEAD_BYTES else head[-TAIL_BYTES:]
            fingerprints[index] = size << 32 | zlib.crc32(tail)
            sides = size_if_whole(descriptor, head, tail, size)
        finally:
            os.close(descriptor)
    except Exception:  # Pillow raises many types on damaged files
        return False
    return sides is not None and size <= samples.max_file_bytes and is_affordable(*sides, samples.decoding.max_pixels)


_PROBLEMS = (
    ("have different labels", "remove all but one"),
    ("are in two splits", "the evaluation counts images that were trained on; remove them from one"),
)


def notes_on_equal_files(splits: Sequence[ImageFiles], fingerprints: Sequence[np.ndarray]) -> list[str]:
    """Warnings about such files; they change neither the labels nor the splits.

    fingerprints: uint64 (N,) of each split; files with equal ones are compared by SHA-256. 0: not known.
    """
    marks = np.concatenate(fingerprints)
    _, groups, sizes = np.unique(marks, return_inverse=True, return_counts=True)
    candidates = np.flatnonzero((sizes[groups] > 1) & (marks > 0))
    candidates = candidates[np.argsort(groups[candidates], kind="stable")]
    starts = np.cumsum([0, *map(len, splits)])
    deadline = time.monotonic() + _MAX_COMPARE_SECONDS

    def read(place: int) -> tuple[bytes, str, tuple[bytes, int]] | None:
        """The digest, the path, and the labels and the split of a file; None if it cannot be read in time."""
        split = int(np.searchsorted(starts, place, side="right")) - 1
        samples, index = splits[split], place - int(starts[split])
        try:
            if time.monotonic() > deadline:
                return None
            with open_regular_file(path := samples.name(index)) as file:
                digest = hashlib.file_digest(file, "sha256").digest()
        except OSError:
            return None
        return digest, path, (samples.targets[index].tobytes(), split)

    with ThreadPoolExecutor(_NUM_THREADS) as pool:
        files = list(filter(None, pool.map(read, candidates[:_MAX_COMPARED].tolist())))
    equal: defaultdict[bytes, dict[str, tuple[bytes, int]]] = defaultdict(dict)
    for digest, path, facts in files:
        equal[digest].setdefault(path, facts)  # `notes_on` reports a path in two splits
    notes = []
    for kind, (problem, advice) in enumerate(_PROBLEMS):
        if found := [paths for paths in equal.values() if len({facts[kind] for facts in paths.values()}) > 1]:
            (one, facts), *others = found[0].items()
            other = next(path for path, of_other in others if of_other[kind] != facts[kind])
            pair = f"{shorten(one)} and {shorten(other)}"
            notes.append(f"Warning: {sum(map(len, found))} files with equal bytes {problem}, such as {pair}; {advice}")
    if len(files) < len(candidates):
        notes.append(
            f"compared the bytes of {len(files)} of {len(candidates)} files with the size and the end of another"
        )
    return notes
