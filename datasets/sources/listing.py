"""Folders are listed once in a start: which data set it is, its splits, and its samples are found in the same names."""

import os
import time

_SETTLED_SECONDS = 2  # a folder that has just changed may change again within the resolution of its time
_listings = dict[str, tuple[int, list[str]]]()  # of a folder: its time, and the joined names of its folders and files


def list_directory(path: str | os.PathLike[str]) -> tuple[list[str], list[str]]:
    """The sorted names of the folders in a folder, also by links, and of its other files.

    An unchanged folder is not listed again until `forget_listings`. Raises OSError.
    """
    key = os.fspath(path)
    changed = os.stat(key).st_mtime_ns
    time_listed, names = _listings.get(key, (None, []))
    if time_listed != changed:
        folders, files = list[str](), list[str]()
        with os.scandir(key) as entries:
            for entry in entries:
                try:
                    kind = folders if entry.is_dir() else files
                except OSError:  # a link to itself
                    kind = files
                kind.append(entry.name)
        names = ["\0".join(sorted(kind)) for kind in (folders, files)]  # ImageNet: 1,000 strings, not 1.3 million
        if time.time_ns() - changed > _SETTLED_SECONDS * 10**9:
            _listings[key] = changed, names
    folders, files = (kind.split("\0") if kind else [] for kind in names)
    return folders, files


def forget_listings() -> None:
    """Frees the memory, when the samples have been read."""
    _listings.clear()
