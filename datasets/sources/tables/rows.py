"""The rows of a list or table: the path, label and split of each image, and where the images are."""

import contextlib
import os
import re
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import chain, islice
from pathlib import Path

from configs.schema import Data
from configs.yaml_io import format_value, shorten
from datasets.decoding.images import IMAGE_EXTENSIONS, PHOTO_EXTENSIONS
from datasets.sources.listing import list_directory
from datasets.sources.path_words import MASK, label_in, split_of, split_of_images, word_in
from datasets.sources.samples import ImageFiles, listing_arrays, spread
from datasets.sources.shared_arrays import StringPacker, to_arrays, to_nfc
from datasets.sources.tables.cells import NO_LABELS, columns_option, refuse_unread
from datasets.sources.tables.columns import find_layout, with_folder
from datasets.sources.tables.files import Table
from datasets.sources.tables.joins import open_for
from utils.errors import Finding, UserError, raise_problems
from utils.notes import Note

_MAX_TRIED = 200  # images that show the folder
_MAX_SEARCHED = 200_000  # files and folders among which images are found by their names
_ENDINGS = (*IMAGE_EXTENSIONS, *PHOTO_EXTENSIONS)
_MASKS = re.compile(rf"(.*[ ._-])?({MASK})([ ._-].*)?", re.IGNORECASE)


class Rows:
    """The rows of a list or table. Equal labels are stored once, in the order in which they first occur.

    root: folder of relative paths. anywhere: paths may be outside of it and of the file's folder.
    labels: DATA.LABELS, in place of the targets. by_name: the path of each image by its name, in place of the paths.
    classes: the names of the columns of 0 and 1, or of the classes if the table has them, in the order of the labels.
    """

    def __init__(
        self,
        file: Path,
        root: Path,
        by_name: Mapping[str, str],
        notes: Sequence[Note] = (),
        anywhere: bool = False,
    ) -> None:
        self.file = file
        self.root = root
        self._by_name = by_name
        self.notes = [*notes]
        self._anywhere = anywhere
        self.labels: str | None = None
        self.paths, self.row_target_ids, self.lines = StringPacker(), array("i"), array("i")
        self.target_ids: dict[tuple[str, ...], int] = {}
        self.classes: tuple[str, ...] = ()
        self.findings: list[Finding] = []
        self.unread = ""  # the problem of cells that are neither 0 nor 1
        self._endings: dict[str, dict[str, list[str]]] = {}  # by folder

    def add(self, line: int, path: str, target: Iterable[str] = ()) -> None:
        if not path or "\0" in path:
            fix = "fill it in or remove the line; save the file as text in UTF-8"
            self.add_finding(line, f"{shorten(path)} is not a path; {fix}")
            return
        if "\\" in path and not os.path.exists(os.path.join(self.root, path)):  # of Windows
            path = path.replace("\\", "/")
        if path.startswith("/"):
            path = _without_slash(self.root, path)
        path = self._by_name.get(os.path.basename(path), path)
        if not self._anywhere and _may_lead_out(path):
            absolute = os.path.abspath(os.path.join(self.root, path))
            roots = (f"{os.path.abspath(folder)}{os.sep}" for folder in (self.root, self.file.parent))
            if not absolute.startswith(tuple(roots)):  # often of another machine
                fix = "write paths relative to it, or set DATA.IMAGE_ROOT to the folder of all"
                self.add_finding(line, f"path {shorten(path)} is not inside {self.root}; {fix}")
                return
            path = os.path.relpath(absolute, self.root)
        endings = self._endings_of(path)
        if len(endings) > 1:
            endings = [one for one in endings if os.path.isfile(self.root / f"{path}{one}")]  # no broken link
        if len(endings) > 1:
            self.add_finding(line, f"{shorten(path)} is {' and '.join(sorted(endings))}; write the ending, too")
        path += [*endings, ""][0]
        target = [*target]
        if any(map(NO_LABELS.match, target)):
            problem = f"label {shorten(target)} is an object or a number per class"
            self.add_finding(line, f"{problem}; write names, with | between several")
            return
        if self.labels:
            label = label_in(self.labels, path)
            if not label:
                text = f"DATA.LABELS {format_value(self.labels)} does not match {shorten(path)}; correct it"
                self.add_finding(line, text)
                return
            target = [label]
        self.paths.add(path)
        self.row_target_ids.append(self.target_ids.setdefault(tuple(map(to_nfc, target)), len(self.target_ids)))
        self.lines.append(line)

    def _endings_of(self, path: str) -> list[str]:
        """The endings of the images whose name is `path` without it, as in tables of ids; none if it is a file."""
        if path.lower().endswith(_ENDINGS):
            return []
        folder, name = os.path.split(path)
        if folder not in self._endings:
            found = self._endings[folder] = {}
            with contextlib.suppress(OSError):
                _, files = list_directory(self.root / folder)
                for stem, ending in map(os.path.splitext, files):
                    if ending.lower() in _ENDINGS:
                        found.setdefault(stem, []).append(ending)
                for file in files:  # the path is a file itself
                    found.pop(file, None)
        return self._endings[folder].get(name, [])

    def add_finding(self, line: int, problem: str) -> None:
        self.findings.append(f"{self.place(line)}: {problem}")

    def place(self, line: int) -> str:
        """A line of the file; the files in a folder are not numbered."""
        return str(self.file) if self.file.is_dir() else f"{self.file}:{line}"


