"""Class folders: one folder of images per class."""

import os
import re
import shlex
from array import array
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from configs.yaml_io import shorten
from datasets.decoding.images import IMAGE_EXTENSIONS, PHOTO_EXTENSIONS, kind_of_file, missing_decoder
from datasets.sources.image_files import ImageFiles, Listing, is_broken_link, listing_arrays
from datasets.sources.names import MASK, list_names, split_of
from datasets.sources.shared_arrays import StringPacker, to_nfc
from datasets.sources.source import Source
from datasets.sources.split import split_listing
from utils.errors import Finding, UserError, combine_findings, did_you_mean, error_from
from utils.notes import Note

_MAX_DEPTH = 100  # nested folders
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
# Files with images, or with labels of images, that are not read.
_OTHER_FORMS = (
    *(".npz", ".npy", ".h5", ".hdf5", ".mat", ".pkl", ".tfrecord", ".lmdb", ".arrow", ".zip", ".tgz", ".gz", ".rar"),
    *(".7z", ".xlsx", ".xls", ".ods", ".json", ".jsonl", ".xml", "_annotations.txt"),
)
_SUBMISSION = re.compile("submission|sample_?sub", re.IGNORECASE)  # Kaggle's example: its labels mean nothing
_BESIDE_AN_IMAGE = re.compile(
    rf"(.+?)[ ._-]+(?:{MASK}|thumb(?:nail)?s?|copy(?: ?\(\d+\))?)", re.IGNORECASE
)  # the name of a mask or a copy: of the name of its image
_MAX_ENDINGS = 8  # in a note


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


def read_class_folders(root: Path, excluded: Collection[str] = (), known: Collection[str] | None = None) -> Listing:
    """Lists the images of each folder in `root`, at any depth; the sorted names of the folders (NFC) are the classes.

    Hidden folders and folders of operating systems are ignored. A link to a folder is followed once per class, and
    never to a parent folder.

    known: the classes of the training images; a class without images is then only noted.

    Findings: a folder that cannot be listed or contains no images.
    Raises UserError: `root` is missing, cannot be listed, or contains no folders.
    """
    found, class_folders = FoundFiles(root), class_folders_in(root, excluded)
    names = sorted([*map(to_nfc, class_folders), *set(known or ()).difference(map(to_nfc, class_folders))])
    label_of = {name: label for label, name in enumerate(names)}
    paths, targets, missing, copies = StringPacker(), array("q"), set(known or ()), list[str]()
    for name in class_folders:
        num_findings, undecodable = len(found.findings), found.undecodable.copy()
        images = images_in(root / name, found, {root.resolve()})
        if images:
            missing.discard(to_nfc(name))
        elif len(found.findings) == num_findings and known is None:
            problem = f"contains no images ({' '.join(IMAGE_EXTENSIONS)}); add images, or check -data_path"
            for kind in found.undecodable - undecodable:
                problem = f"all of its images are {kind}; {missing_decoder(kind)}"
            found.findings.append(f"{root / name}: {problem}")
        for path in images:
            paths.add(path)
            targets.append(label_of[to_nfc(name)])
        copies += named_after_images(images)
    notes, (folders, files) = [], _list(root)
    found.select_folders(folders)
    if beside := len(found.select_images(root, files)):
        notes.append(Note("log", f"{root}: {beside} image(s) beside the class folders are not read"))
    notes += notes_on_copies(root, copies, len(targets))
    for dataset, other in (("caltech101", Caltech101.excluded), ("caltech256", Caltech256.excluded)):
        if other in names:
            notes.append(Note("screen", f"{root}: {other} is read as a class; -dataset={dataset} leaves it out"))
    if missing and not paths and not found.findings:
        found.findings.append(f"{root}: contains no images of the training's classes; add images, or remove the folder")
    elif missing:
        notes.append(Note("warning", f"{root}: has no image of {list_names(sorted(missing))}, unlike the training"))
    arrays = listing_arrays(paths, np.frombuffer(targets, np.int64))
    return Listing(root, names, arrays, findings=found.findings, notes=notes + found.notes(), sizes=found.sizes)


