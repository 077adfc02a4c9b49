"""Folders are listed once in a start: which data set it is, its splits, and its samples are found in the same names."""

import fnmatch
import os
from contextlib import suppress
from functools import cache
from itertools import chain, islice
from pathlib import Path

from utils.errors import did_you_mean

Names = tuple[list[str], list[str]]  # of the folders in a folder, and of its other files


def list_directory(path: str | os.PathLike[str]) -> Names:
    """The sorted names of the folders in a folder, also by links, and of its other files.

    An unchanged folder is not listed again until `forget_listings`. Raises OSError.
    """
    kinds = _joined_names(os.fspath(path), os.stat(path).st_mtime_ns)
    folders, files = (kind.split("\0") if kind else [] for kind in kinds)
    return folders, files


def paths_in(folder: Path, pattern: str) -> list[Path]:
    """The sorted paths of `folder.glob(pattern)` without a listing; only folders if the pattern ends with a slash."""
    names = list[str]()
    with suppress(OSError):
        folders, files = list_directory(folder)
        names = folders if pattern.endswith("/") else sorted(folders + files)
    return [folder / name for name in fnmatch.filter(names, pattern.removesuffix("/"))]


def files_with(folder: Path, endings: tuple[str, ...]) -> list[str]:
    """The sorted names of the files in a folder with these endings, of lower case, in any case. Raises OSError.

    Of an unchanged folder of a million files, they are found once.
    """
    return _names_with(os.fspath(folder), os.stat(folder).st_mtime_ns, endings)


def forget_listings() -> None:
    """Frees the memory, when the samples have been read."""
    _joined_names.cache_clear()
    _names_with.cache_clear()


def name_like(path: Path) -> str:
    """The end of an error about a path: if it is not there, the most similar name in its folder; else ''."""
    hint = ""
    with suppress(OSError):
        if not path.exists():
            names = chain(*list_directory(path.parent))
            hint = did_you_mean(path.name, islice(names, 10_000), 0.8)  # a million take a minute
    return hint


@cache
def _joined_names(path: str, changed: int) -> list[str]:
    """The names of folders in a folder and of files: of ImageNet, 1,000 strings, not 1.3 million."""
    folders = list[str]()
    files = list[str]()
    with os.scandir(path) as entries:
        for entry in entries:
            try:
                kind = folders if entry.is_dir() else files
            except OSError:  # a link to itself
                kind = files
            kind.append(entry.name)
    return ["\0".join(sorted(kind)) for kind in (folders, files)]


@cache
def _names_with(path: str, changed: int, endings: tuple[str, ...]) -> list[str]:
    return [name for name in list_directory(path)[1] if name.lower().endswith(endings)]
