"""Class folders: one folder of images per class."""

import os
import re
import shlex
from array import array
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import numpy as np

from configs.yaml_io import shorten
from datasets.decoding.images import IMAGE_EXTENSIONS, PHOTO_EXTENSIONS, kind_of_file, missing_decoder
from datasets.sources.image_files import ImageFiles, Listing, is_broken_link, listing_arrays
from datasets.sources.shared_arrays import StringPacker, to_nfc
from datasets.sources.source import Source
from datasets.sources.split import split_listing
from utils.errors import Finding, UserError, combine_findings, did_you_mean, error_from
from utils.notes import Note

# Never opened: files beside images, which may be as many; raw photos, which begin as TIFF files do; copies of images.
_OTHER_EXTENSIONS = (
    *(".txt", ".json", ".xml", ".csv", ".xmp", ".aae", ".md", ".yaml", ".html", ".py", ".ini", ".db", ".npy", ".mat"),
    *(".arw", ".cr2", ".dng", ".nef", ".nrw", ".orf", ".pef", ".raf", ".rw2", ".srw"),
    *("_original", "~", ".bak", ".orig", ".tmp", ".part", ".crdownload"),
)
# Folders of macOS, Windows, Linux, Android, Synology, QNAP and NetApp, some with thumbnails or copies of the images.
_SYSTEM_FOLDERS = re.compile(
    r"__macosx|network trash folder|temporary items|\$recycle\.bin|system volume information|found\.\d{3}|_vti_cnf|"
    r"lost\+found|lost\.dir|__pycache__|#recycle|#snapshot|~snapshot|"
    r"@(eadir|tmp|sharebin|syno\w+|recycle|recently-snapshot|transcode|__thumb)",
    re.IGNORECASE,
)
# The name of an image and a word: a mask, a thumbnail, a copy
_MORE_THAN_A_NAME = re.compile(r"(.+?)[ ._-]+[^\W\d]+(?: ?\(\d+\))?")
_BROKEN = "broken link"
_MAX_ENDINGS = 8  # in a note


_CALTECH = {  # the folder in DATA_PATH, or DATA_PATH itself, and the folder that is no class
    "caltech101": ("101_ObjectCategories", "BACKGROUND_Google"),
    "caltech256": ("256_ObjectCategories", "257.clutter"),
}


class Caltech(Source):
    """The class folders of a set of `_CALTECH`, split."""

    def read(self, split: str) -> ImageFiles:
        folder, no_class = _CALTECH[self.data.dataset]
        listing = read_class_folders(find_folder(self.root, folder), [no_class])
        return ImageFiles(split_listing(listing, split, self.splitter))


def find_folder(root: Path, name: str) -> Path:
    """Returns `root`/`name` if that is a folder, else `root`."""
    return root / name if (root / name).is_dir() else root


def read_class_folders(root: Path, excluded: Collection[str] = (), known: Collection[str] | None = None) -> Listing:
    """Lists the images of each folder in `root`, at any depth; the sorted names of the folders (NFC) are the classes.

    Hidden folders and folders of operating systems are ignored. A link to a folder is followed once per class, and
    never to a parent folder.

    known: the classes of the training images. One without images is no error, another class is.

    Findings: a folder that cannot be listed or contains no images; another class.
    Raises UserError: `root` is missing, cannot be listed, or contains no folders.
    """
    found, folders = FoundFiles(root), class_folders_in(root, excluded)
    refuse_broken_links(root)
    if not folders:
        raise UserError(f"{root}: contains no folders; put the images of each class into a separate folder")
    of_folders = list(map(to_nfc, folders))
    names = sorted([*of_folders, *set(known or ()).difference(of_folders)])
    label_of = {name: label for label, name in enumerate(names)}
    paths, targets, copies = StringPacker(), array("q"), list[str]()
    for folder, name in zip(folders, of_folders, strict=True):
        num_findings = len(found.findings)
        images = images_in(root / folder, found, {root.resolve()})
        if known is not None and name not in known:
            fix = f"add or remove it{did_you_mean(name, known)}"
            found.findings.append(f"{root / folder}: is no class folder of the training; {fix}")
        elif not images and known is None and len(found.findings) == num_findings:
            fix = " or ".join(["add images", *filter(None, map(missing_decoder, found.lost))])
            found.findings.append(f"{root / folder}: contains no images ({' '.join(IMAGE_EXTENSIONS)}); {fix}")
        for path in images:
            paths.add(path)
            targets.append(label_of[name])
        copies += named_after_images(images)
    if known is not None and not paths and not found.findings:
        found.findings.append(f"{root}: contains no images of the training's classes; add images, or remove the folder")
    notes, (_, files) = notes_on_copies(root, copies, len(targets)), _list(root)
    if beside := sum(found.is_image(root, name) for name in files):
        notes.append(Note("log", f"{root}: {beside} image(s) beside the class folders are not read"))
    for dataset, (_, no_class) in _CALTECH.items():
        if no_class in names:
            notes.append(Note("screen", f"{root}: {no_class} is read as a class; -dataset={dataset} leaves it out"))
    arrays = listing_arrays(paths, np.frombuffer(targets, np.int64))
    return Listing(root, names, arrays, findings=found.findings, notes=notes + found.notes(), sizes=found.sizes)


