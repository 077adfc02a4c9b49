"""Lists and tables of images: PaddleViT's text lists and CSV files.

Mistakes are collected as findings, so that one report names all of them; an error is raised if nothing can be read.
"""

import csv
import io
import os
import re
from array import array
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from configs.schema import Data
from configs.yaml_io import shorten
from datasets.sources.image_files import ImageFiles
from datasets.sources.listing import Listing, listing_arrays
from datasets.sources.split import split_listing
from datasets.sources.strings import StringPacker
from utils.errors import UserError
from utils.files import open_regular_file

LABEL_DIGITS = 6  # a longer label is a typing error, and would create as many classes
_SEVERAL_LABELS = "has several labels; write one label per image: training with several is not available"


def imagenet2012(data: Data, split: str) -> ImageFiles:
    """PaddleViT's lists `train_list.txt` and `val_list.txt` in DATA_PATH; see `read_list`."""
    return ImageFiles(read_list(Path(data.data_path) / f"{split}_list.txt"))


def has_lists(root: Path) -> bool:
    return any((root / f"{split}_list.txt").exists() for split in ("train", "val"))


def csv_tables(data: Data, split: str) -> ImageFiles:
    """DATA_PATH/train.csv and DATA_PATH/val.csv, see `read_table`; a single file is split.

    The split 'all' is a single file, or val.csv.
    """
    path = Path(data.data_path)
    train_file = path if path.is_file() else path / "train.csv"
    val_file = path / "val.csv"
    if split == "all" and path.is_file():
        return ImageFiles(read_table(path, path))
    if split == "all" and val_file.is_file():
        return ImageFiles(read_table(val_file, train_file if train_file.is_file() else val_file))
    if not val_file.is_file():
        return ImageFiles(split_listing(read_table(train_file, train_file), data, split))
    return ImageFiles(read_table(val_file if split == "val" else train_file, train_file))


def read_list(file: Path) -> Listing:
    """Reads a text file with one image per line: its path relative to the file's folder, white space, its label.

    Findings, by file and line: a missing path or label, a label that is not a whole number, a path outside the folder,
    an image with two labels.

    Raises:
        UserError: the file cannot be read.
    """
    rows = _Rows(file)
    for number, line in enumerate(_lines(file), 1):
        fields = line.strip().rsplit(maxsplit=1)  # a path may contain spaces
        if len(fields) == 1:
            rows.add_finding(
                number, f"{shorten(fields[0])} is not a path and a label; write both, separated by a space"
            )
        elif fields:
            rows.add(number, *fields)
    return _with_numeric_labels(rows)


def read_table(file: Path, train_file: Path) -> Listing:
    """Reads a CSV file with the columns image_path (relative to the file's folder) and target: whole numbers or names.

    Target names are sorted, and their positions are the labels. The names in `train_file` count for both splits; it may
    be the same file as `file`.

    Findings: those of `read_list`, a target of several labels, and a name that `train_file` does not contain.

    Raises:
        UserError: a file cannot be read or lacks a column.
    """
    rows = _table_rows(file)
    train_rows = rows if file == train_file else _table_rows(train_file)
    if train_rows.target_ids and _is_number(next(iter(train_rows.target_ids))):
        return _with_numeric_labels(rows)
    class_names = sorted(train_rows.target_ids)
    label_of = {name: label for label, name in enumerate(class_names)}
    return _to_listing(rows, label_of, class_names, "target", f"is not in {train_file}; correct it or add it there")


def _lines(file: Path) -> Iterator[str]:
    try:
        with io.TextIOWrapper(
            open_regular_file(file), encoding="utf-8-sig", errors="surrogateescape", newline=None
        ) as lines:
            yield from lines
    except OSError as error:
        raise UserError(f"{file}: cannot be read ({error.strerror}); check DATA.DATA_PATH and DATA.DATASET") from error


