"""Class folders: one folder of images per class."""

import os
from array import array
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

import numpy as np

from datasets.decoding.kinds import IMAGE_EXTENSIONS, FoundFiles, is_hidden, missing_decoder
from datasets.sources.files.image_files import ImageFiles, Listing, listing_arrays
from datasets.sources.shared_arrays import StringPacker, to_nfc
from datasets.sources.source import Source
from datasets.sources.split import split_listing
from utils.errors import Finding, UserError, combine_findings, did_you_mean, error_from

_MAX_DEPTH = 100  # nested folders


class Caltech101(Source):
    """The folder `folder`, which is DATA_PATH or inside it, split; without the class `excluded`."""

    folder, excluded = "101_ObjectCategories", "BACKGROUND_Google"

    def read(self, split: str) -> ImageFiles:
        listing = read_class_folders(find_folder(self.root, self.folder), [self.excluded])
        return ImageFiles(split_listing(listing, split, self.splitter))


class Caltech256(Caltech101):
    folder, excluded = "256_ObjectCategories", "257.clutter"


def find_folder(root: Path, name: str) -> Path:
    """Returns `root`/`name` if that is a folder, else `root`."""
    return root / name if (root / name).is_dir() else root


def read_class_folders(root: Path, excluded: Collection[str] = ()) -> Listing:
    """Lists the images of each folder in `root`, at any depth; the sorted names of the folders (NFC) are the classes.

    Hidden files and folders are ignored. A link to a folder is followed once per class, and never to a parent folder.

    Findings: a folder that cannot be listed or contains no images.

    Raises:
        UserError: `root` is missing, cannot be listed, or contains no folders.
    """
    scan, class_folders = _Scan([], [], FoundFiles()), class_folders_in(root, excluded)
    names = sorted(map(to_nfc, class_folders))
    label_of = {name: label for label, name in enumerate(names)}
    paths, targets = StringPacker(), array("q")
    for name in class_folders:
        num_findings, undecodable = len(scan.findings), scan.files.undecodable.copy()
        images = _images_in(root / name, root, scan, {root.resolve()})
        if not images and len(scan.findings) == num_findings:
            problem = f"contains no images ({' '.join(IMAGE_EXTENSIONS)}); add images or remove the folder"
            for kind in scan.files.undecodable - undecodable:
                problem = f"all of its images are {kind}; {missing_decoder(kind)}"
            scan.findings.append(f"{root / name}: {problem}")
        for path in images:
            paths.add(path)
            targets.append(label_of[to_nfc(name)])
    notes, (folders, files) = [], _list(root)
    scan.files.select_folders(folders)
    if beside := len(scan.files.select_images(root, files)):
        notes.append(f"{root}: {beside} image(s) beside the class folders are not read")
    arrays = listing_arrays(paths, np.frombuffer(targets, np.int64))
    return Listing(
        root=root, class_names=names, arrays=arrays, file=None, findings=scan.findings, notes=notes + _notes(scan, root)
    )


def read_images(root: Path) -> Listing:
    """Lists all images in a folder, at any depth and without labels, as `read_class_folders` does: each label is 0.

    Images without a decoder are listed, too: whether an image can be read is found when it is read.

    Raises:
        UserError: a folder cannot be listed, or there are no images.
    """
    scan = _Scan([], [], FoundFiles(keep_undecodable=True))
    paths = StringPacker(_images_in(root, root, scan, set()))
    if scan.findings:
        raise combine_findings(f"{root}: {len(scan.findings)} problems", scan.findings)
    if not len(paths):
        fix = "give another folder"
        if next(root.glob("*.tar"), None):
            fix = f"to label the images of tar shards: -predict -dataset=tar -data_path={root}"
        raise UserError(f"{root}: contains no images ({' '.join(IMAGE_EXTENSIONS)}); {fix}")
    return Listing(root, ["0"], listing_arrays(paths), notes=_notes(scan, root), has_class_names=False)


def class_folders_in(root: Path, excluded: Collection[str] = ()) -> list[str]:
    """The sorted names of the folders in `root`, except `excluded`; raises UserError if there are none."""
    names = sorted(name for name in _list(root)[0] if name not in excluded and not is_hidden(name))
    if not names:
        shards = "it contains tar shards: use -dataset=tar" if next(root.glob("*.tar"), None) else ""
        fix = shards or use_table(root) or "put the images of each class into a separate folder"
        raise UserError(f"{root}: contains no folders; {fix}")
    return names


def use_table(root: Path) -> str | None:
    """How to read train.csv in a folder, or beside it; None if there is none."""
    folder = next((folder for folder in (root, root.parent) if (folder / "train.csv").is_file()), None)
    return f"to read {folder / 'train.csv'}: -dataset=csv -data_path={folder}" if folder else None


def has_images(folder: Path, deep: bool) -> bool:
    """Tells whether a folder contains an image, with `deep` at any depth."""
    for path, folders, files in os.walk(folder):
        if FoundFiles().select_images(path, files):
            return True
        folders[:] = [name for name in folders if deep and not is_hidden(name)]
    return False


class _Scan(NamedTuple):
    """Error messages, the links that a reading of folders ignores, relative to its root, and counts of files."""

    findings: list[Finding]
    links: list[str]
    files: FoundFiles


def _images_in(folder: Path, root: Path, scan: _Scan, visited: set[Path]) -> list[str]:
    """The paths of the images in a folder, relative to `root`, sorted by the names of their parts.

    visited: the resolved folders to which no link is followed.
    """
    images, resolved_root = [], root.resolve()

    def note(error: OSError) -> None:
        scan.findings.append(_cannot_list(error))

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
        images += [prefix + name for name in scan.files.select_images(path, files)]
        folders[:] = scan.files.select_folders(folders)
    return sorted(images, key=lambda path: path.replace("/", "\0"))


def _notes(scan: _Scan, root: Path) -> list[str]:
    notes = scan.files.describe(root)
    if links := len(scan.links):
        notes.append(
            f"{root}: {links} link(s) to parent folders or to folders already read are ignored; the first is "
            f"{scan.links[0]!r}"
        )
    return notes


def _list(folder: Path) -> tuple[list[str], list[str]]:
    """The names of the folders in a folder, and of its other entries; raises UserError if it cannot be listed."""

    def refuse(error: OSError) -> None:
        raise _cannot_list(error) from error

    _, folders, others = next(os.walk(folder, onerror=refuse))
    return folders, others


def _cannot_list(error: OSError) -> UserError:
    fix = "for a table: -dataset=csv" if str(error.filename).endswith(".csv") else "check -data_path (DATA.DATA_PATH)"
    path = Path(error.filename)
    beside = [one.name for one in path.parent.iterdir()] if path.parent.is_dir() and not path.exists() else []
    return error_from(error, f"{path}: cannot be listed ({error.strerror}); {fix}{did_you_mean(path.name, beside)}")