def _without_slash(root: Path, path: str) -> str:
    """a/airfield/1.jpg of /a/airfield/1.jpg, as in Places365's lists, if only `root` has a."""
    top = path.split("/")[1]
    return path[1:] if not os.path.exists(f"/{top}") and os.path.exists(root / top) else path


def _may_lead_out(path: str) -> bool:
    """Whether a path may lead out of a folder; of millions of paths, a regular expression takes four times as long."""
    return path.startswith("/") or ".." in path or "./" in path or "//" in path


def table_rows(table: Table, data: Data, split: str | None = None, others: Sequence[Path] = ()) -> Rows:
    """The rows of a table with a column of paths and one of targets, which may be empty; only the rows of `split`.

    The images are in DATA.IMAGE_ROOT, else where `_find_images` finds them. others: folders of images to predict, whose
    labels are not read, and which may be anywhere.
    """
    predicts = bool(others)
    layout = find_layout(table, data, predicts)
    place = _find_images(table, layout.path, data, others)
    rows = Rows(table.file, *place, anywhere=predicts or table.root is not None)
    rows.labels = data.labels
    rows.notes[:0] = table.notes
    rows.classes = layout.labels if layout.is_one_hot else table.classes.get([*layout.labels, ""][0], ())
    unread = Counter[str]()
    unread_line = 0
    number = 0
    for line, cells in table:
        part = layout.split_in(cells) if split else None
        if (part == "test") != (split == "test"):
            continue
        labels = layout.labels_in(cells, unread)  # the splits of one table have one message
        number += len(layout.labels)
        if unread and not unread_line:
            unread_line = line
        if part == split and not layout.leaves_out(cells):
            rows.add(line, cells[layout.path], labels)
    if unread:
        rows.unread = refuse_unread(rows.place(unread_line), number, unread, layout.values, data)
    words = layout.values.words
    if words and layout.is_one_hot:
        rows.notes.append(Note("log", f"{table.file}: in the columns of labels, yes is 1 and no is 0: {words}"))
    for line, problem in table.mistakes.items():
        rows.add_finding(line, problem)
    return rows


