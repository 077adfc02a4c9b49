"""Class folders: one folder of images per class."""

import os
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from configs.reading.yaml_io import format_value
from configs.schema import Data
from datasets.sources.arrays.strings import StringPacker
from datasets.sources.files.image_files import ImageFiles
from datasets.sources.files.listing import Listing, listing_arrays, unlabelled_arrays
from datasets.sources.split import split_listing
from utils.errors import UserError, combine_findings

IMAGE_EXTENSIONS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")
_MAX_DEPTH = 100  # nested folders
_MAX_TRIED = 10  # folders in which images are looked for


def folder(data: Data, split: str) -> ImageFiles:
    """One folder per class in DATA_PATH/train, DATA_PATH/val and DATA_PATH/test; without val the images are split.

    Without train, the class folders are in DATA_PATH; there may be a folder test beside them.

    The split 'all' is all images of DATA_PATH, without test, if it has neither train nor val, else val.
    """
    root = Path(data.data_path)
    train, val = root / "train", root / "val"
    if split == "test":
        return ImageFiles(_with_checked_classes(root, "test"))
    if split == "all" and not (train.is_dir() or val.is_dir()):
        return ImageFiles(_read_root(root, min_classes=1))
    split = "train" if split == "train" else "val"
    if not val.is_dir():
        return ImageFiles(split_listing(read_class_folders(train) if train.is_dir() else _read_root(root), data, split))
    return ImageFiles(_with_checked_classes(root, split))


def _with_checked_classes(root: Path, split: str) -> Listing:
    """The folder of a split. A class that only this split, or only the training split, has is an error."""
    min_classes = 1 if split == "test" else 2  # else the message about its classes, below, is the better one
    listing = read_class_folders(root / split, min_classes=min_classes)
    train, other = root / "train", "val" if split == "train" else split
    if train.is_dir():
        names = class_names_in(train)
    elif split == "test" and held_out_classes(root):
        names = class_names_in(root, excluded="test")
    else:
        return listing
    listing.findings += [
        f"{root}: class folder {name!r} is only in one of train and {other}; add or remove it"
        for name in sorted(set(names) ^ set(class_names_in(root / other, min_classes=min_classes)))
    ]
    return listing


def _read_root(root: Path, min_classes: int = 2) -> Listing:
    """The class folders in DATA_PATH, without a folder test that contains folders of the same names."""
    if not (root / "test").is_dir() or held_out_classes(root):
        return read_class_folders(root, "test", min_classes)
    listing = read_class_folders(root, min_classes=min_classes)
    listing.findings.append(
        f"{root / 'test'}: is it a class, or are these test images? Move the folders of all classes to {root / 'train'}"
    )
    return listing


def held_out_classes(root: Path) -> set[str]:
    """The names of folders in root/test that are classes: folders in root/train, or beside test."""
    train = root / "train"
    try:
        names = class_names_in(train) if train.is_dir() else class_names_in(root, excluded="test", min_classes=1)
        return set(names).intersection(class_names_in(root / "test", min_classes=1))
    except UserError:  # a folder cannot be listed, or contains no folders
        return set()


def has_class_folders(root: Path) -> bool:
    """Tells whether `root`, its folder train or its folder val contains two folders with images directly in them."""
    for parent in (root / "train", root / "val", root):
        try:
            if sum(any(map(_is_image, _entries(parent / name))) for name in class_names_in(parent)[:_MAX_TRIED]) > 1:
                return True
        except UserError:  # it cannot be listed, or contains fewer than two folders
            continue
    return False


def caltech101(data: Data, split: str) -> ImageFiles:
    """The folder `101_ObjectCategories`, which is DATA_PATH or inside it, split; without the background class."""
    root = find_folder(data.data_path, "101_ObjectCategories")
    return ImageFiles(split_listing(read_class_folders(root, excluded="BACKGROUND_Google"), data, split))


def caltech256(data: Data, split: str) -> ImageFiles:
    """The folder `256_ObjectCategories`, which is DATA_PATH or inside it, split; without the clutter class."""
    root = find_folder(data.data_path, "256_ObjectCategories")
    return ImageFiles(split_listing(read_class_folders(root, excluded="257.clutter"), data, split))


def find_folder(data_path: str, name: str) -> Path:
    """`data_path`/`name` if that is a folder, else `data_path`."""
    inner = Path(data_path) / name
    return inner if inner.is_dir() else Path(data_path)


def read_class_folders(root: Path, excluded: str | None = None, min_classes: int = 2) -> Listing:
    """Lists the images of each folder in `root`, at any depth; the sorted names of the folders are the classes.

    Hidden files and folders are ignored. A link to a folder is followed once per class, and never to a parent folder.

    Findings: a folder that cannot be listed or contains no images, an image that is a broken link or not a file.

    Raises:
        UserError: `root` is missing, cannot be listed, or contains fewer than `min_classes` folders.
    """
    scan = _Scan(root)
    names = class_names_in(root, excluded, min_classes)
    paths, targets = StringPacker(), array("q")
    for label, name in enumerate(names):
        num_findings, num_images = len(scan.findings), len(paths)
        for path in _images_in(scan, name, (root.resolve(),), set()):
            paths.add(path)
            targets.append(label)
        if len(paths) == num_images and len(scan.findings) == num_findings:
            scan.findings.append(
                f"{root / name}: contains no images ({' '.join(IMAGE_EXTENSIONS)}); add images or remove the folder"
            )
    for entry in _entries(root):
        scan.ignores(entry, entry.name)
    arrays = listing_arrays(paths, np.frombuffer(targets, np.int64), np.empty(0, np.int32))
    return Listing(root, names, arrays, None, scan.findings, scan.notes())