def named_after_images(paths: Sequence[str]) -> list[str]:
    """The paths with the name of another one: with another ending, or as a mask, a thumbnail or a copy of it."""
    parts = map(os.path.splitext, paths)
    stems = [stem if ending.lower() in IMAGE_EXTENSIONS else stem + ending for stem, ending in parts]
    known, seen, found = set(stems), set[str](), list[str]()
    for path, stem in zip(paths, stems, strict=True):
        if stem in seen or ((match := _BESIDE_AN_IMAGE.fullmatch(stem)) and match[1] in known):
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
        fix = "give another folder"
        if next(root.glob("*.tar"), None):
            fix = f"to label the images of tar shards: -predict -dataset=tar -data_path={shlex.quote(str(root))}"
        raise UserError(f"{root}: contains no images ({' '.join(IMAGE_EXTENSIONS)}); {fix}")
    return Listing(root, ["0"], listing_arrays(paths), notes=found.notes(), has_class_names=False)


def class_folders_in(root: Path, excluded: Collection[str] = ()) -> list[str]:
    """The sorted names of the folders in `root`, except `excluded`; raises UserError if there are none."""
    folders, files = _list(root)
    names = sorted(name for name in folders if name not in excluded and not _is_ignored(name))
    if not names:
        fix = "put the images of each class into a separate folder; to label unsorted images: "
        fix += f"-predict {shlex.quote(str(root))}"
        raise UserError(f"{root}: contains no folders; {other_form(root, files) or fix}")
    return names


def other_form(root: Path, files: Collection[str] | None = None) -> str | None:
    """How to read the data in a folder that has no class folders; None if no file in it shows its form."""
    files = sorted(_list(root)[1] if files is None else files)
    if any(name.endswith(".tar") for name in files):
        return "it contains tar shards: use -dataset=tar"
    if "data_batch_1" in files:
        return "it contains CIFAR-10: use -dataset=cifar10"
    tables = [folder / name for folder in (root, root.parent) for name in ("train.csv", "labels.csv")]
    named = [
        name for name in files if name.lower().endswith((".csv", ".tsv", ".jsonl")) and not _SUBMISSION.search(name)
    ]
    of_train = [name for name in named if split_of(name) == "train"]
    tables += [root / name for name in of_train or named if split_of(name) != "test"]
    if table := next(filter(Path.is_file, tables), None):
        path = table.parent if table.name == "train.csv" else table
        return f"to read the table {table}: -dataset=csv -data_path={shlex.quote(str(path))}"
    if name := next((name for name in files if name.lower().endswith(_OTHER_FORMS)), None):
        fix = "-dataset=torchvision/NAME, or save or unpack it as a folder of images per class, or as a table"
        return f"{shorten(name)} is not read: use {fix}"
    return None


def has_images(folder: Path, deep: bool) -> bool:
    """Tells whether a folder contains an image, with `deep` at any depth."""
    for path, folders, files in os.walk(folder):
        if FoundFiles(folder).select_images(path, files):
            return True
        folders[:] = [name for name in folders if deep and not _is_ignored(name)]
    return False


