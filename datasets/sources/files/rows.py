"""The rows of lists and tables of images, before their targets become labels.

`findings` collects the mistakes, so that one error names all of them. An error is raised at once if nothing can be
read.
"""

import contextlib
import csv
import io
import os
from array import array
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from configs.reading.yaml_io import shorten
from datasets.decoding.images import IMAGE_EXTENSIONS, PHOTO_EXTENSIONS
from datasets.sources.shared_arrays import StringPacker, to_nfc
from utils.errors import Finding, UserError, error_from
from utils.files import open_regular_file

Columns = Mapping[Any, str]  # path, label: of DATA.COLUMNS; group: DATA.GROUPS
COLUMNS: Columns = {"path": "image_path", "label": "target"}
LABEL_DIGITS = 6  # a longer label is a typing error, and would create as many classes
_ENDINGS = (*IMAGE_EXTENSIONS, *PHOTO_EXTENSIONS)
_CHUNK = 1 << 20
_DEFAULT_DIALECT = "separator ',', encoding utf-8"
_SEPARATORS = ",;\t"  # spreadsheets write semicolons where the comma is the decimal sign


def read_lines(file: Path, encoding: str = "utf-8-sig") -> Iterator[str]:
    """The lines of a file; bytes that are not in its encoding become surrogates, as in the names of files."""
    with _open_text(file, encoding, "surrogateescape") as lines:
        yield from lines


@contextlib.contextmanager
def _open_text(file: Path, encoding: str, errors: str) -> Iterator[io.TextIOWrapper]:
    try:
        with io.TextIOWrapper(open_regular_file(file), encoding=encoding, errors=errors, newline=None) as text:
            yield text
    except OSError as error:
        raise error_from(
            error, f"{file}: cannot be read ({error.strerror}); check the path, DATA.DATA_PATH and DATA.DATASET"
        ) from error


def _find_encoding(file: Path) -> str:
    """The first encoding in which the file is text; UTF-16 needs a byte order mark, and Windows writes cp1252."""
    for encoding in ("utf-8-sig", "utf-16", "cp1252"):
        with contextlib.suppress(UnicodeError), _open_text(file, encoding, "strict") as text:
            while text.read(_CHUNK):
                pass
            return encoding
    raise UserError(f"{file}: is not text in UTF-8, UTF-16 or cp1252; save it as CSV in UTF-8")


class Rows:
    """The rows of a list or table. Equal target texts are stored once, in the order in which they first occur.

    root: folder of relative paths (default: the file's). anywhere: paths may be outside of it and of the file's folder.
    """

    def __init__(self, file: Path, root: str | None = None, anywhere: bool = False) -> None:
        self.file, self.root, self._anywhere = file, Path(root) if root else file.parent, anywhere
        self.paths, self.row_target_ids, self.lines = StringPacker(), array("i"), array("i")
        self.target_ids: dict[str, int] = {}
        self.findings: list[Finding] = []
        self.notes: list[str] = []
        self._endings: dict[str, dict[str, list[str]]] = {}  # by folder

    def add(self, line: int, path: str, target: str = "") -> None:
        if "\0" in path:
            self.add_finding(line, f"{shorten(path)} is not a path; save the file as text in UTF-8")
            return
        if not self._anywhere and (path.startswith("/") or ".." in path.split("/")):
            absolute = os.path.abspath(os.path.join(self.root, path))
            roots = (f"{os.path.abspath(folder)}{os.sep}" for folder in (self.root, self.file.parent))
            if not absolute.startswith(tuple(roots)):
                problem = "write a path relative to it, or set DATA.IMAGE_ROOT"
                self.add_finding(line, f"path {shorten(path)} is not inside {self.root}; {problem}")
                return
            path = os.path.relpath(absolute, self.root)
        elif not self._anywhere and ("./" in path or "//" in path):
            path = os.path.normpath(path)
        self.paths.add(self._with_ending(line, path))
        self.row_target_ids.append(self.target_ids.setdefault(to_nfc(target), len(self.target_ids)))
        self.lines.append(line)

    def _with_ending(self, line: int, path: str) -> str:
        """The path of the one image whose name is `path` without its ending, as in tables of ids; else `path`."""
        if path.lower().endswith(_ENDINGS):
            return path
        folder, name = os.path.split(path)
        if folder not in self._endings:
            self._endings[folder] = _image_endings(self.root / folder)
        endings = self._endings[folder].get(name, [])
        if len(endings) > 1:
            self.add_finding(line, f"{shorten(path)} is {' and '.join(sorted(endings))}; write the ending, too")
        return path + endings[0] if endings else path

    def add_finding(self, line: int, problem: str) -> None:
        self.findings.append(f"{self.file}:{line}: {problem}")


