"""Which image files there are and what their labels are: read from a list, a table or a folder per class.

Mistakes are collected, so that one look tells all; only what leaves nothing to read raises at once.
"""

import csv
import io
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from utils.errors import UserError
from utils.files import open_regular

IMAGE_ENDINGS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")
LABEL_DIGITS = 6  # a longer label is a slip, and would make as many classes
_DEEPEST = 100  # folders within folders


@dataclass
class Listing:
    """Image files: paths relative to `root`, a label for each, and the names of the classes by label.

    `lines` tells in which line of `file` each image stands; a listing of class folders has neither. `findings` must be
    put right, `notes` are worth knowing: a line of text each.
    """

    root: Path
    paths: list[str]
    targets: list[int]
    class_names: list[str]
    file: Path | None = None
    lines: list[int] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


class Row(NamedTuple):
    line: int
    path: str
    target: str


def read_list(file: Path) -> Listing:
    """A text file of one image a line: its path relative to the file's folder, white space, its label.

    Findings, by file and line: no path or no label, a label that is no whole number, a path that leads out of the
    folder, an image listed under two labels.

    Raises:
        UserError: the file cannot be read.
    """
    rows, findings = [], []
    for number, line in enumerate(_lines(file), 1):
        fields = line.strip().rsplit(maxsplit=1)  # a path may hold spaces
        if len(fields) == 1:
            findings.append(f"{file}:{number}: {fields[0]!r} is not a path and a label; write both, a space between")
        elif fields:
            rows.append(Row(number, *fields))
    return _numbered(file, rows, findings)


def read_table(file: Path, train_file: Path) -> Listing:
    """A csv file with the columns image_path (relative to the file's folder) and target: whole numbers, or names.

    Names are sorted into labels. Those of `train_file`, which may be the same file, decide for both.

    Findings: as in `read_list`; also a name unknown to `train_file`.

    Raises:
        UserError: a file cannot be read, or lacks a column.
    """
    rows, findings = _table_rows(file)
    train_rows = rows if file == train_file else _table_rows(train_file)[0]
    if train_rows and _is_number(train_rows[0].target):
        return _numbered(file, rows, findings)
    class_names = sorted({row.target for row in train_rows})
    label_of = {name: label for label, name in enumerate(class_names)}
    known = []
    for row in rows:
        if row.target in label_of:
            known.append(row)
        else:
            findings.append(
                f"{file}:{row.line}: target {row.target!r} is not in {train_file}; correct it or add it there"
            )
    return _checked(file, known, [label_of[row.target] for row in known], class_names, findings)


def read_class_folders(root: Path, leave_out: str | None = None) -> Listing:
    """The images of each folder in `root`, at any depth; the folders' sorted names are the classes.

    Hidden files and folders are left out. A link to a folder is followed once in a class, and never back up.

    Findings: a folder that is unreadable or without images, an image that is a broken link or no file.

    Raises:
        UserError: `root` is missing, unreadable, or holds fewer than two folders.
    """
    names = class_names_in(root, leave_out)
    listing = Listing(root, [], [], names)
    links_up: list[str] = []
    for label, name in enumerate(names):
        findings = len(listing.findings)
        found = list(_images_below(listing, name, (root.resolve(),), set(), links_up))
        if not found and len(listing.findings) == findings:
            listing.findings.append(
                f"{root / name}: holds no images ({' '.join(IMAGE_ENDINGS)}); add some or remove the folder"
            )
        listing.paths += found
        listing.targets += [label] * len(found)
    if links_up:
        listing.notes.append(
            f"{root}: {len(links_up)} link(s) to folders that lead back up or were read already are left out, "
            f"the first is {links_up[0]!r}"
        )
    return listing


def class_names_in(root: Path, leave_out: str | None = None) -> list[str]:
    """The sorted names of the folders in `root`, but for one to leave out; a UserError below two."""
    names = [entry.name for entry in _entries(root) if entry.is_folder and entry.name != leave_out]
    if not names:
        raise UserError(f"{root}: holds no folders; put the images of each class into a folder of its own")
    if len(names) == 1:
        raise UserError(f"{root}: holds one folder only, {names[0]}; name the folder that holds all classes")
    return names


def _images_below(
    listing: Listing, folder: str, way: tuple[Path, ...], seen: set[Path], links_up: list[str]
) -> Iterator[str]:
    """Paths relative to the root; `way` holds the real folders passed through on the way to this one."""
    here = (listing.root / folder).resolve()
    if here in seen or any(passed.is_relative_to(here) for passed in way):
        links_up.append(folder)
        return
    seen.add(here)
    try:
        if len(way) > _DEEPEST:
            raise UserError(f"{listing.root / folder}: lies {_DEEPEST} folders deep; move its images up")
        entries = _entries(listing.root / folder)
    except UserError as error:
        listing.findings.append(str(error))
        return
    for entry in entries:
        path = f"{folder}/{entry.name}"
        if entry.is_folder:
            yield from _images_below(listing, path, (*way, here), seen, links_up)
        elif not entry.name.lower().endswith(IMAGE_ENDINGS):
            continue
        elif entry.is_file:
            yield path
        else:
            listing.findings.append(f"{listing.root / path}: is a broken link, or no file; restore or remove it")


