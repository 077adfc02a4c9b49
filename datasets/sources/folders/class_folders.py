"""Class folders: one folder of images per class."""

import os
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import filterfalse, islice
from pathlib import Path

import numpy as np

from configs.yaml_io import shorten
from datasets.decoding.images import (
    IMAGE_EXTENSIONS,
    PHOTO_EXTENSIONS,
    is_image_name,
    kind_of_file,
    missing_decoder,
)
from datasets.sources.class_names import positions
from datasets.sources.formats import RAW, ending_of, format_of
from datasets.sources.listing import Names, list_directory, name_like
from datasets.sources.samples import ImageFiles, is_broken_link, listing_arrays
from datasets.sources.shared_arrays import StringPacker, to_nfc
from utils.errors import MAX_SHOWN, Finding, UserError, did_you_mean, error_from, raise_problems
from utils.notes import Counts, Note, Reason

# Files that nobody takes for images: of systems, and copies
_IGNORED_FILES = (
    ".xmp", ".aae", ".md", ".yaml", ".html", ".py", ".ini", ".db", "dicomdir",
    "_original", "~", ".bak", ".orig", ".tmp", ".part", ".crdownload", "index.npz",
)  # fmt: skip
_TEXTS = (".txt", ".json", ".xml", ".csv")
# Also files beside images, which may be as many; raw photos, which begin as TIFF files do
_NEVER_OPENED = (*_IGNORED_FILES, *_TEXTS, *RAW, ".npy", ".mat")
# Hidden folders, and folders of macOS, Windows, Linux, Android, Synology, QNAP and NetApp, some with thumbnails or
# copies of the images.
_IGNORED_FOLDERS = re.compile(
    r"\..*|__macosx|network trash folder|temporary items|\$recycle\.bin|system volume information|found\.\d{3}|"
    r"_vti_cnf|lost\+found|lost\.dir|__pycache__|#recycle|#snapshot|~snapshot|"
    r"@(eadir|tmp|sharebin|syno\w+|recycle|recently-snapshot|transcode|__thumb)",
    re.IGNORECASE | re.DOTALL,
)
# The name of an image and a word: a mask, a thumbnail, a copy
_MORE_THAN_A_NAME = re.compile(r"(.+?)[ ._-]+[^\W\d]+(?: ?\(\d+\))?")
CALTECH = {  # the folder in DATA_PATH, or DATA_PATH itself, and the folder that is no class
    "caltech101": ("101_ObjectCategories", "BACKGROUND_Google"),
    "caltech256": ("256_ObjectCategories", "257.clutter"),
}


def find_folder(root: Path, name: str) -> Path:
    """Returns `root`/`name` if that is a folder, else `root`."""
    return root / name if (root / name).is_dir() else root


def read_class_folders(root: Path, excluded: Collection[str] = (), known: Collection[str] | None = None) -> ImageFiles:
    """Lists the images of each folder in `root`, at any depth; the sorted names of the folders (NFC) are the classes.

    known: the classes of the training images. One without images is no error, another class is.

    Findings: a folder that cannot be listed or contains no images; another class.
    Raises UserError: as `list_folder`; `root` contains no folders.
    """
    found = FoundFiles(root)
    folders, files = list_folder(root, excluded)
    if not folders:
        raise UserError(f"{root}: contains no folders; put the images of each class into a separate folder")
    of_folders = list(map(to_nfc, folders))
    names = sorted([*of_folders, *set(known or ()).difference(of_folders)])
    label_of = positions(names)
    paths = StringPacker()
    ends = []
    for folder, name in zip(folders, of_folders, strict=True):
        for path in _images_of_class(found, root / folder, name, known):
            paths.add(path)
        ends.append(len(paths))
    if not (paths or found.findings):  # a known class may have none, but not all classes
        found.findings.append(f"{root}: contains no images of the training's classes; add images, or remove the folder")
    beside = [name for name in files if found.is_image(root, name)]
    if beside:
        reason = Reason("image(s) beside the class folders are not read", "move them into the folders of their classes")
        found.unread.add(reason, shorten(beside[0]), len(beside))
    targets = np.repeat([label_of[name] for name in of_folders], np.diff(ends, prepend=0))
    arrays = listing_arrays(paths, targets=targets)
    return ImageFiles(root, names, arrays, findings=found.findings, notes=found.notes(), sizes=found.sizes)


