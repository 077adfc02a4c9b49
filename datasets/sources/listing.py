"""Which image files there are and what their labels are: read from a list, a table or a folder per class.

Mistakes are collected, so that one look tells all; only what leaves nothing to read raises at once.
"""

import csv
import io
import os
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from configs.yaml_io import shorten
from datasets.sources.arrays import SharedArrays, TextPacker, Texts, shared_arrays, texts_in
from datasets.sources.stamps import Stamps
from utils.errors import UserError
from utils.files import open_regular_file

IMAGE_ENDINGS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")
LABEL_DIGITS = 6  # a longer label is a slip, and would make as many classes
_MOST_LINKS = 40  # in a chain: as many as Linux follows
_DEEPEST = 100  # folders within folders


@dataclass
class Listing:
    """Image files: paths relative to `root`, a label for each (-1 where it is wrong), and the classes' names by label.

    A listing read from `file` has the lines in which the images stand; one of class folders has neither. `findings`
    must be put right, `notes` are worth knowing: a line of text each.

    `stamps` are of all that was read for it, `kept_as` is the index in which it can be kept: a file, and what for. One
    that comes from there `is_checked`: no image was missing.
    """

    root: Path
    class_names: list[str]
    arrays: SharedArrays  # N images: paths as of a TextPacker, targets int64 (N,), lines int32 (N,) or (0,)
    file: Path | None = None
    findings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    stamps: Stamps = field(default_factory=Stamps)
    kept_as: tuple[Path, str] | None = None
    is_checked: bool = False

    @property
    def paths(self) -> Texts:
        return texts_in(self.arrays, "paths")

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"stamps": Stamps()}  # for workers, which do not look at them

    def where(self, place: int) -> str:
        """The place at which a user finds an image: a line of a list, a file."""
        return f"{self.file}:{self.arrays['lines'][place]}" if self.file else str(self.root / self.paths[place])


def read_list(file: Path) -> Listing:
    """A text file of one image a line: its path relative to the file's folder, white space, its label.

    Findings, by file and line: no path or no label, a label that is no whole number, a path that leads out of the
    folder, an image listed under two labels.

    Raises:
        UserError: the file cannot be read.
    """
    rows = _Rows(file)
    for number, line in enumerate(_lines(file), 1):
        fields = line.strip().rsplit(maxsplit=1)  # a path may hold spaces
        if len(fields) == 1:
            rows.complain(number, f"{shorten(fields[0])} is not a path and a label; write both, a space between")
        elif fields:
            rows.add(number, *fields)
    return _numbered(rows)


def read_table(file: Path, train_file: Path) -> Listing:
    """A csv file with the columns image_path (relative to the file's folder) and target: whole numbers, or names.

    Names are sorted into labels. Those of `train_file`, which may be the same file, decide for both.

    Findings: as in `read_list`; also a name unknown to `train_file`.

    Raises:
        UserError: a file cannot be read, or lacks a column.
    """
    rows = _table_rows(file)
    rows.stamps.take(train_file)
    train_rows = rows if file == train_file else _table_rows(train_file)
    if train_rows.numbers and _is_number(next(iter(train_rows.numbers))):
        return _numbered(rows)
    class_names = sorted(train_rows.numbers)
    label_of = {name: label for label, name in enumerate(class_names)}
    return _labelled(rows, label_of, class_names, "target", f"is not in {train_file}; correct it or add it there")


def read_class_folders(root: Path, leave_out: str | None = None) -> Listing:
    """The images of each folder in `root`, at any depth; the folders' sorted names are the classes.

    Hidden files and folders are left out. A link to a folder is followed once in a class, and never back up.

    Findings: a folder that is unreadable or without images, an image that is a broken link or no file.

    Raises:
        UserError: `root` is missing, unreadable, or holds fewer than two folders.
    """
    walk = _Walk(root)
    walk.stamps.take(root)
    names = class_names_in(root, leave_out)
    paths, targets, notes = TextPacker(), array("q"), []
    for label, name in enumerate(names):
        findings, images = len(walk.findings), len(paths)
        for path in _images_below(walk, name, (root.resolve(),), set()):
            paths.add(path)
            targets.append(label)
        if len(paths) == images and len(walk.findings) == findings:
            walk.findings.append(
                f"{root / name}: holds no images ({' '.join(IMAGE_ENDINGS)}); add some or remove the folder"
            )
    if walk.links_up:
        notes.append(
            f"{root}: {len(walk.links_up)} link(s) to folders that lead back up or were read already are left out, "
            f"the first is {walk.links_up[0]!r}"
        )
    arrays = _shared(paths, np.frombuffer(targets, np.int64), np.empty(0, np.int32))
    return Listing(root, names, arrays, None, walk.findings, notes, walk.stamps)


