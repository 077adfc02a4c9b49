"""The rows of lists and tables of images, before their targets become labels.

`findings` collects the mistakes, so that one error names all of them. An error is raised at once if nothing can be
read.
"""

import csv
import io
import os
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from configs.reading.yaml_io import shorten
from datasets.sources.arrays.strings import StringPacker
from datasets.sources.files.listing import Listing, listing_arrays
from utils.errors import UserError
from utils.files import open_regular_file

LABEL_DIGITS = 6  # a longer label is a typing error, and would create as many classes


def read_lines(file: Path, fix: str = "check DATA.DATA_PATH and DATA.DATASET") -> Iterator[str]:
    try:
        with io.TextIOWrapper(
            open_regular_file(file), encoding="utf-8-sig", errors="surrogateescape", newline=None
        ) as lines:
            yield from lines
    except OSError as error:
        raise UserError(f"{file}: cannot be read ({error.strerror}); {fix}") from error


class Rows:
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


def table_columns(file: Path) -> list[str]:
    """The names in the header of a CSV file; none if it is no CSV file."""
    try:
        return list(csv.DictReader(read_lines(file), strict=True).fieldnames or ())
    except csv.Error:
        return []


def table_rows(file: Path) -> Rows:
    """The rows of a CSV file with the columns image_path and target, which may be empty."""
    rows = Rows(file)
    table = csv.DictReader(read_lines(file), strict=True)
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
            if path:
                rows.add(table.line_num, path, target)
            else:
                rows.add_finding(table.line_num, "image_path is empty; fill it in or remove the line")
    except csv.Error as error:  # the lines after it cannot be parsed reliably
        rows.add_finding(table.reader.line_num, f"is not valid CSV ({error}); correct the line")
    return rows


def is_number(target: str) -> bool:
    try:
        float(target)
    except ValueError:
        return False
    return True


def is_class_number(target: str) -> bool:
    return target.isdecimal() and len(target) <= LABEL_DIGITS


def make_listing(
    rows: Rows, class_names: list[str], targets: np.ndarray, labels: np.ndarray, conflict: Callable[[int, int], str]
) -> Listing:
    """The listing of rows with these targets (N, ...).

    Args:
        labels: int (N,), equal for rows with equal targets, -1 for an invalid target.
        conflict: describes the problem of two rows with one image and different targets.
    """
    lines = np.frombuffer(rows.lines, np.int32)
    listing = Listing(
        rows.file.parent, class_names, listing_arrays(rows.paths, targets, lines), rows.file, rows.findings
    )
    _report_repeated_images(listing, labels, conflict)
    return listing


def _report_repeated_images(listing: Listing, labels: np.ndarray, conflict: Callable[[int, int], str]) -> None:
    """Adds an error for each image with two targets, and a note about images that are repeated with one target."""
    paths, crcs, lines = listing.paths, listing.arrays["paths_crcs"], listing.arrays["lines"]
    in_order = np.sort(crcs)
    recurring = in_order[1:][in_order[1:] == in_order[:-1]]
    first_index: dict[str, int] = {}
    repeated_lines = []
    for index in np.flatnonzero(np.isin(crcs, recurring) & (labels >= 0)).tolist():
        first = first_index.setdefault(paths[index], index)
        if first == index:
            continue
        repeated_lines.append(lines[index])
        if labels[first] != labels[index]:
            problem = conflict(first, index)
            listing.findings.append(f"{listing.file}:{lines[index]}: {shorten(paths[index])} {problem}")
    if repeated_lines:
        listing.notes.append(
            f"{listing.file}: {len(repeated_lines)} image(s) are listed more than once; the first repetition is in "
            f"line {repeated_lines[0]}"
        )