class Entry(NamedTuple):
    name: str
    is_folder: bool
    is_file: bool


def _entries(folder: Path) -> list[Entry]:
    """All that is not hidden, sorted: no two file systems list alike."""
    try:
        with os.scandir(folder) as entries:
            return sorted(_entry(entry) for entry in entries if not entry.name.startswith("."))
    except OSError as error:
        raise UserError(f"{folder}: cannot be listed ({error.strerror}); check the path and its permissions") from error


def _entry(entry: os.DirEntry) -> Entry:
    try:
        return Entry(entry.name, entry.is_dir(), entry.is_file())
    except OSError:  # a link to itself
        return Entry(entry.name, False, False)


def missing_files(root: Path, paths: Iterable[str]) -> list[int]:
    """The places in `paths` of those that are no files below `root`: a look into each folder, not at each file."""
    files_in: dict[str, set[str] | None] = {}
    missing = []
    for place, path in enumerate(paths):
        folder, _, name = path.rpartition("/")
        if folder not in files_in:
            files_in[folder] = _file_names(root / folder)
        files = files_in[folder]
        if files and name in files:
            continue
        # A folder that cannot be listed may still be read, and a disk may take a name in another case.
        if files == set() or not os.path.isfile(root / path):
            missing.append(place)
    return missing


def _file_names(folder: Path) -> set[str] | None:
    """None where the folder cannot be listed."""
    try:
        with os.scandir(folder) as entries:
            return {entry.name for entry in entries if entry.is_file()}
    except (FileNotFoundError, NotADirectoryError):
        return set()
    except OSError:
        return None


def _lines(file: Path) -> Iterator[str]:
    try:
        with io.TextIOWrapper(
            open_regular(file), encoding="utf-8-sig", errors="surrogateescape", newline=None
        ) as lines:
            yield from lines
    except OSError as error:
        raise UserError(f"{file}: cannot be read ({error.strerror}); check DATA.DATA_PATH and DATA.DATASET") from error


def _table_rows(file: Path) -> tuple[list[Row], list[str]]:
    """The rows, and what is wrong with others."""
    table = csv.DictReader(_lines(file), strict=True)
    rows, findings = [], []
    try:
        columns = list(table.fieldnames or ())
        if columns.count("image_path") != 1 or columns.count("target") != 1:
            raise UserError(f"{file}:1: the header lacks image_path or target; let it read image_path,target")
        for record in table:
            if None in record or None in record.values():
                findings.append(
                    f"{file}:{table.line_num}: has not as many fields as the header; quote a path that holds a comma"
                )
                continue
            row = Row(table.line_num, record["image_path"].strip(), record["target"].strip())
            if row.path and row.target:
                rows.append(row)
            else:
                findings.append(f"{file}:{row.line}: image_path or target is empty; fill it in or remove the line")
    except csv.Error as error:  # nothing behind it can be told apart
        findings.append(f"{file}:{table.reader.line_num}: is no csv ({error}); correct the line")
    return rows, findings


def _is_number(target: str) -> bool:
    try:
        float(target)
    except ValueError:
        return False
    return True


def _numbered(file: Path, rows: list[Row], findings: list[str]) -> Listing:
    """With targets that are labels already."""
    labelled = []
    for row in rows:
        if row.target.isdecimal() and len(row.target) <= LABEL_DIGITS:
            labelled.append(row)
        else:
            findings.append(f"{file}:{row.line}: label {row.target!r} is no class number; number the classes from 0")
    targets = [int(row.target) for row in labelled]
    return _checked(file, labelled, targets, [str(label) for label in range(max(targets, default=0) + 1)], findings)


def _checked(file: Path, rows: list[Row], targets: list[int], class_names: list[str], findings: list[str]) -> Listing:
    listing = Listing(file.parent, [], [], class_names, file, findings=findings)
    if not rows and not findings:
        findings.append(f"{file}: lists no images; write a line for each")
    places: dict[str, int] = {}
    repeated = []
    for row, target in zip(rows, targets, strict=True):
        path = row.path
        if path.startswith("/") or "\0" in path or ".." in path.split("/"):
            findings.append(f"{file}:{row.line}: path {path!r} leads out of {file.parent}; write it relative to it")
            continue
        if "./" in path or "//" in path:
            path = os.path.normpath(path)
        first = places.setdefault(path, len(listing.paths))
        if first < len(listing.paths):
            repeated.append(row.line)
            if listing.targets[first] != target:
                findings.append(
                    f"{file}:{row.line}: {path!r} has label {target}, but in line {listing.lines[first]} label "
                    f"{listing.targets[first]}; remove the wrong one"
                )
        listing.paths.append(path)
        listing.targets.append(target)
        listing.lines.append(row.line)
    if repeated:
        listing.notes.append(f"{file}: {len(repeated)} image(s) are listed again, the first in line {repeated[0]}")
    return listing