def read_images(root: Path) -> Listing:
    """Lists all images in a folder, at any depth and without labels, as `read_class_folders` does: each label is 0.

    An image that is a broken link or not a file is listed, too.

    Raises:
        UserError: a folder cannot be listed, or there are no images.
    """
    scan, paths = _Scan(root, keeps_unreadable=True), StringPacker()
    for path in _images_in(scan, "", (), set()):
        paths.add(path)
    if scan.findings:
        raise combine_findings(f"{root}: {len(scan.findings)} problems", scan.findings)
    if not len(paths):
        fix = "give another folder"
        if next(root.glob("*.tar"), None):
            fix = f"to label the images of tar shards: -predict -dataset=tar -data_path={root}"
        raise UserError(f"{root}: contains no images ({' '.join(IMAGE_EXTENSIONS)}); {fix}")
    return Listing(root, ["0"], unlabelled_arrays(paths), notes=scan.notes(), has_class_names=False)


def class_names_in(root: Path, excluded: str | None = None, min_classes: int = 2) -> list[str]:
    """The sorted names of the folders in `root`, except `excluded`; raises UserError if there are too few."""
    names = [
        entry.name for entry in _entries(root) if entry.is_folder and entry.name != excluded and not entry.is_hidden
    ]
    if not names:
        fix = "put the images of each class into a separate folder"
        if next(root.glob("*.tar"), None):
            fix = "it contains tar shards: use -dataset=tar"
        raise UserError(f"{root}: contains no folders; {fix}")
    if len(names) < min_classes:
        raise UserError(
            f"{root}: contains only one folder, {format_value(names[0])}; give the folder that contains all classes"
        )
    return names


@dataclass
class _Scan:
    """The state of one reading of folders. keeps_unreadable: broken links and pipes count as images, not as errors."""

    root: Path
    keeps_unreadable: bool = False
    findings: list[str] = field(default_factory=list)
    ignored_links: list[str] = field(default_factory=list)
    num_other_files: int = 0
    num_hidden: int = 0
    first_ignored: str | None = None

    def ignores(self, entry: "_Entry", path: str) -> bool:
        """Counts a hidden entry, or a file without the extension of an image, and returns True; else False."""
        if entry.is_hidden:
            self.num_hidden += 1
        elif not entry.is_folder and not entry.name.lower().endswith(IMAGE_EXTENSIONS):
            self.num_other_files += 1
        else:
            return False
        self.first_ignored = self.first_ignored or path
        return True

    def notes(self) -> list[str]:
        notes = []
        if self.ignored_links:
            notes.append(
                f"{self.root}: {len(self.ignored_links)} link(s) to parent folders or to folders already read are "
                f"ignored; the first is {self.ignored_links[0]!r}"
            )
        if self.first_ignored:
            notes.append(
                f"{self.root}: {self.num_other_files} file(s) that are no images and {self.num_hidden} hidden file(s) "
                f"or folder(s) are ignored, such as {self.first_ignored!r}"
            )
        return notes


def _images_in(scan: _Scan, folder: str, parents: tuple[Path, ...], visited: set[Path]) -> Iterator[str]:
    """Paths of images relative to the root. `parents` are the resolved folders from the root to this folder."""
    resolved = (scan.root / folder).resolve()
    if resolved in visited or any(parent.is_relative_to(resolved) for parent in parents):
        scan.ignored_links.append(folder)
        return
    visited.add(resolved)
    try:
        if len(parents) > _MAX_DEPTH:
            raise UserError(f"{scan.root / folder}: is more than {_MAX_DEPTH} folders deep; move its images up")
        entries = _entries(scan.root / folder)
    except UserError as error:
        scan.findings.append(str(error))
        return
    for entry in entries:
        path = f"{folder}/{entry.name}" if folder else entry.name
        if scan.ignores(entry, path):
            continue
        if entry.is_folder:
            yield from _images_in(scan, path, (*parents, resolved), visited)
        elif entry.is_file or scan.keeps_unreadable:
            yield path
        else:
            scan.findings.append(f"{scan.root / path}: is a broken link or not a file; restore or remove it")


class _Entry(NamedTuple):
    name: str
    is_folder: bool
    is_file: bool

    @property
    def is_hidden(self) -> bool:
        return self.name.startswith(".")


def _is_image(entry: _Entry) -> bool:
    return entry.is_file and not entry.is_hidden and entry.name.lower().endswith(IMAGE_EXTENSIONS)


def _entries(folder: Path) -> list[_Entry]:
    """All entries, sorted by name: the order of a directory differs between file systems."""
    try:
        with os.scandir(folder) as entries:
            return sorted(map(_to_entry, entries))
    except OSError as error:
        raise UserError(f"{folder}: cannot be listed ({error.strerror}); check the path and its permissions") from error


def _to_entry(entry: os.DirEntry[str]) -> _Entry:
    try:
        return _Entry(entry.name, entry.is_dir(), entry.is_file())
    except OSError:  # a link to itself
        return _Entry(entry.name, False, False)
