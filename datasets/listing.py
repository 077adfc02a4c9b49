"""Which image files there are and what their labels are: read from a list, a table or a folder per class."""

import csv
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from utils.errors import UserError

IMAGE_ENDINGS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")
LABEL_DIGITS = 6  # a longer label is a slip, and would make as many classes


class Listing(NamedTuple):
    """Image files: paths relative to `root`, a label for each, and the names of the classes by label."""

    root: Path
    paths: list[str]
    targets: list[int]
    class_names: list[str]


class Row(NamedTuple):
    line: int
    path: str
    target: str


def read_list(file: Path) -> Listing:
    """A text file of one image a line: its path relative to the file's folder, white space, its label.

    Raises:
        UserError: naming file and line, where the file or the first image is missing, a line has no path or no label,
            a label is no whole number, a path leads out of the folder, or no image is listed.
    """
    rows = []
    for number, line in enumerate(_lines(file), 1):
        fields = line.strip().rsplit(maxsplit=1)  # a path may hold spaces
        if len(fields) == 1:
            raise UserError(f"{file}:{number}: {fields[0]!r} is not a path and a label; write both, a space between")
        if fields:
            rows.append(Row(number, *fields))
    return _numbered(file, rows)


def read_table(file: Path, train_file: Path) -> Listing:
    """A csv file with the columns image_path (relative to the file's folder) and target: whole numbers, or names.

    Names are sorted into labels. Those of `train_file`, which may be the same file, decide for both.

    Raises:
        UserError: as in `read_list`; also for a missing column and a name unknown to `train_file`.
    """
    rows = _table_rows(file)
    train_rows = rows if file == train_file else _table_rows(train_file)
    if train_rows and _is_number(train_rows[0].target):
        return _numbered(file, rows)
    class_names = sorted({row.target for row in train_rows})
    label_of = {name: label for label, name in enumerate(class_names)}
    for row in rows:
        if row.target not in label_of:
            raise UserError(
                f"{file}:{row.line}: target {row.target!r} is not in {train_file}; correct it or add it there"
            )
    return _checked(file, rows, [label_of[row.target] for row in rows], class_names)


def read_class_folders(root: Path, leave_out: str | None = None) -> Listing:
    """The images of each folder in `root`, at any depth; the folders' sorted names are the classes.

    Hidden files and folders are left out. A link to a folder is followed unless it leads back up.

    Raises:
        UserError: naming the folder that is missing, unreadable, or without images.
    """
    names = class_names_in(root, leave_out)
    paths, targets = [], []
    for label, name in enumerate(names):
        found = _images_below(root, name, (root.resolve(),))
        if not found:
            raise UserError(
                f"{root / name}: holds no images ({' '.join(IMAGE_ENDINGS)}); add some or remove the folder"
            )
        paths += found
        targets += [label] * len(found)
    return Listing(root, paths, targets, names)


def class_names_in(root: Path, leave_out: str | None = None) -> list[str]:
    """The sorted names of the folders in `root`, but for one to leave out; a UserError below two."""
    names = [name for name, is_folder in _entries(root) if is_folder and name != leave_out]
    if not names:
        raise UserError(f"{root}: holds no folders; put the images of each class into a folder of its own")
    if len(names) == 1:
        raise UserError(f"{root}: holds one folder only, {names[0]}; name the folder that holds all classes")
    return names


def _images_below(root: Path, folder: str, way: tuple[Path, ...]) -> list[str]:
    """Paths relative to `root`; `way` holds the real folders passed through on the way to this one."""
    here = (root / folder).resolve()
    if any(passed.is_relative_to(here) for passed in way):
        return []
    paths = []
    for name, is_folder in _entries(root / folder):
        if is_folder:
            paths += _images_below(root, f"{folder}/{name}", (*way, here))
        elif name.lower().endswith(IMAGE_ENDINGS):
            paths.append(f"{folder}/{name}")
    return paths


def _entries(folder: Path) -> list[tuple[str, bool]]:
    """Name, and whether it is a folder, of all that is not hidden, sorted: no two file systems list alike."""
    try:
        with os.scandir(folder) as entries:
            return sorted((entry.name, entry.is_dir()) for entry in entries if not entry.name.startswith("."))
    except OSError as error:
        raise UserError(f"{folder}: cannot be listed ({error.strerror}); check the path and its permissions") from error


def _lines(file: Path) -> Iterator[str]:
    try:
        with open(file, encoding="utf-8-sig", errors="surrogateescape") as lines:
            yield from lines
    except OSError as error:
        raise UserError(f"{file}: cannot be read ({error.strerror}); check DATA.DATA_PATH and DATA.DATASET") from error


def _table_rows(file: Path) -> list[Row]:
    table = csv.DictReader(_lines(file), strict=True)
    rows = []
    try:
        if not {"image_path", "target"} <= set(table.fieldnames or ()):
            raise UserError(f"{file}:1: the header lacks image_path or target; let it read image_path,target")
        for record in table:
            if None in record or None in record.values():
                raise UserError(
                    f"{file}:{table.line_num}: has not as many fields as the header; quote a path that holds a comma"
                )
            row = Row(table.line_num, record["image_path"].strip(), record["target"].strip())
            if not (row.path and row.target):
                raise UserError(f"{file}:{row.line}: image_path or target is empty; fill it in or remove the line")
            rows.append(row)
    except csv.Error as error:
        raise UserError(f"{file}:{table.reader.line_num}: is no csv ({error}); correct the line") from error
    return rows


def _is_number(target: str) -> bool:
    try:
        float(target)
    except ValueError:
        return False
    return True


def _numbered(file: Path, rows: list[Row]) -> Listing:
    """With targets that are labels already."""
    for row in rows:
        if not (row.target.isdecimal() and len(row.target) <= LABEL_DIGITS):
            raise UserError(f"{file}:{row.line}: label {row.target!r} is no class number; number the classes from 0")
    targets = [int(row.target) for row in rows]
    return _checked(file, rows, targets, [str(label) for label in range(max(targets, default=0) + 1)])


def _checked(file: Path, rows: list[Row], targets: list[int], class_names: list[str]) -> Listing:
    """That the first image exists says that the paths are meant as they are read; a look at all could take hours."""
    if not rows:
        raise UserError(f"{file}: lists no images; write a line for each")
    for row in rows:
        if row.path.startswith("/") or ".." in row.path.split("/"):
            raise UserError(f"{file}:{row.line}: path {row.path!r} leads out of {file.parent}; write it relative to it")
    if not (file.parent / rows[0].path).is_file():
        raise UserError(
            f"{file}:{rows[0].line}: {rows[0].path!r} is no file in {file.parent}; write paths relative to it"
        )
    return Listing(file.parent, [row.path for row in rows], targets, class_names)
