"""Class folders: one folder of images per class."""

import os
from array import array
from pathlib import Path
from typing import NamedTuple

import numpy as np

from configs.schema import Data
from datasets.sources.arrays.strings import StringPacker
from datasets.sources.class_names import to_nfc
from datasets.sources.files.image_files import ImageFiles, Listing, listing_arrays
from datasets.sources.split import Splitter, split_listing
from utils.errors import UserError, combine_findings

IMAGE_EXTENSIONS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")
_MAX_DEPTH = 100  # nested folders
_MAX_TRIED = 10  # folders in which images are looked for


def folder(data: Data, split: str, splitter: Splitter | None = None) -> ImageFiles:
    """One folder per class in DATA_PATH/train, DATA_PATH/val and DATA_PATH/test; without val the images are split.

    Without train, the class folders are in DATA_PATH; there may be a folder test beside them.

    The split 'all' is all images of DATA_PATH, without test, if it has neither train nor val, else val.
    """
    root = Path(data.data_path)
    train, val = root / "train", root / "val"
    if split == "all":
        if not (train.is_dir() or val.is_dir()):
            return ImageFiles(split_listing(_read_root(root), data, split, splitter))
        split = "val"
    if split != "test" and not val.is_dir():
        listing = read_class_folders(train) if train.is_dir() else _read_root(root)
        return ImageFiles(split_listing(listing, data, split, splitter))
    return ImageFiles(_with_checked_classes(root, split))


def _with_checked_classes(root: Path, split: str) -> Listing:
    """The folder of a split. A class that only this split, or only the training split, has is an error."""
    listing = read_class_folders(root / split)
    train, other = root / "train", "val" if split == "train" else split
    if train.is_dir():
        names = class_names_in(train)
    elif split == "test" and held_out_classes(root):
        names = class_names_in(root, excluded="test")
    else:
        return listing
    listing.findings += [
        f"{root}: class folder {name!r} is only in one of train and {other}; add or remove it"
        for name in sorted(set(names) ^ set(class_names_in(root / other)))
    ]
    return listing


def _read_root(root: Path) -> Listing:
    """The class folders in DATA_PATH, without a folder test that contains folders of the same names."""
    if not (root / "test").is_dir() or held_out_classes(root):
        return read_class_folders(root, excluded="test")
    listing = read_class_folders(root)
    listing.findings.append(
        f"{root / 'test'}: is it a class, or are these test images? Move the folders of all classes to {root / 'train'}"
    )
    return listing


def held_out_classes(root: Path) -> set[str]:
    """The names of folders in root/test that are classes: folders in root/train, or beside test."""
    train = root / "train"
    try:
        names = class_names_in(train) if train.is_dir() else class_names_in(root, excluded="test")
        return set(names).intersection(class_names_in(root / "test"))
    except UserError:  # a folder cannot be listed, or contains no folders
        return set()


def has_class_folders(root: Path) -> bool:
    """Tells whether `root`, its folder train or its folder val contains two folders with images directly in them."""
    for parent in (root / "train", root / "val", root):
        try:
            folders = class_folders_in(parent)[:_MAX_TRIED]
            if sum(any(map(_is_image, _list(parent / name)[1])) for name in folders) > 1:
                return True
        except UserError:  # a folder cannot be listed, or contains no folders
            continue
    return False


def caltech(name: str, excluded: str, data: Data, split: str, splitter: Splitter | None = None) -> ImageFiles:
    """The folder `name`, which is DATA_PATH or inside it, split; without the class `excluded`."""
    listing = read_class_folders(find_folder(data.data_path, name), excluded)
    return ImageFiles(split_listing(listing, data, split, splitter))


def find_folder(data_path: str, name: str) -> Path:
    """`data_path`/`name` if that is a folder, else `data_path`."""
    inner = Path(data_path) / name
    return inner if inner.is_dir() else Path(data_path)


def read_class_folders(root: Path, excluded: str | None = None) -> Listing:
    """Lists the images of each folder in `root`, at any depth; the sorted names of the folders (NFC) are the classes.

    Hidden files and folders are ignored. A link to a folder is followed once per class, and never to a parent folder.

    Findings: a folder that cannot be listed or contains no images.

    Raises:
        UserError: `root` is missing, cannot be listed, or contains no folders.
    """
    scan, folders = _Scan([], [], []), class_folders_in(root, excluded)
    names = sorted(map(to_nfc, folders))
    label_of = {name: label for label, name in enumerate(names)}
    paths, targets = StringPacker(), array("q")
    for name in folders:
        num_findings = len(scan.findings)
        images = _images_in(root / name, root, scan, {root.resolve()})
        if not images and len(scan.findings) == num_findings:
            scan.findings.append(
                f"{root / name}: contains no images ({' '.join(IMAGE_EXTENSIONS)}); add images or remove the folder"
            )
        for path in images:
            paths.add(path)
            targets.append(label_of[to_nfc(name)])
    scan.ignored.extend(_ignored(*_list(root)))
    arrays = listing_arrays(paths, np.frombuffer(targets, np.int64))
    return Listing(root, names, arrays, None, scan.findings, _notes(scan, root))