def named_after_images(paths: Sequence[str]) -> list[str]:
    """The paths with the name of another one: with another ending, or with a word, as of a mask or a copy of it."""
    parts = map(os.path.splitext, paths)
    stems = [stem if ending.lower() in IMAGE_EXTENSIONS else stem + ending for stem, ending in parts]
    known, seen, found = set(stems), set[str](), list[str]()
    for path, stem in zip(paths, stems, strict=True):
        if stem in seen or ((match := _MORE_THAN_A_NAME.fullmatch(stem)) and match[1] in known):
            found.append(path)
        seen.add(stem)
    return found


def notes_on_copies(root: Path, copies: Sequence[str], number: int) -> list[Note]:
    """A warning if a quarter of the images, or more, have the name of another one."""
    shown = f"{len(copies)} of {number} images, such as {shorten((copies or [''])[0])}"
    text = f"{root}: {shown}, have the name of another image: move masks and copies out of it"
    return [Note("warning", text)] if len(copies) > number / 4 else []


def read_images(root: Path) -> Listing:
    """Lists all images in a folder, at any depth and without labels, as `read_class_folders` does: each label is 0.

    Images without a decoder are listed, too: whether an image can be read is found when it is read.
    Raises UserError: a folder cannot be listed, or there are no images.
    """
    found = FoundFiles(root, keep_undecodable=True)
    paths = StringPacker(images_in(root, found, set()))
    if found.findings:
        raise combine_findings(f"{root}: {len(found.findings)} problems", found.findings)
    if not len(paths):
        fix = f"of tar shards, -predict -dataset=tar -data_path={shlex.quote(str(root))} labels the images"
        raise UserError(f"{root}: contains no images ({' '.join(IMAGE_EXTENSIONS)}); give another folder; {fix}")
    return Listing(root, ["0"], listing_arrays(paths), notes=found.notes(), has_class_names=False)


def class_folders_in(root: Path, excluded: Collection[str] = ()) -> list[str]:
    """The sorted names of the folders in `root`, except `excluded`; raises UserError if it cannot be listed."""
    return sorted(name for name in _list(root)[0] if name not in excluded and not _is_ignored(name))


def refuse_broken_links(root: Path) -> None:
    """Raises UserError: `root` has a broken link without an image's name, perhaps to a class or a split."""
    for path in (os.path.join(root, name) for name in _list(root)[1] if not name.lower().endswith(IMAGE_EXTENSIONS)):
        if is_broken_link(path):
            raise UserError(f"{path}: is a broken link, to {os.readlink(path)}; restore the folder, or remove the link")


def has_images(folder: Path, deep: bool) -> bool:
    """Tells whether a folder contains an image, with `deep` at any depth."""
    found = FoundFiles(folder)
    folders = islice(_walk(folder, found, set()), None if deep else 1)
    return any(found.is_image(path, name) for path, files in folders for name in files)