def _images_of_class(found: "FoundFiles", folder: Path, name: str, known: Collection[str] | None) -> list[str]:
    """The paths of the images in a class folder; adds a finding about one that is empty or no class."""
    num_findings = len(found.findings)
    images = found.images_in(folder)
    if known is None:
        if not images and len(found.findings) == num_findings:
            unread = (f"{reason.fix} ({reason.text})" for reason in found.unread.found)
            fix = ", or ".join(["add images", "remove the folder", *unread])
            found.findings.append(f"{folder}: contains no images ({' '.join(IMAGE_EXTENSIONS)}); {fix}")
    elif name not in known:
        hint = did_you_mean(name, known) if num_findings < MAX_SHOWN else ""  # one takes 0.05 s of 20,000 classes
        found.findings.append(f"{folder}: is no class folder of the training; rename, add or remove it{hint}")
    return images


def read_images(root: Path) -> ImageFiles:
    """Lists all images in a folder, at any depth and without labels, as `read_class_folders` does: each label is 0.

    Images without a decoder are listed, too: whether an image can be read is found when it is read.
    Raises UserError: a folder cannot be listed, or there are no images.
    """
    found = FoundFiles(root, predicts=True)
    arrays = listing_arrays(StringPacker(found.all_images()))
    return ImageFiles(root, ["0"], arrays, notes=found.notes(), has_class_names=False)


def list_folder(root: Path, excluded: Collection[str] = ()) -> Names:
    """The sorted names of the folders in `root`, except ignored ones and `excluded`, and the names of its other files.

    Raises UserError: it is missing, or cannot be listed; a broken link without an image's name, perhaps to a class or a
    split.
    """
    found = FoundFiles(root)
    folders, files = found.top()
    raise_problems(root, found.findings)
    for path in (os.path.join(root, name) for name in files if not is_image_name(name)):
        if is_broken_link(path):
            raise UserError(f"{path}: is a broken link, to {os.readlink(path)}; restore the folder, or remove the link")
    return [name for name in folders if name not in excluded], files


def has_images(root: Path) -> bool:
    """Tells whether a folder contains an image, at any depth."""
    found = FoundFiles(root)
    return any(found.is_image(path, name) for path, _, files in found.walk(root) for name in files)


def has_class_folders(root: Path) -> bool:
    """Tells whether `root`, or the only folder with images in it, contains two folders with images."""
    found = list(islice(filter(has_images, (root / name for name in FoundFiles(root).top()[0])), 2))
    return len(found) > 1 or (len(found) == 1 and has_class_folders(found[0]))