def _shared(paths: TextPacker, targets: np.ndarray, lines: np.ndarray) -> SharedArrays:
    columns = {"paths_crcs": paths.crcs(), "targets": targets, "lines": lines}
    return shared_arrays({}, paths.arrays("paths") | columns)


def class_names_in(root: Path, leave_out: str | None = None) -> list[str]:
    """The sorted names of the folders in `root`, but for one to leave out; a UserError below two."""
    names = [entry.name for entry in _entries(root) if entry.is_folder and entry.name != leave_out]
    if not names:
        raise UserError(f"{root}: holds no folders; put the images of each class into a folder of its own")
    if len(names) == 1:
        raise UserError(f"{root}: holds one folder only, {names[0]}; name the folder that holds all classes")
    return names


@dataclass
class _Walk:
    """Through class folders: what was met on the way."""

    root: Path
    findings: list[str] = field(default_factory=list)
    links_up: list[str] = field(default_factory=list)
    stamps: Stamps = field(default_factory=Stamps)


def _images_below(walk: _Walk, folder: str, way: tuple[Path, ...], seen: set[Path]) -> Iterator[str]:
    """Paths relative to the root; `way` holds the real folders passed through on the way to this one."""
    walk.stamps.take(walk.root / folder)
    here = (walk.root / folder).resolve()
    if here in seen or any(passed.is_relative_to(here) for passed in way):
        walk.links_up.append(folder)
        return
    seen.add(here)
    try:
        if len(way) > _DEEPEST:
            raise UserError(f"{walk.root / folder}: lies {_DEEPEST} folders deep; move its images up")
        entries = _entries(walk.root / folder)
    except UserError as error:
        walk.findings.append(str(error))
        return
    for entry in entries:
        path = f"{folder}/{entry.name}"
        if entry.is_link and not entry.is_folder:
            _take_behind_link(walk.stamps, str(walk.root / path))
        if entry.is_folder:
            yield from _images_below(walk, path, (*way, here), seen)
        elif not entry.name.lower().endswith(IMAGE_ENDINGS):
            continue
        elif entry.is_file:
            yield path
        else:
            walk.findings.append(f"{walk.root / path}: is a broken link, or no file; restore or remove it")


def _take_behind_link(stamps: Stamps, path: str) -> None:
    """The folder of the file that a link leads to: were it removed there, the link's own folder would not change.

    And those of the links on the way.
    """
    for _ in range(_MOST_LINKS):
        try:
            path = os.path.join(os.path.dirname(path), os.readlink(path))
        except OSError:  # no link, or nothing
            return
        stamps.take(os.path.dirname(path))


class Entry(NamedTuple):
    name: str
    is_folder: bool
    is_file: bool
    is_link: bool


def _entries(folder: Path) -> list[Entry]:
    """All that is not hidden, sorted: no two file systems list alike."""
    try:
        with os.scandir(folder) as entries:
            return sorted(_entry(entry) for entry in entries if not entry.name.startswith("."))
    except OSError as error:
        raise UserError(f"{folder}: cannot be listed ({error.strerror}); check the path and its permissions") from error


def _entry(entry: os.DirEntry) -> Entry:
    try:
        return Entry(entry.name, entry.is_dir(), entry.is_file(), entry.is_symlink())
    except OSError:  # a link to itself
        return Entry(entry.name, False, False, True)


def missing_files(listing: Listing) -> list[int]:
    """The places of those that are no files: a look into each folder, not at each file."""
    folders: dict[str, int] = {}
    numbers = (folders.setdefault(path.rpartition("/")[0], len(folders)) for path in listing.paths)
    folder_of = np.fromiter(numbers, np.int64, len(listing.paths))
    by_folder = np.argsort(folder_of, kind="stable")
    groups = np.split(by_folder, np.flatnonzero(np.diff(folder_of[by_folder])) + 1)
    missing = []
    for folder, places in zip(folders, groups, strict=False):  # of no images there is one empty group
        missing += _missing_in(listing, folder, places.tolist())
    return sorted(missing)


def _missing_in(listing: Listing, folder: str, places: list[int]) -> list[int]:
    files, paths = _file_names(listing.root / folder, listing.stamps), listing.paths
    missing = []
    for place in places:
        path = paths[place]
        if files and path.rpartition("/")[2] in files:
            continue
        # A folder that cannot be listed may still be read, and a disk may take a name in another case.
        if files == set() or not os.path.isfile(listing.root / path):
            missing.append(place)
    return missing


def _file_names(folder: Path, stamps: Stamps) -> set[str] | None:
    """None where the folder cannot be listed."""
    stamps.take(folder)
    names = set()
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_file():
                    names.add(entry.name)
                    if entry.is_symlink():
                        _take_behind_link(stamps, entry.path)
    except (FileNotFoundError, NotADirectoryError):
        return set()
    except OSError:
        return None
    return names


