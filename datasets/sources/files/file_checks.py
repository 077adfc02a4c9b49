"""Finds missing and unreadable files of a listing, with a bounded number of file system calls.

On a network file system a call can take a millisecond. About 50,000 calls are made at most: `_MAX_FOLDERS` folders are
listed, `_MAX_FILES` files that a folder's list does not confirm (links, for example) are checked one by one, and
`_MAX_ACCESS_CHECKS` files are tested for permission, with a second call for those that fail. Larger numbers are sampled
at regular intervals, so that the same data set is always checked in the same way.
"""

import os
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from datasets.sources.files.listing import Listing

_MAX_FOLDERS, _MAX_FILES, _MAX_ACCESS_CHECKS = 10_000, 20_000, 10_000
_FEW_FILES = 20

T = TypeVar("T")


class FileProblems(NamedTuple):
    """Sorted indices of `missing` files and of files that this user may not read; the number of files found or missed.

    Class folders were listed to find their images: their files count as checked.
    """

    missing: list[int]
    unreadable: list[int]
    num_checked: int


def check_files(listing: Listing) -> FileProblems:
    missing, num_checked = _missing_files(listing) if listing.file else ([], len(listing.paths))
    known = set(missing)
    candidates = _at_intervals(range(len(listing.paths)), _MAX_ACCESS_CHECKS)
    denied = [index for index in candidates if index not in known and not os.access(_path(listing, index), os.R_OK)]
    unreadable = [index for index in denied if os.path.isfile(_path(listing, index))]
    return FileProblems(sorted(known.union(denied).difference(unreadable)), unreadable, num_checked)


def check_some_files(listing: Listing) -> list[int]:
    """Checks at most 20 files; returns the indices of the missing ones."""
    candidates = _at_intervals(range(len(listing.paths)), _FEW_FILES)
    return [index for index in candidates if not os.path.isfile(_path(listing, index))]


def _missing_files(listing: Listing) -> tuple[list[int], int]:
    """Indices of images that are not regular files, and the number of images checked."""
    paths, missing, unconfirmed, num_checked = listing.paths, [], [], 0
    for folder, indices in _at_intervals(_by_folder(listing), _MAX_FOLDERS):
        names = _regular_files(listing.root / folder)
        if names is None:
            missing += indices
            num_checked += len(indices)
            continue
        others = [index for index in indices if paths[index].rpartition("/")[2] not in names]
        unconfirmed += others
        num_checked += len(indices) - len(others)
    to_check = _at_intervals(unconfirmed, _MAX_FILES)
    missing += [index for index in to_check if not os.path.isfile(_path(listing, index))]
    return missing, num_checked + len(to_check)


def _path(listing: Listing, index: int) -> str:
    return os.path.join(listing.root, listing.paths[index])


def _at_intervals(items: Sequence[T], limit: int) -> Sequence[T]:
    """Returns at most `limit` of the items, at regular intervals."""
    return items[:: max(1, -(-len(items) // limit))]


def _by_folder(listing: Listing) -> list[tuple[str, list[int]]]:
    """The folders of a listing, relative to its root, each with the indices of its images."""
    folders: dict[str, int] = {}
    numbers = (folders.setdefault(path.rpartition("/")[0], len(folders)) for path in listing.paths)
    folder_of = np.fromiter(numbers, np.int64, len(listing.paths))
    by_folder = np.argsort(folder_of, kind="stable")
    groups = np.split(by_folder, np.flatnonzero(np.diff(folder_of[by_folder])) + 1)
    return [(folder, group.tolist()) for folder, group in zip(folders, groups, strict=False)]  # no images: one group


def _regular_files(folder: os.PathLike[str]) -> set[str] | None:
    """The names of the regular files in a folder, one call for many of them; None if the folder does not exist."""
    try:
        with os.scandir(folder) as entries:
            return {entry.name for entry in entries if entry.is_file(follow_symlinks=False)}
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:  # a folder that cannot be listed may still contain files that can be opened
        return set()
