"""The rows of tables: paths of images, which are found where they are, and texts of labels.

Mistakes in rows are collected, so that one error names all of them.
"""

import contextlib
import os
import re
from array import array
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path

from configs.schema import Data
from configs.yaml_io import shorten
from datasets.decoding.images import IMAGE_EXTENSIONS, PHOTO_EXTENSIONS
from datasets.sources.image_files import Listing, listing_arrays
from datasets.sources.names import MASK, label_in, split_of, split_of_images, word_in
from datasets.sources.shared_arrays import StringPacker, to_arrays, to_nfc
from datasets.sources.tables import Table, column_of_paths, find_layout, first_folder, is_one, read_lines
from utils.errors import Finding, UserError, combine_findings
from utils.notes import Note

ONE_HOT = "\x1f"  # between the names of the columns with a 1
LIST_LABEL = re.compile(r"\s+[0-9]+$")  # of a list for the training
_MAX_TRIED = 200  # images that show the folder
_ENDINGS = (*IMAGE_EXTENSIONS, *PHOTO_EXTENSIONS)


class Rows:
    """The rows of a list or table. Equal target texts are stored once, in the order in which they first occur.

    root: folder of relative paths (default: the file's). anywhere: paths may be outside of it and of the file's folder.
    labels: DATA.LABELS, in place of the targets. by_name: the path of each image by its name, in place of the paths.
    classes: the names of the columns of 0 and 1, or of the classes if the table has them, in the order of the labels.
    """

    by_name: Mapping[str, str] = {}

    def __init__(self, file: Path, root: Path | None = None, anywhere: bool = False, labels: str | None = None) -> None:
        self.file, self.root, self._anywhere, self._labels = file, root or file.parent, anywhere, labels
        self.paths, self.row_target_ids, self.lines = StringPacker(), array("i"), array("i")
        self.target_ids: dict[str, int] = {}
        self.classes: tuple[str, ...] = ()
        self.findings: list[Finding] = []
        self.notes: list[Note] = []
        self.outside: list[tuple[int, str]] = []  # lines with a path that leads out of the folder
        self._endings: dict[str, dict[str, list[str]]] = {}  # by folder

    def add(self, line: int, path: str, target: str = "") -> None:
        if not path or "\0" in path:
            fix = "save the file as text in UTF-8" if path else "fill it in or remove the line"
            self.add_finding(line, f"{shorten(path)} is not a path; {fix}")
            return
        path = self.by_name.get(os.path.basename(path), path)
        if not self._anywhere and (path.startswith("/") or ".." in path.split("/")):
            absolute = os.path.abspath(os.path.join(self.root, path))
            roots = (f"{os.path.abspath(folder)}{os.sep}" for folder in (self.root, self.file.parent))
            if not absolute.startswith(tuple(roots)):
                self.outside.append((line, path))
                return
            path = os.path.relpath(absolute, self.root)
        elif not self._anywhere and ("./" in path or "//" in path):
            path = os.path.normpath(path)
        path = self._with_ending(line, path)
        if self._labels and not (target := label_in(self._labels, path)):
            self.add_finding(line, f"DATA.LABELS {shorten(self._labels)} does not match {shorten(path)}; correct it")
            return
        self.paths.add(path)
        self.row_target_ids.append(self.target_ids.setdefault(to_nfc(target), len(self.target_ids)))
        self.lines.append(line)

    def _with_ending(self, line: int, path: str) -> str:
        """The path of the one image whose name is `path` without its ending, as in tables of ids; else `path`."""
        if path.lower().endswith(_ENDINGS):
            return path
        folder, name = os.path.split(path)
        if folder not in self._endings:
            found = self._endings[folder] = dict[str, list[str]]()
            with contextlib.suppress(OSError):
                with os.scandir(self.root / folder) as entries:
                    files = [entry.name for entry in entries if entry.is_file()]
                for stem, ending in map(os.path.splitext, files):
                    if ending.lower() in _ENDINGS:
                        found.setdefault(stem, []).append(ending)
                for file in files:  # the path is a file itself
                    found.pop(file, None)
        endings = self._endings[folder].get(name, [])
        if len(endings) > 1:
            self.add_finding(line, f"{shorten(path)} is {' and '.join(sorted(endings))}; write the ending, too")
        return path + endings[0] if endings else path

    def add_finding(self, line: int, problem: str) -> None:
        self.findings.append(f"{self.file}:{line}: {problem}")