@dataclass
class FoundFiles:
    """Error messages, links that are ignored, and counts of files by their endings, of folders in `root`.

    others: are no images. undecodable: the images of each kind without a decoder here; they count as images with
    `keep_undecodable`. broken: links to what is missing. sizes: the images in each folder, by its path in `root`.
    """

    root: Path
    keep_undecodable: bool = False
    findings: list[Finding] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    sizes: Counter[str] = field(default_factory=Counter)
    others: Counter[str] = field(default_factory=Counter)
    undecodable: Counter[str] = field(default_factory=Counter)

    def select_images(self, folder: str | Path, names: list[str]) -> list[str]:
        """The names of the images among the files of a folder. Only files with unknown endings are opened."""
        images = [name for name in names if name.lower().endswith(IMAGE_EXTENSIONS) and name[0] != "."]
        if len(images) < len(names):
            known = set(images)
            images += [name for name in names if name not in known and self._is_image(folder, name)]
        return images

    def _is_image(self, folder: str | Path, name: str) -> bool:
        """Tells whether a file without the ending of an image is one, and counts it."""
        is_hidden, ending = name.startswith("."), os.path.splitext(name)[1].lower()
        is_opened = not is_hidden and not name.lower().endswith(_OTHER_EXTENSIONS)
        kind = kind_of_file(os.path.join(folder, name)) if is_opened else None
        if is_opened and kind is None and is_broken_link(path := os.path.join(folder, name)):
            self.broken.append(path)
            return False
        if kind and missing_decoder(kind):
            self.undecodable[kind] += 1
            return self.keep_undecodable
        if kind is None and not (is_opened and ending in PHOTO_EXTENSIONS):
            described = ("hidden " if is_hidden else "") + (ending or "without ending")
            self.others[name if is_hidden and not ending else described] += 1
            return False
        return True  # a damaged photo is an image, too: an error reports it

    def select_folders(self, names: list[str]) -> list[str]:
        """The sorted names of the folders that are not ignored."""
        self.others.update(f"{name}/" for name in names if _is_ignored(name))
        return sorted(name for name in names if not _is_ignored(name))

    def notes(self) -> list[Note]:
        """Notes about the files, which may be warnings."""
        effect = "" if self.keep_undecodable else " and are ignored"
        notes = [
            Note("warning", f"{self.root}: {count} {kind} image(s) cannot be decoded{effect}; {missing_decoder(kind)}")
            for kind, count in self.undecodable.items()
        ]
        if counts := [f"{count} {ending!r}" for ending, count in self.others.most_common(_MAX_ENDINGS)]:
            text = "file(s), hidden folders and folders of the system are no images, and are ignored"
            notes.append(Note("log", f"{self.root}: {self.others.total()} {text}: {', '.join(counts)}"))
        if links := len(self.links):
            problem = "link(s) to parent folders or to folders already read are ignored; the first is"
            notes.append(Note("log", f"{self.root}: {links} {problem} {self.links[0]!r}"))
        if self.broken:
            number, first = len(self.broken), shorten(self.broken[0])
            notes.append(Note("warning", f"{self.root}: {number} broken link(s) are ignored; the first is {first}"))
        return notes


def _is_ignored(folder: str) -> bool:
    """Tells whether a folder of this name is hidden, or of an operating system or a storage device."""
    return folder.startswith(".") or _SYSTEM_FOLDERS.fullmatch(folder) is not None


def images_in(folder: Path, found: FoundFiles, visited: set[Path]) -> list[str]:
    """The paths of the images in a folder, relative to the root, sorted by the names of their parts.

    visited: the resolved folders to which no link is followed.
    """
    images, root = list[str](), found.root.resolve()

    def note(error: OSError) -> None:
        found.findings.append(_cannot_list(error))

    for path, folders, files in os.walk(folder, onerror=note, followlinks=True):
        prefix = os.path.join(path, "").removeprefix(os.path.join(found.root, ""))
        resolved = Path(path).resolve()
        if resolved in visited or resolved in root.parents:
            found.links.append(prefix.removesuffix("/"))
            folders.clear()
            continue
        visited.add(resolved)
        if prefix.count("/") > _MAX_DEPTH:
            found.findings.append(f"{path}: is more than {_MAX_DEPTH} folders deep; move its images up")
            folders.clear()
            continue
        names = found.select_images(path, files)
        images += [prefix + name for name in names]
        if names:
            found.sizes[prefix.removesuffix("/")] += len(names)
        folders[:] = found.select_folders(folders)
    return sorted(images, key=lambda path: path.replace("/", "\0"))


def _list(folder: Path) -> tuple[list[str], list[str]]:
    """The names of the folders in a folder, and of its other entries; raises UserError if it cannot be listed."""

    def refuse(error: OSError) -> None:
        raise _cannot_list(error) from error

    _, folders, others = next(os.walk(folder, onerror=refuse))
    return folders, others


def _cannot_list(error: OSError) -> UserError:
    path = Path(error.filename)
    if path.is_file():
        fix = other_form(path.parent, [path.name]) or "give a folder"
    elif is_broken_link(path):
        return error_from(error, f"{path}: is a broken link (to {os.readlink(path)}); restore its target")
    elif path.exists():
        fix = "change its permissions, or check -data_path (DATA.DATA_PATH)"
    else:
        beside = [one.name for one in path.parent.iterdir()] if path.parent.is_dir() else []
        fix = f"check -data_path (DATA.DATA_PATH){did_you_mean(path.name, beside)}"
    return error_from(error, f"{path}: cannot be listed ({error.strerror}); {fix}")