def _image_endings(folder: Path) -> dict[str, list[str]]:
    """{name: endings} of the images in a folder, except where `name` is a file itself; empty if it cannot be read."""
    found: dict[str, list[str]] = {}
    with contextlib.suppress(OSError):
        with os.scandir(folder) as entries:
            files = [entry.name for entry in entries if entry.is_file()]
        for name, ending in map(os.path.splitext, files):
            if ending.lower() in _ENDINGS:
                found.setdefault(name, []).append(ending)
        for file in files:
            found.pop(file, None)
    return found


def table_columns(file: Path) -> list[str]:
    """The names in the header of a CSV file; none if it is no CSV file."""
    try:
        return [name.strip() for name in _open_table(file)[0].fieldnames or ()]
    except csv.Error:
        return []


def _open_table(file: Path) -> "tuple[csv.DictReader[str], str]":
    """A CSV file, in which the header shows the separator; and a description of separator and encoding."""
    encoding = _find_encoding(file)
    lines = read_lines(file, encoding)
    header = next(lines, "")
    separator = max(_SEPARATORS, key=header.count)
    table = csv.DictReader(chain([header], lines), delimiter=separator, skipinitialspace=True, strict=True)
    return table, f"separator {separator!r}, encoding {encoding.removesuffix('-sig')}"


def table_rows(file: Path, root: str | None = None, columns: Columns | None = None, with_targets: bool = True) -> Rows:
    """The rows of a CSV file with a column of paths and one of targets, which may be empty.

    columns: others are named in a note. with_targets: False if the column of targets is not read, and paths may be
    outside of the file's folder.
    """
    rows = Rows(file, root, anywhere=not with_targets)
    named = {**COLUMNS, **(columns or {})}
    needed = [named["path"], named["label"]][: 1 + with_targets]
    table, dialect = _open_table(file)
    try:
        table.fieldnames = header = [name.strip() for name in table.fieldnames or ()]
        if absent := [name for name in needed if header.count(name) != 1]:
            raise UserError(
                f"{file}:1: the header lacks {' or '.join(absent)}: it is {shorten(header)} ({dialect}); rename them, "
                'or set DATA.COLUMNS, such as "DATA.COLUMNS={path: id, label: breed}"'
            )
        if with_targets and (unused := [name for name in header if name not in named.values()]):
            rows.notes.append(f"{file}: columns that are not used: {shorten(unused)}")
        if dialect != _DEFAULT_DIALECT:
            rows.notes.append(f"{file}: {dialect}")
        for record in table:
            if None in record or None in record.values():
                problem = "the number of fields differs from the header's; quote a path that contains a separator"
                rows.add_finding(table.line_num, problem)
                continue
            path, *target = (record[name].strip() for name in needed)
            if path:
                rows.add(table.line_num, path, *target)
            else:
                rows.add_finding(table.line_num, f"{needed[0]} is empty; fill it in or remove the line")
    except csv.Error as error:  # the lines after it cannot be parsed reliably
        rows.add_finding(table.reader.line_num, f"is not valid CSV ({error}); correct the line")
    return rows
