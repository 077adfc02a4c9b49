"""The place of an image that a table names: a cell becomes the image's name in the run and its file, once."""

import contextlib
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from configs.yaml_io import shorten
from datasets.decoding.images import IMAGE_EXTENSIONS, PHOTO_EXTENSIONS
from datasets.sources.listing import list_directory
from utils.notes import Note

ENDINGS = (*IMAGE_EXTENSIONS, *PHOTO_EXTENSIONS)


class Place(NamedTuple):
    """The name of an image in the run, its file in `Places.root`, and the reason if the cell is no path of an image."""

    name: str
    file: str
    problem: str = ""


def mend(path: str) -> str:
    """A path of Windows or a URL with slashes alone, without a drive or a scheme, and without folders such as '.'."""
    if "\\" in path:
        path = path.replace("\\", "/")
    if "://" in path:
        path = path.partition("://")[2]
    elif path[1:3] == ":/":
        path = path[2:]
    if ".." in path or "./" in path or "//" in path:
        path = os.path.normpath(path)
    return path


def without_ending(path: str) -> str:
    stem, ending = os.path.splitext(path)
    return stem if ending.lower() in ENDINGS else path


class Places:
    """The places of the images in a table.

    root: the folder of the files. strip: the folders of another machine before each path. own: the folder of the table
    in `root`, which no name begins with. by_name: the only file in `root` of each name, with its ending and without, in
    place of the paths. anywhere: files may be outside of `root` and of the table's folder.
    """

    def __init__(
        self,
        table: Path,
        root: Path,
        strip: str = "",
        own: str = "",
        by_name: Mapping[str, str] | None = None,
        anywhere: bool = False,
    ) -> None:
        self.root = root
        self._table = table
        self._strip = strip
        self._own = own
        self._by_name = by_name
        self._anywhere = anywhere
        self._has_other_endings = False  # .JPG of a file, .jpg in the table
        self._files: dict[str, dict[str, list[str]]] = {}  # of each folder, by the names that a table may give them
        self.notes = list[Note]()
        self.problem = ""  # of all paths
        self.level = 0  # of the folders that are splits
        self.has_names = bool(own or by_name)  # other ones than the paths of the files

    def folders(self, cell: str) -> list[str]:
        """The folders of the file of an image: 'train' and 'a' of 'train/a/1.jpg'."""
        return self.find(cell).file.split("/")[:-1]

    def split_folder(self, cell: str) -> str:
        """The folder at `level`; '' without one."""
        return "".join(self.folders(cell)[self.level : self.level + 1])

    def folder_in(self, cell: str) -> str:
        """The folder in a cell, which alone decides `folders`; the whole cell where the name decides, too."""
        return cell if self._by_name or "\\" in cell else cell.rpartition("/")[0]

    def find(self, cell: str) -> Place:
        if not cell or "\0" in cell:
            fix = "fill it in or remove the line; save the file as text in UTF-8"
            return Place("", "", f"{shorten(cell)} is not a path; {fix}")
        is_file = "\\" in cell and os.path.isfile(os.path.join(self.root, cell))
        path = cell if is_file else mend(cell).removeprefix(self._strip)
        if self._by_name:
            file = self._by_name.get(os.path.basename(path))
            if file:
                return Place(_common_end(path, file), file)
        if path.startswith(("/", "../")):
            path = self._in_root(path)
            if not path:
                fix = "write paths relative to it, or set DATA.IMAGE_ROOT to the folder of all"
                return Place("", "", f"path {shorten(cell)} is not inside {self.root}; {fix}")
        names = self._names_like(path)
        if len(names) > 1:
            endings = sorted(os.path.splitext(name)[1] for name in names)
            return Place("", "", f"{shorten(path)} is {' and '.join(endings)}; write the ending, too")
        file = os.path.join(os.path.dirname(path), *names) if names else path
        return Place(file.removeprefix(self._own), file)

    def _in_root(self, path: str) -> str:
        """A path that may lead out of the root, relative to it; '' if it does."""
        top = path.split("/")[1]  # a of /a/airfield/1.jpg, as in Places365's lists, if only the root has it
        if path[0] == "/" and not os.path.exists(f"/{top}") and os.path.exists(self.root / top):
            return path[1:]
        if self._anywhere:
            return path
        absolute = os.path.abspath(os.path.join(self.root, path))
        folders = (f"{os.path.abspath(folder)}{os.sep}" for folder in (self.root, self._table.parent))
        return os.path.relpath(absolute, self.root) if absolute.startswith(tuple(folders)) else ""

    def _names_like(self, path: str) -> list[str]:
        """The files of an id without ending, or with an ending in other letters; none if the path is a file's."""
        if path.lower().endswith(ENDINGS) and not self._has_other_endings:
            return []
        folder, name = os.path.split(path)
        if folder not in self._files:
            self._files[folder] = _by_written_name(self.root / folder)
        found = self._files[folder].get(name, [])
        if len(found) > 1:
            found = [one for one in found if os.path.isfile(self.root / folder / one)]  # no broken link
        return found

    def contain(self, sample: Sequence[str]) -> bool:
        """Whether a path of the table is a file."""
        for is_other in (False, True):
            self._has_other_endings = is_other
            found = [place.file for place in map(self.find, sample) if not place.problem]
            if any(os.path.isfile(self.root / file) for file in found):
                self._has_other_endings = is_other or not all(os.path.isfile(self.root / file) for file in found[::10])
                return True
        return False


def _by_written_name(folder: Path) -> dict[str, list[str]]:
    """The images in a folder by their names without ending, and with the ending in other letters."""
    found = defaultdict[str, list[str]](list)
    files = list[str]()
    with contextlib.suppress(OSError):
        _, files = list_directory(folder)
    for file in files:
        stem, ending = os.path.splitext(file)
        if ending.lower() in ENDINGS:
            found[stem].append(file)
            found[stem + ending.swapcase()].append(file)
    for file in files:  # the name is a file itself
        found.pop(file, None)
    return found


def _common_end(path: str, file: str) -> str:
    """The folders and the name with which both end: p1/0.jpg of /mnt/set/p1/0 and images/p1/0.jpg."""
    folders = path.split("/")[-2::-1]
    *inside, name = file.split("/")
    number = 0
    for one, other in zip(folders, reversed(inside), strict=False):
        if one != other:
            break
        number += 1
    return "/".join([*inside[len(inside) - number :], name])