def read_images(root: Path) -> Listing:
    """Lists all images in a folder, at any depth and without labels, as `read_class_folders` does: each label is 0.

    Raises:
        UserError: a folder cannot be listed, or there are no images.
    """
    scan = _Scan([], [], [])
    paths = StringPacker(_images_in(root, root, scan, set()))
    if scan.findings:
        raise combine_findings(f"{root}: {len(scan.findings)} problems", scan.findings)
    if not len(paths):
        fix = "give another folder"
        if next(root.glob("*.tar"), None):
            fix = f"to label the images of tar shards: -predict -dataset=tar -data_path={root}"
        raise UserError(f"{root}: contains no images ({' '.join(IMAGE_EXTENSIONS)}); {fix}")
    return Listing(root, ["0"], listing_arrays(paths), notes=_notes(scan, root), has_class_names=False)


def class_names_in(root: Path, excluded: str | None = None) -> list[str]:
    """The names of the classes of `class_folders_in`."""
    return list(map(to_nfc, class_folders_in(root, excluded)))


def class_folders_in(root: Path, excluded: str | None = None) -> list[str]:
    """The sorted names of the folders in `root`, except `excluded`; raises UserError if there are none."""
    names = sorted(name for name in _list(root)[0] if name != excluded and not _is_hidden(name))
    if not names:
        has_shards = next(root.glob("*.tar"), None)
        fix = "put the images of each class into a separate folder"
        raise UserError(
            f"{root}: contains no folders; {'it contains tar shards: use -dataset=tar' if has_shards else fix}"
        )
    return names


class _Scan(NamedTuple):
    """Paths that a reading of folders ignores, relative to its root, and error messages."""

    findings: list[str]
    links: list[str]
    ignored: list[str]


def _images_in(folder: Path, root: Path, scan: _Scan, visited: set[Path]) -> list[str]:
    """The paths of the images in a folder, relative to `root`, sorted by the names of their parts.

    visited: the resolved folders to which no link is followed.
    """
    images, resolved_root = [], root.resolve()

    def note(error: OSError) -> None:
        scan.findings.append(str(_cannot_list(error)))

    for path, folders, files in os.walk(folder, onerror=note, followlinks=True):
        prefix = os.path.join(path, "").removeprefix(os.path.join(root, ""))
        resolved = Path(path).resolve()
        if resolved in visited or resolved in resolved_root.parents:
            scan.links.append(prefix.removesuffix("/"))
            folders.clear()
            continue
        visited.add(resolved)
        if prefix.count("/") > _MAX_DEPTH:
            scan.findings.append(f"{path}: is more than {_MAX_DEPTH} folders deep; move its images up")
            folders.clear()
            continue
        images += [prefix + name for name in files if _is_image(name)]
        scan.ignored.extend(prefix + name for name in _ignored(folders, files))
        folders[:] = sorted(name for name in folders if not _is_hidden(name))
    return sorted(images, key=lambda path: path.replace("/", "\0"))


def _notes(scan: _Scan, root: Path) -> list[str]:
    links, ignored = len(scan.links), len(scan.ignored)
    notes = []
    if links:
        notes.append(
            f"{root}: {links} link(s) to parent folders or to folders already read are ignored; the first is "
            f"{scan.links[0]!r}"
        )
    if ignored:
        notes.append(
            f"{root}: {ignored} file(s) that are no images, or hidden files or folders, are ignored, such as "
            f"{scan.ignored[0]!r}"
        )
    return notes


def _ignored(folders: list[str], files: list[str]) -> list[str]:
    return [name for name in folders if _is_hidden(name)] + [name for name in files if not _is_image(name)]


def _is_image(name: str) -> bool:
    return not _is_hidden(name) and name.lower().endswith(IMAGE_EXTENSIONS)


def _is_hidden(name: str) -> bool:
    return name.startswith(".")


def _list(folder: Path) -> tuple[list[str], list[str]]:
    """The names of the folders in a folder, and of its other entries; raises UserError if it cannot be listed."""

    def refuse(error: OSError) -> None:
        raise _cannot_list(error) from error

    _, folders, others = next(os.walk(folder, onerror=refuse))
    return folders, others


def _cannot_list(error: OSError) -> UserError:
    return UserError(f"{error.filename}: cannot be listed ({error.strerror}); check -data_path (DATA.DATA_PATH)")