class FoundFiles:
    """Errors about folders in `root`, and counts of the images in them.

    sizes: the images in each folder, by its path in `root`. copies: the paths of those with the name of another one.
    unread: images that are not read, and other files, by their endings. predicts: images without a decoder here count
    as images.
    """

    def __init__(self, root: Path, predicts: bool = False) -> None:
        self.root = root
        self.predicts = predicts
        self.findings = list[Finding]()
        self.sizes = Counter[str]()
        self.copies = list[str]()
        self.unread = Counts()

    def is_image(self, folder: str | Path, name: str) -> bool:
        """Tells whether a file is an image. One with an unknown ending is opened."""
        lower = name.lower()
        if lower.endswith(IMAGE_EXTENSIONS):  # as nearly all are
            return name[0] != "."
        if name[0] == "." or lower.endswith(_NEVER_OPENED):
            return False
        path = os.path.join(folder, name)
        kind = kind_of_file(path)
        if kind:
            fix = missing_decoder(kind)
            if fix:
                self.unread.add(Reason(f"{kind}(s) cannot be read", fix), shorten(path))
            return self.predicts or not fix
        if is_broken_link(path):
            self.unread.add(Reason("broken link(s) cannot be read", "restore their targets"), shorten(path))
            return False
        return lower.endswith(PHOTO_EXTENSIONS)  # a damaged photo is an image, too: an error reports it

    def _count_others(self, folder: str, folders: Sequence[str], files: Sequence[str], images: Sequence[str]) -> None:
        """Counts other files, but for those with the name of an image or a folder beside them; texts only by images."""
        known = {*images, *folders}
        others = [name for name in files if name not in known and name[0] != "."]
        if not others:  # as in most folders
            return
        known.update(os.path.splitext(name)[0] for name in images)
        texts = [] if images else _TEXTS
        ignored = (*_IGNORED_FILES, *PHOTO_EXTENSIONS, *texts)
        for name in others:
            ending = ending_of(name)
            if not known.isdisjoint((name, os.path.splitext(name)[0], name.removesuffix(ending))):
                continue
            found = format_of(os.path.join(folder, name))
            if found.name or (ending and not name.lower().endswith(ignored)):
                reason = Reason(f"{found.name or ending} file(s) are not read", found.fix, "log")
                self.unread.add(reason, shorten(os.path.join(folder, name)))

    def walk(self, folder: Path) -> Iterator[tuple[str, list[str], list[str]]]:
        """Each folder in a folder, the sorted names of the folders in it that are not ignored, and of its files.

        A link is followed once, as in a class, and never to a parent folder or, from another folder, to the root.
        """
        root = self.root.resolve()
        visited = {*root.parents}
        if folder != self.root:
            visited.add(root)
        waiting = [os.fspath(folder)]
        while waiting:
            path = waiting.pop()
            try:
                folders, files = list_directory(path)
            except OSError as error:
                problem = f"cannot be listed ({error.strerror}){name_like(Path(path))}"
                fix = "give a folder that can be read (-data_path)"
                self.findings.append(error_from(error, f"{error.filename}: {problem}; {fix}"))
                continue
            resolved = Path(path).resolve()
            if resolved in visited:
                continue
            visited.add(resolved)
            folders = [*filterfalse(_IGNORED_FOLDERS.fullmatch, folders)]
            yield path, folders, files
            waiting += [os.path.join(path, name) for name in reversed(folders)]

    def top(self) -> Names:
        """The sorted names of the folders in the root that are not ignored, and of its files; none if listing fails."""
        return next(self.walk(self.root), ("", [], []))[1:]

    def images_in(self, folder: Path) -> list[str]:
        """The paths of the images in a folder, relative to the root, sorted by the names of their parts."""
        paths = []
        for path, folders, files in self.walk(folder):
            prefix = os.path.join(path, "").removeprefix(os.path.join(self.root, ""))
            images = [name for name in files if self.is_image(path, name)]
            self._count_others(path, folders, files, images)
            if images:
                paths += [prefix + name for name in images]
                self.sizes[prefix.removesuffix("/")] += len(images)
                self.copies += [prefix + name for name in _named_after_others(images)]
        return sorted(paths, key=lambda path: path.replace("/", "\0"))

    def all_images(self) -> list[str]:
        """As `images_in` the root. Raises UserError: a folder cannot be listed, or there are no images."""
        paths = self.images_in(self.root)
        raise_problems(self.root, self.findings)
        if not paths:
            raise self.lacks_images()
        return paths

    def lacks_images(self) -> UserError:
        """The error of a folder without images: of those that are not read, if there are some."""
        unread = [note.text for note in self.unread.notes(self.root)]
        text = f"{self.root}: contains no images ({' '.join(IMAGE_EXTENSIONS)}); give another folder"
        return UserError("; ".join(unread) or text)

    def notes(self) -> list[Note]:
        """Notes about the files; a warning if a quarter of the images have the name of another one, or more."""
        notes = []
        if len(self.copies) > self.sizes.total() / 4 and not self.predicts:
            shown = f"{len(self.copies)} of {self.sizes.total()} images have the name of another image"
            text = f"masks or copies are used: {shown}, such as {shorten(self.copies[0])}; move them out of {self.root}"
            notes.append(Note("warning", text))
        return notes + self.unread.notes(self.root, self.sizes.total())


class Levels:
    """For each folder with images: its number of images, the paths `below` it to folders with images, their common path
    `tops`, and the names (NFC) of the folders `inside` this.
    """

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self.sizes = Counter[str]()
        self.below = defaultdict[str, list[str]](list)
        for folder, number in sizes.items():
            name, _, path = folder.partition("/")
            self.sizes[name] += number
            self.below[name].append(path)
        self.tops = {name: os.path.commonpath(paths) for name, paths in self.below.items()}
        self.inside = {
            name: {to_nfc(path.removeprefix(self.tops[name]).strip("/").partition("/")[0]) for path in paths} - {""}
            for name, paths in self.below.items()
        }


def _named_after_others(names: Sequence[str]) -> list[str]:
    """The images with another one's name: with another ending, or with a word, as of a mask or a copy of it."""
    stems = [name.rpartition(".")[0] if is_image_name(name) else name for name in names]
    known = set(stems)
    seen = set[str]()
    found = list[str]()
    for name, stem in zip(names, stems, strict=True):
        more = None if stem[-1:].isdecimal() else _MORE_THAN_A_NAME.fullmatch(stem)  # which is slow
        if stem in seen or (more and more[1] in known):
            found.append(name)
        seen.add(stem)
    return found