@dataclass
class FoundFiles:
    """Errors about folders in `root`, and counts of the files in them.

    others: files and folders that are ignored, by their endings. lost: the paths of images that cannot be read, by
    their kinds; images without a decoder here count as images with `keep_undecodable`. sizes: the images in each
    folder, by its path in `root`.
    """

    root: Path
    keep_undecodable: bool = False
    findings: list[Finding] = field(default_factory=list)
    sizes: Counter[str] = field(default_factory=Counter)
    others: Counter[str] = field(default_factory=Counter)
    lost: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    def is_image(self, folder: str | Path, name: str) -> bool:
        """Tells whether a file is an image, and counts another one. Only a file with an unknown ending is opened."""
        if name.lower().endswith(IMAGE_EXTENSIONS) and name[0] != ".":
            return True
        ending, path = os.path.splitext(name)[1].lower(), os.path.join(folder, name)
        is_opened = name[0] != "." and not name.lower().endswith(_OTHER_EXTENSIONS)
        kind = (kind_of_file(path) or (_BROKEN if is_broken_link(path) else None)) if is_opened else None
        if kind == _BROKEN or (kind and missing_decoder(kind)):
            self.lost[kind].append(path)
            return self.keep_undecodable and kind != _BROKEN
        if kind or (is_opened and ending in PHOTO_EXTENSIONS):
            return True  # a damaged photo is an image, too: an error reports it
        self.others["hidden " * (name[0] == ".") + (ending or name)] += 1
        return False

    def select_folders(self, names: list[str]) -> list[str]:
        """The sorted names of the folders that are not ignored."""
        self.others.update(f"{name}/" for name in names if _is_ignored(name))
        return sorted(name for name in names if not _is_ignored(name))

    def notes(self) -> list[Note]:
        """Notes about the files, which may be warnings."""
        notes = list[Note]()
        for kind, paths in self.lost.items():
            fix = missing_decoder(kind) or "restore their targets"
            text = f"{self.root}: {len(paths)} {kind}(s) cannot be read, such as {shorten(paths[0])}; {fix}"
            notes.append(Note("warning", text))
        if self.others:
            counts = ", ".join(f"{count} {shorten(ending)}" for ending, count in self.others.most_common(_MAX_ENDINGS))
            notes.append(Note("log", f"{self.root}: {self.others.total()} files and folders are ignored: {counts}"))
        return notes


def _is_ignored(folder: str) -> bool:
    """Tells whether a folder of this name is hidden, or of an operating system or a storage device."""
    return folder.startswith(".") or _SYSTEM_FOLDERS.fullmatch(folder) is not None


def images_in(folder: Path, found: FoundFiles, visited: set[Path]) -> list[str]:
    """The paths of the images in a folder, relative to the root, sorted by the names of their parts.

    visited: the resolved folders to which no link is followed.
    """
    paths = list[str]()
    for path, files in _walk(folder, found, visited):
        prefix = os.path.join(path, "").removeprefix(os.path.join(found.root, ""))
        if images := [prefix + name for name in files if found.is_image(path, name)]:
            paths += images
            found.sizes[prefix.removesuffix("/")] += len(images)
    return sorted(paths, key=lambda path: path.replace("/", "\0"))


def _walk(folder: Path, found: FoundFiles, visited: set[Path]) -> Iterator[tuple[str, list[str]]]:
    """Each folder in a folder, and the names of its files."""
    parents = found.root.resolve().parents
    for path, folders, files in os.walk(
        folder, onerror=lambda e: found.findings.append(_cannot_list(e)), followlinks=True
    ):
        resolved = Path(path).resolve()
        if resolved in visited or resolved in parents:
            found.others["link to a folder that is read"] += 1
            folders.clear()
            continue
        visited.add(resolved)
        yield path, files
        folders[:] = found.select_folders(folders)


def _list(folder: Path) -> tuple[list[str], list[str]]:
    """The names of the folders in a folder, and of its other entries; raises UserError if it cannot be listed."""

    def refuse(error: OSError) -> None:
        raise _cannot_list(error) from error

    _, folders, others = next(os.walk(folder, onerror=refuse))
    return folders, others


def _cannot_list(error: OSError) -> UserError:
    path = Path(error.filename)
    fix = "change its permissions, or check -data_path (DATA.DATA_PATH)"
    if is_broken_link(path):
        fix = f"it is a broken link, to {os.readlink(path)}"
    elif path.is_file():
        fix = "give a folder; -dataset=csv reads a table, -dataset=tar tar shards"
    elif not path.exists() and path.parent.is_dir():
        fix = f"check -data_path (DATA.DATA_PATH){did_you_mean(path.name, os.listdir(path.parent))}"
    return error_from(error, f"{path}: cannot be listed ({error.strerror}); {fix}")