def _find_images(
    table: Table, column: str, data: Data, others: Sequence[Path]
) -> tuple[Path, Mapping[str, str], list[Note]]:
    """The folder of the paths of a table, the path in it of each name if they are in several folders, and notes.

    It is the given one, else the first of these with one of the paths as a file: the table's folder; the one around
    it; the split's folder in it (train/ or train_images/ of train.csv); `others`; the only folder in it with an image,
    apart from other splits and masks; several of these, where names are unique.
    Raises UserError: the paths are in two columns.
    """
    given = table.root or data.image_root
    if given:
        return Path(given), {}, []
    file = table.file
    paths = table.column(column)
    root = file.parent
    listed = list[str]()
    sample = []
    for some in (islice(paths, _MAX_TRIED), paths):  # of most tables, the others need not be read for this
        listed += some
        sample = [listed[index] for index in spread(len(listed), _MAX_TRIED)]
        for folder in (root, root.parent):  # the paths of CheXpert begin with the name of the table's folder
            if _contains(folder, file, sample):
                return folder, {}, []
    if _MASKS.fullmatch(root.name):  # ISIC's x_GroundTruth, x_Input
        root = root.parent
    of_split, usable = _folders_beside(root, split_of(file.stem))
    contains = partial(_contains, file=file, sample=sample)
    found = [*islice(filter(contains, (*of_split, *others)), 1)] or [*islice(filter(contains, usable), 2)]
    if len(found) == 1:
        return found[0], {}, [Note("log", f"{file}: the images are in {found[0]}")]
    most = max(_MAX_SEARCHED, 3 * len(listed))
    files = list(islice(chain(root.glob("*"), *(folder.rglob("*") for folder in usable)), most))
    is_complete = len(files) < most
    by_name = _paths_of_names(root, files) if is_complete else {}
    if sample and all(os.path.basename(path.replace("\\", "/")) in by_name for path in sample):
        return root, by_name, [Note("log", f"{file}: the images are in {root}, found by their names")]
    in_columns = with_folder(table, column)
    if in_columns != column:
        raise UserError(
            f"{file}: {shorten(sample[0])} is no file, but paths of two columns are; "
            f"-opts {columns_option(data, {'path': in_columns})}"
        )
    text = f"no image of {file} is found in {root}, nor by a unique name in its folders; set DATA.IMAGE_ROOT"
    return file.parent, {}, [Note("warning", text)]


def _folders_beside(root: Path, split: str | None) -> tuple[list[Path], list[Path]]:
    """The folders of images of a split, and those that are not of masks, other splits, or without a split of test."""
    folders = [path for path in sorted(root.glob("*/")) if not path.name.startswith(".")]
    of_split = [path for path in folders if split and split_of_images(path.name) == split]
    of_others = {"train", "val", "test"} - {split} if split else {"test"}
    usable = [path for path in folders if word_in(path.name) not in of_others and not _MASKS.fullmatch(path.name)]
    return of_split, usable


def _contains(folder: Path, file: Path, sample: Iterable[str]) -> bool:
    """Whether a path in the table `file` is a file in a folder."""
    rows = Rows(file, folder, {}, anywhere=True)
    for path in sample:
        rows.add(0, path)
    return any(os.path.isfile(folder / path) for path in rows.paths.strings())


def _paths_of_names(root: Path, files: Iterable[Path]) -> dict[str, str]:
    """The path in `root` of each name, with its ending and without, that only one image has."""
    found = defaultdict(list)
    for path in files:
        if path.suffix.lower() in _ENDINGS:
            for name in {path.name, path.stem}:
                found[name].append(path)
    return {name: str(paths[0].relative_to(root)) for name, paths in found.items() if len(paths) == 1}


def read_unlabelled_list(file: Path, data: Data, trained_root: str | None) -> ImageFiles:
    """The images of a list or a table, with the column and the text that name them; see `datasets.reading.unlabelled`.

    Raises UserError: it cannot be read, or lists no images; in one error, all mistakes.
    """
    table = open_for(file, data, predicts=True)
    image_root = data.image_root if data.image_root != trained_root else None
    given = data.changed(image_root=image_root, labels=None)
    others = [file.with_suffix("")]
    if trained_root:
        others.append(Path(trained_root))
    rows = table_rows(table, given, others=others)
    column = find_layout(table, given, predicts=True).path
    raise_problems(file, rows.findings)
    if not len(rows.paths):
        raise UserError(f"{file}: lists no images; write one path per line")
    arrays = listing_arrays(rows.paths) | to_arrays(table.column(column), "listed")
    if data.groups in table.header:
        groups = [*table.column(data.groups)]
        if all(groups):
            arrays |= to_arrays(groups, "groups")
        else:
            rows.notes.append(Note("screen", f"{file}: {groups.count('')} rows have no {shorten(data.groups)}"))
    return ImageFiles(rows.root, ["0"], arrays, notes=rows.notes, has_class_names=False, column=column)