class _Rows:
    """The rows of a list or table. Equal target texts are stored once, in the order in which they first occur."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.paths, self.row_target_ids, self.lines = StringPacker(), array("i"), array("i")
        self.target_ids: dict[str, int] = {}
        self.findings: list[str] = []

    def add(self, line: int, path: str, target: str) -> None:
        target_id = self.target_ids.setdefault(target, len(self.target_ids))
        if path.startswith("/") or "\0" in path or ".." in path.split("/"):
            self.add_finding(
                line, f"path {shorten(path)} is not inside {self.file.parent}; write a path relative to it"
            )
            return
        if "./" in path or "//" in path:
            path = os.path.normpath(path)
        self.paths.add(path)
        self.row_target_ids.append(target_id)
        self.lines.append(line)

    def add_finding(self, line: int, problem: str) -> None:
        self.findings.append(f"{self.file}:{line}: {problem}")


def _table_rows(file: Path) -> _Rows:
    rows = _Rows(file)
    table = csv.DictReader(_lines(file), strict=True)
    try:
        columns = list(table.fieldnames or ())
        if columns.count("image_path") != 1 or columns.count("target") != 1:
            raise UserError(f"{file}:1: the header lacks image_path or target; write image_path,target")
        for record in table:
            if None in record or None in record.values():
                problem = "the number of fields differs from the header's; quote a path that contains a comma"
                rows.add_finding(table.line_num, problem)
                continue
            path, target = record["image_path"].strip(), record["target"].strip()
            if path and target:
                rows.add(table.line_num, path, target)
            else:
                rows.add_finding(table.line_num, "image_path or target is empty; fill it in or remove the line")
    except csv.Error as error:  # the lines after it cannot be parsed reliably
        rows.add_finding(table.reader.line_num, f"is not valid CSV ({error}); correct the line")
    return rows


def _is_number(target: str) -> bool:
    try:
        float(target)
    except ValueError:
        return False
    return True


def _with_numeric_labels(rows: _Rows) -> Listing:
    """The listing of rows whose targets are the labels."""
    label_of = {text: int(text) for text in rows.target_ids if text.isdecimal() and len(text) <= LABEL_DIGITS}
    class_names = [str(label) for label in range(max(label_of.values(), default=0) + 1)]
    listing = _to_listing(rows, label_of, class_names, "label", "is not a class number; number the classes from 0")
    return replace(listing, has_class_names=False)


def _to_listing(rows: _Rows, label_of: dict[str, int], class_names: list[str], noun: str, problem: str) -> Listing:
    if not rows.target_ids and not rows.findings:
        rows.findings.append(f"{rows.file}: lists no images; add one line per image")
    texts = list(rows.target_ids)
    several = {text for text in texts if _has_several_labels(text, rows.target_ids)}
    labels = np.array([-1 if text in several else label_of.get(text, -1) for text in texts], dtype=np.int64)
    target_ids, lines = np.frombuffer(rows.row_target_ids, np.int32), np.frombuffer(rows.lines, np.int32)
    targets = labels[target_ids]
    for index in np.flatnonzero(targets < 0):
        text = texts[target_ids[index]]
        reason = _SEVERAL_LABELS if text in several else problem
        rows.add_finding(lines[index], f"{noun} {shorten(text)} {reason}")
    arrays = listing_arrays(rows.paths, targets, lines)
    listing = Listing(rows.file.parent, class_names, arrays, rows.file, rows.findings)
    _report_repeated_images(listing)
    return listing


def _has_several_labels(target: str, targets: Collection[str]) -> bool:
    """True for numbers, as in '0 3' and '[0, 3]', and for names of which each is itself a target, as in 'cat|dog'."""
    numbers = re.split(r"[\s,;|]+", target.strip("[]() "))
    if len(numbers) > 1 and all(map(str.isdecimal, numbers)):
        return True
    names = [name.strip() for name in re.split(r"[,;|]", target)]
    return len(names) > 1 and all(name in targets for name in names)


def _report_repeated_images(listing: Listing) -> None:
    """Adds a finding for each image with two labels, and a note about images that are repeated with one label."""
    paths, (crcs, targets, lines) = listing.paths, map(listing.arrays.get, ("paths_crcs", "targets", "lines"))
    in_order = np.sort(crcs)
    recurring = in_order[1:][in_order[1:] == in_order[:-1]]
    first_index: dict[str, int] = {}
    repeated_lines = []
    for index in np.flatnonzero(np.isin(crcs, recurring) & (targets >= 0)):
        first = first_index.setdefault(paths[index], index)
        if first == index:
            continue
        repeated_lines.append(lines[index])
        if targets[first] != targets[index]:
            listing.findings.append(
                f"{listing.file}:{lines[index]}: {shorten(paths[index])} has label {targets[index]}, but label "
                f"{targets[first]} in line {lines[first]}; remove the wrong line"
            )
    if repeated_lines:
        listing.notes.append(
            f"{listing.file}: {len(repeated_lines)} image(s) are listed more than once; the first repetition is in "
            f"line {repeated_lines[0]}"
        )
