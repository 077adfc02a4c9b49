"""The rows of lists and tables of images, before their targets become labels.

`findings` collects the mistakes, so that one error names all of them. An error is raised at once if nothing can be
read.
"""

import contextlib
import json
import os
import re
from array import array
from collections.abc import Hashable
from itertools import islice
from pathlib import Path
from typing import Any

from configs.schema import Data
from configs.yaml_io import shorten
from datasets.decoding.images import IMAGE_EXTENSIONS, PHOTO_EXTENSIONS
from datasets.sources.files.image_files import Listing, NearFiles, listing_arrays
from datasets.sources.files.tables import (
    BINARY,
    ONE_HOT,
    Layout,
    Table,
    find_layout,
    find_path_column,
    first_folder,
    read_lines,
)
from datasets.sources.shared_arrays import StringPacker, to_arrays, to_nfc
from utils.errors import Finding, UserError, combine_findings

LABEL_DIGITS = 6  # a longer label is a typing error, and would create as many classes
_LABEL = re.compile(r"\s+[0-9]+$")  # of a list for the training
_FIRST = 20  # images of which one shows the folder
_ENDINGS = (*IMAGE_EXTENSIONS, *PHOTO_EXTENSIONS)


class Rows:
    """The rows of a list or table. Equal target texts are stored once, in the order in which they first occur.

    root: folder of relative paths (default: the file's). anywhere: paths may be outside of it and of the file's folder.
    classes: the names of the columns of 0 and 1, or of the classes if the table has them, in the order of the labels.
    """

    def __init__(self, file: Path, root: str | None = None, anywhere: bool = False) -> None:
        self.file, self.root, self._anywhere = file, Path(root) if root else file.parent, anywhere
        self.paths, self.row_target_ids, self.lines = StringPacker(), array("i"), array("i")
        self.target_ids: dict[str, int] = {}
        self.classes: tuple[str, ...] = ()
        self.findings: list[Finding] = []
        self.notes: list[str] = []
        self.outside: list[tuple[int, str]] = []  # lines with a path that leads out of the folder
        self._endings: dict[str, dict[str, list[str]]] = {}  # by folder

    def add(self, line: int, path: str, target: str = "") -> None:
        if not path or "\0" in path:
            fix = "save the file as text in UTF-8" if path else "fill it in or remove the line"
            self.add_finding(line, f"{shorten(path)} is not a path; {fix}")
            return
        if not self._anywhere and (path.startswith("/") or ".." in path.split("/")):
            absolute = os.path.abspath(os.path.join(self.root, path))
            roots = (f"{os.path.abspath(folder)}{os.sep}" for folder in (self.root, self.file.parent))
            if not absolute.startswith(tuple(roots)):
                self.outside.append((line, path))
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


_layouts: dict[Hashable, Layout] = {}  # each split of a table needs it


def table_layout(table: Table, data: Data) -> Layout:
    """The meaning of the columns by DATA.COLUMNS, their names and their values; raises UserError if it is not clear."""
    given: dict[Any, Any] = {"label": table.class_column or None, **(data.columns or {}), "group": data.groups}
    if (key := (table.version, json.dumps(given))) not in _layouts:
        records = (record for _, record in table if not isinstance(record, str))
        _layouts[key] = find_layout(f"{table.file}:1", table.header, records, given, table.image_column)
    return _layouts[key]


def table_rows(table: Table, data: Data, split: str | None = None) -> Rows:
    """The rows of a table with a column of paths and one of targets, which may be empty; only the rows of `split`."""
    file = table.file
    rows = Rows(file, str(table.root) if table.root else data.image_root, anywhere=bool(table.image_column))
    layout = table_layout(table, data)
    rows.notes += table.notes
    used = {layout.path, *layout.labels, layout.split, data.groups}
    if unused := [name for name in table.header if name not in used]:
        rows.notes.append(f"{file}: columns that are not used: {shorten(unused)}")
    if layout.splits:
        place = f"in the column {shorten(layout.split)}" if layout.split else "the first folders of the paths"
        rows.notes.append(f"{file}: the splits are {place} (DATA.COLUMNS)")
    rows.classes = layout.labels if layout.is_one_hot else table.classes_of(layout.labels[0])
    if layout.is_one_hot:
        rows.notes.append(f"{file}: the classes are the columns {shorten(list(layout.labels))}, each of 0 and 1")
    path_place, *label_places = (table.header.index(name) for name in (layout.path, *layout.labels))
    split_place = table.header.index(layout.split) if layout.split else path_place
    for line, record in table:
        if isinstance(record, str):
            rows.add_finding(line, record)
            continue
        path, target = record[path_place], record[label_places[0]]
        of_split = record[split_place] if layout.split else first_folder(path)
        if split and layout.split_of[of_split.lower()] != split:
            continue
        if layout.is_one_hot:
            cells = (record[place].lower() for place in label_places)
            target = ONE_HOT.join(name for name, cell in zip(layout.labels, cells, strict=True) if BINARY.get(cell))
        rows.add(line, path, target)
    return rows


def read_unlabelled_list(file: Path, data: Data, trained_root: str | None) -> Listing:
    """The images of a list or a table, with the column and the text that name them; see `datasets.registry.unlabelled`.

    Raises:
        UserError: it cannot be read, or lists no images; in one error, all mistakes.
    """
    table = None if file.suffix.lower() == ".txt" else Table(file, data.encoding)
    column = find_path_column(f"{file}:1", table.header, data.columns or {}) if table else "path"
    place, notes = (table.header.index(column), table.notes) if table else (0, [])
    given = data.image_root if data.image_root != trained_root else None
    folders = [given] if given else [str(file.parent), str(file.parent / file.stem), trained_root or str(file.parent)]
    for folder in [*folders, folders[0]]:
        rows, listed = Rows(file, folder, anywhere=True), StringPacker()
        lines = (
            (number, [_LABEL.sub("", line.strip())]) for number, line in enumerate(read_lines(file), 1) if line.strip()
        )
        for line, record in table or lines:
            if isinstance(record, str):
                rows.add_finding(line, record)
            else:
                rows.add(line, record[place])
                listed.add(record[place])
        if any(map(os.path.isfile, (os.path.join(folder, path) for path in islice(rows.paths.strings(), _FIRST)))):
            notes += [f"{file}: the images are in {folder}"] * (folder != folders[0])
            break
    else:
        fix = NearFiles(rows.root).fix_folder(rows.paths.strings()[0]) if len(rows.paths) else ""
        notes += [f"Warning: {file}: its images are not in {folders[0]}; {fix}"] * bool(fix)
    if rows.findings:
        raise combine_findings(f"{file}: {len(rows.findings)} problems", rows.findings)
    if not len(rows.paths):
        raise UserError(f"{file}: lists no images; write one path per line")
    arrays = listing_arrays(rows.paths) | to_arrays(listed.strings(), "listed")
    return Listing(rows.root, ["0"], arrays, notes=notes, has_class_names=False, column=column)