def table_rows(table: Table, data: Data, split: str | None = None) -> Rows:
    """The rows of a table with a column of paths and one of targets, which may be empty; only the rows of `split`.

    The images are in DATA.IMAGE_ROOT, else in the table's folder, else in the split's folder in it (train/ or
    train_images/ of train.csv), else in the only folder in it that has them, apart from other splits and masks, else in
    several of these, where their names are unique.
    """
    file = table.file
    layout = find_layout(table, data)
    path_place, *label_places = (table.header.index(name) for name in (layout.path, *layout.labels))
    root, by_name = table.root or (Path(data.image_root) if data.image_root else None), dict[str, str]()
    if not root and not table.image_column:
        paths = [record[path_place] for _, record in table if not isinstance(record, str)]
        root, by_name = _find_images(file, [path for path in paths if ".." not in path])
    rows = Rows(file, root, bool(table.image_column), data.labels)
    rows.by_name = by_name
    rows.notes += table.notes
    if by_name or (root not in (None, table.root, file.parent) and str(root) != data.image_root):
        rows.notes.append(Note("log", f"{file}: the images are in {root}{', found by their names' if by_name else ''}"))
    used = {layout.path, *layout.labels, layout.split, data.groups}
    if unused := [name for name in table.header if name not in used]:
        rows.notes.append(Note("log", f"{file}: columns that are not used: {shorten(unused)}"))
    if layout.splits:
        place = f"in the column {shorten(layout.split)}" if layout.split else "the first folders of the paths"
        rows.notes.append(Note("log", f"{file}: the splits are {place} (DATA.COLUMNS)"))
    rows.classes = layout.labels if layout.is_one_hot else table.classes_of(*layout.labels[:1])
    if layout.is_one_hot:
        columns = shorten(list(layout.labels))
        rows.notes.append(Note("log", f"{file}: the classes are the columns {columns}, each of 0 and 1"))
    split_place = table.header.index(layout.split) if layout.split else path_place
    for line, record in table:
        if isinstance(record, str):
            rows.add_finding(line, record)
            continue
        path, target = record[path_place], record[label_places[0]] if label_places else ""
        of_split = record[split_place] if layout.split else first_folder(path)
        if split and layout.split_of[of_split.lower()] != split:
            continue
        if layout.is_one_hot:
            cells = (record[place] for place in label_places)
            target = ONE_HOT.join(name for name, cell in zip(layout.labels, cells, strict=True) if is_one(cell))
        rows.add(line, path, target)
    return rows


def _find_images(file: Path, paths: Sequence[str], others: Sequence[Path] = ()) -> tuple[Path | None, dict[str, str]]:
    """The first folder with one of the paths of a table as a file, in the order of `table_rows`; or several folders.

    The images of several folders have paths relative to the first result, by their names in the second one, if these
    are unique. others: come before other folders than the split's. None without such a folder.
    """
    paths = paths[:: -(-len(paths) // _MAX_TRIED) or 1]

    def contains(folder: Path) -> bool:
        rows = Rows(file, folder, anywhere=True)
        for path in paths:
            rows.add(0, path)
        return any(os.path.isfile(folder / path) for path in rows.paths.strings())

    if contains(file.parent):
        return file.parent, {}
    root = file.parent.parent if _is_of_masks(file.parent.name) else file.parent  # ISIC's x_GroundTruth, x_Input
    inside = [path for path in sorted(root.glob("*/")) if not path.name.startswith(".")]
    split = split_of(file.stem)
    of_split = [path for path in inside if split and split_of_images(path.name) == split]
    if found := next(filter(contains, (*of_split, *others)), None):
        return found, {}
    of_others = {"train", "val", "test"} - {split} if split else {"test"}
    usable = [path for path in inside if word_in(path.name) not in of_others and not _is_of_masks(path.name)]
    with_images = list(islice(filter(contains, usable), 2))
    if len(with_images) == 1:
        return with_images[0], {}
    by_name: dict[str, str] = {}
    files = chain(root.glob("*"), *(folder.rglob("*") for folder in usable))
    for path in (one for one in files if one.suffix.lower() in _ENDINGS):
        for key in (path.name, path.stem):
            by_name[key] = "" if key in by_name else str(path.relative_to(root))
    is_unique = paths and all(by_name.get(os.path.basename(path)) for path in paths)
    return (root, {name: path for name, path in by_name.items() if path}) if is_unique else (None, {})


def _is_of_masks(folder: str) -> bool:
    return any(re.fullmatch(MASK, part, re.IGNORECASE) for part in re.split(r"[ ._-]+", folder))


def read_unlabelled_list(file: Path, data: Data, trained_root: str | None) -> Listing:
    """The images of a list or a table, with the column and the text that name them; see `datasets.registry.unlabelled`.

    The column of paths is the one of DATA.COLUMNS if the table has it, else found by its name, or the only column.
    Raises UserError: it cannot be read, or lists no images; in one error, all mistakes.
    """
    table = None if file.suffix.lower() == ".txt" else Table(file, data.encoding)
    column, place, notes = "path", 0, list[Note]()
    if table:
        column, notes = column_of_paths(table, data), table.notes
        place = table.header.index(column)

    def records() -> Iterator[tuple[int, list[str] | str]]:
        lines = ((number, line.strip()) for number, line in enumerate(read_lines(file), 1))
        yield from table or ((number, [LIST_LABEL.sub("", line)]) for number, line in lines if line)

    given_root = data.image_root if data.image_root != trained_root else None
    first = [record[place] for _, record in records() if not isinstance(record, str)]
    others = [file.with_suffix(""), *([Path(trained_root)] if trained_root else [])]
    found, by_name = (Path(given_root), {}) if given_root else _find_images(file, first, others)
    rows, listed = Rows(file, found, anywhere=True), StringPacker()
    rows.by_name = by_name
    for line, record in records():
        if isinstance(record, str):
            rows.add_finding(line, record)
        else:
            rows.add(line, record[place])
            listed.add(record[place])
    if found and found not in (file.parent, Path(given_root or file.parent)):
        notes.append(Note("log", f"{file}: the images are in {found}"))
    elif not found:
        notes.append(
            Note("warning", f"{file}: its images are not in {file.parent}; set DATA.IMAGE_ROOT to their folder")
        )
    if rows.findings:
        raise combine_findings(f"{file}: {len(rows.findings)} problems", rows.findings)
    if not len(rows.paths):
        raise UserError(f"{file}: lists no images; write one path per line")
    arrays = listing_arrays(rows.paths) | to_arrays(listed.strings(), "listed")
    return Listing(rows.root, ["0"], arrays, notes=notes, has_class_names=False, column=column)