def _lines(file: Path) -> Iterator[str]:
    try:
        with io.TextIOWrapper(
            open_regular_file(file), encoding="utf-8-sig", errors="surrogateescape", newline=None
        ) as lines:
            yield from lines
    except OSError as error:
        raise UserError(f"{file}: cannot be read ({error.strerror}); check DATA.DATA_PATH and DATA.DATASET") from error


class _Rows:
    """What the lines of a list or table say. Targets are numbered as they come, for they recur."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.stamps = Stamps()
        self.stamps.take(file)
        self.paths, self.targets, self.lines = TextPacker(), array("i"), array("i")
        self.numbers: dict[str, int] = {}
        self.findings: list[str] = []

    def add(self, line: int, path: str, target: str) -> None:
        number = self.numbers.setdefault(target, len(self.numbers))
        if path.startswith("/") or "\0" in path or ".." in path.split("/"):
            self.complain(line, f"path {shorten(path)} leads out of {self.file.parent}; write it relative to it")
            return
        if "./" in path or "//" in path:
            path = os.path.normpath(path)
        self.paths.add(path)
        self.targets.append(number)
        self.lines.append(line)

    def complain(self, line: int, what: str) -> None:
        self.findings.append(f"{self.file}:{line}: {what}")


def _table_rows(file: Path) -> _Rows:
    rows = _Rows(file)
    table = csv.DictReader(_lines(file), strict=True)
    try:
        columns = list(table.fieldnames or ())
        if columns.count("image_path") != 1 or columns.count("target") != 1:
            raise UserError(f"{file}:1: the header lacks image_path or target; let it read image_path,target")
        for record in table:
            if None in record or None in record.values():
                rows.complain(table.line_num, "has not as many fields as the header; quote a path that holds a comma")
                continue
            path, target = record["image_path"].strip(), record["target"].strip()
            if path and target:
                rows.add(table.line_num, path, target)
            else:
                rows.complain(table.line_num, "image_path or target is empty; fill it in or remove the line")
    except csv.Error as error:  # nothing behind it can be told apart
        rows.complain(table.reader.line_num, f"is no csv ({error}); correct the line")
    return rows


def _is_number(target: str) -> bool:
    try:
        float(target)
    except ValueError:
        return False
    return True


def _numbered(rows: _Rows) -> Listing:
    """With targets that are labels already."""
    label_of = {text: int(text) for text in rows.numbers if text.isdecimal() and len(text) <= LABEL_DIGITS}
    class_names = [str(label) for label in range(max(label_of.values(), default=0) + 1)]
    return _labelled(rows, label_of, class_names, "label", "is no class number; number the classes from 0")


def _labelled(rows: _Rows, label_of: dict[str, int], class_names: list[str], noun: str, complaint: str) -> Listing:
    if not rows.numbers and not rows.findings:
        rows.findings.append(f"{rows.file}: lists no images; write a line for each")
    texts = list(rows.numbers)
    labels = np.array([label_of.get(text, -1) for text in texts], dtype=np.int64)
    numbers, lines = np.frombuffer(rows.targets, np.int32), np.frombuffer(rows.lines, np.int32)
    targets = labels[numbers]
    for place in np.flatnonzero(targets < 0):
        rows.complain(lines[place], f"{noun} {shorten(texts[numbers[place]])} {complaint}")
    listing = Listing(
        rows.file.parent,
        class_names,
        _shared(rows.paths, targets, lines),
        rows.file,
        rows.findings,
        stamps=rows.stamps,
    )
    _look_for_repeated(listing)
    return listing


def _look_for_repeated(listing: Listing) -> None:
    """Images of the same path: those of two labels are findings, the others a note."""
    paths, targets, lines = listing.paths, listing.arrays["targets"], listing.arrays["lines"]
    crcs = listing.arrays["paths_crcs"]
    in_order = np.sort(crcs)
    recurring = in_order[1:][in_order[1:] == in_order[:-1]]
    first_place: dict[str, int] = {}
    repeated = []
    for place in np.flatnonzero(np.isin(crcs, recurring) & (targets >= 0)):
        first = first_place.setdefault(paths[place], place)
        if first == place:
            continue
        repeated.append(lines[place])
        if targets[first] != targets[place]:
            listing.findings.append(
                f"{listing.file}:{lines[place]}: {shorten(paths[place])} has label {targets[place]}, but in line "
                f"{lines[first]} label {targets[first]}; remove the wrong one"
            )
    if repeated:
        listing.notes.append(
            f"{listing.file}: {len(repeated)} image(s) are listed again, the first in line {repeated[0]}"
        )
