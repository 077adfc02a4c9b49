"""Finds image files with equal bytes and different labels, or in two splits."""

import hashlib
import time
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from configs.reading.yaml_io import shorten
from datasets.sources.files.image_files import ImageFiles
from utils.files import open_regular_file

_MAX_FILES, _MAX_SECONDS = 10_000, 10.0  # that are read as a whole
_NUM_THREADS = 16  # they wait for the disk
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
    deadline = time.monotonic() + _MAX_SECONDS

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
        files = list(filter(None, pool.map(read, candidates[:_MAX_FILES].tolist())))
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
