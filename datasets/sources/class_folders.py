"""Class folders: one folder of images per class."""

import os
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from configs.schema import Data
from configs.yaml_io import format_value, shorten
from datasets.sources.image_files import ImageFiles
from datasets.sources.listing import Listing, listing_arrays
from datasets.sources.split import split_listing
from datasets.sources.strings import StringPacker
from utils.errors import UserError

IMAGE_EXTENSIONS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")
_MAX_DEPTH = 100  # nested folders


def folder(data: Data, split: str) -> ImageFiles:
    """One folder per class in DATA_PATH/train and DATA_PATH/val; without val the images are split."""
    root = Path(data.data_path)
    train, val = root / "train", root / "val"
    if not val.is_dir():
        return ImageFiles(split_listing(read_class_folders(train if train.is_dir() else root), data, split))
    listing = read_class_folders(root / split)
    if train.is_dir():
        differing = sorted(set(class_names_in(train)) ^ set(class_names_in(val)))
        listing.findings += [
            f"{root}: class folder {name!r} is only in one of train and val; add or remove it" for name in differing
        ]
    return ImageFiles(listing)


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


def read_class_folders(root: Path, excluded: str | None = None) -> Listing:
    """Lists the images of each folder in `root`, at any depth; the sorted names of the folders are the classes.

    Hidden files and folders are ignored. A link to a folder is followed once per class, and never to a parent folder.

    Findings: a folder that cannot be listed or contains no images, an image that is a broken link or not a file.

    Raises:
        UserError: `root` is missing, cannot be listed, or contains fewer than two folders.
    """
    scan = _Scan(root)
    names = class_names_in(root, excluded)
    paths, targets, notes = StringPacker(), array("q"), []
    for label, name in enumerate(names):
        num_findings, num_images = len(scan.findings), len(paths)
        for path in _images_in(scan, name, (root.resolve(),), set()):
            paths.add(path)
            targets.append(label)
        if len(paths) == num_images and len(scan.findings) == num_findings:
            scan.findings.append(
                f"{root / name}: contains no images ({' '.join(IMAGE_EXTENSIONS)}); add images or remove the folder"
            )
    if scan.ignored_links:
        notes.append(
            f"{root}: {len(scan.ignored_links)} link(s) to parent folders or to folders already read are ignored; "
            f"the first is {shorten(scan.ignored_links[0])}"
        )
    arrays = listing_arrays(paths, np.frombuffer(targets, np.int64), np.empty(0, np.int32))
    return Listing(root, names, arrays, None, scan.findings, notes)


def class_names_in(root: Path, excluded: str | None = None) -> list[str]:
    """The sorted names of the folders in `root`, except `excluded`; raises UserError if there are fewer than two."""
    names = [entry.name for entry in _entries(root) if entry.is_folder and entry.name != excluded]
    if not names:
        raise UserError(f"{root}: contains no folders; put the images of each class into a separate folder")
    if len(names) == 1:
        raise UserError(
            f"{root}: contains only one folder, {format_value(names[0])}; give the folder that contains all classes"
        )
    return names


@dataclass
class _Scan:
    """The state of one `read_class_folders`."""

    root: Path
    findings: list[str] = field(default_factory=list)
    ignored_links: list[str] = field(default_factory=list)


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
        path = f"{folder}/{entry.name}"
        if entry.is_folder:
            yield from _images_in(scan, path, (*parents, resolved), visited)
        elif not entry.name.lower().endswith(IMAGE_EXTENSIONS):
            continue
        elif entry.is_file:
            yield path
        else:
            scan.findings.append(f"{scan.root / path}: is a broken link or not a file; restore or remove it")


class _Entry(NamedTuple):
    name: str
    is_folder: bool
    is_file: bool


def _entries(folder: Path) -> list[_Entry]:
    """All entries that are not hidden, sorted by name: the order of a directory differs between file systems."""
    try:
        with os.scandir(folder) as entries:
            return sorted(_to_entry(entry) for entry in entries if not entry.name.startswith("."))
    except OSError as error:
        raise UserError(f"{folder}: cannot be listed ({error.strerror}); check the path and its permissions") from error


def _to_entry(entry: os.DirEntry) -> _Entry:
    try:
        return _Entry(entry.name, entry.is_dir(), entry.is_file())
    except OSError:  # a link to itself
        return _Entry(entry.name, False, False)
