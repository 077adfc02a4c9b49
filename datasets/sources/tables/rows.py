"""The rows of a list or table: the name, file, label and split of each image."""

from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from configs.schema import Data
from configs.yaml_io import format_value, shorten
from datasets.sources.path_words import label_in
from datasets.sources.samples import ImageFiles, listing_arrays
from datasets.sources.shared_arrays import PackedStrings, StringPacker, to_arrays, to_nfc
from datasets.sources.tables.cells import NO_LABELS, refuse_unread
from datasets.sources.tables.columns import find_layout
from datasets.sources.tables.files import Table
from datasets.sources.tables.joins import open_for
from datasets.sources.tables.places import Place, Places
from datasets.sources.tables.search import find_places
from utils.errors import Finding, UserError, raise_problems
from utils.notes import Note


class TableRows:
    """The rows of a list or table. Equal labels are stored once, in the order in which they first occur.

    root: folder of the files. names: of the images in the run. files: their paths in `root`.
    labels: DATA.LABELS, in place of the targets.
    classes: the names of the columns of 0 and 1, or of the classes if the table has them, in the order of the labels.
    """

    def __init__(self, file: Path, places: Places) -> None:
        self.file = file
        self.root = places.root
        self.notes = [*places.notes]
        self.labels: str | None = None
        self.names = StringPacker()
        self.row_target_ids = array("i")
        self.lines = array("i")
        self._files = StringPacker() if places.has_names else self.names
        self.target_ids: dict[tuple[str, ...], int] = {}
        self._id_of = dict[tuple[str, ...], int]()  # by labels as they are written
        self.classes: tuple[str, ...] = ()
        self.findings: list[Finding] = []
        self.unread: UserError | None = None  # about cells that are neither 0 nor 1

    @property
    def files(self) -> PackedStrings:
        return self._files.strings()

    def arrays(self) -> dict[str, np.ndarray]:
        """The files of the images, if their names are others, as arrays of `ImageFiles`."""
        return {} if self._files is self.names else to_arrays(self.files, "places")

    def add(self, line: int, place: Place, target: Iterable[str] = ()) -> None:
        if place.problem:
            self.add_finding(line, place.problem)
            return
        target = tuple(target)
        target_id = self._id_of.get(target)  # of most rows: their labels were read before
        if target_id is None and any(map(NO_LABELS.match, target)):
            problem = f"label {shorten([*target])} is an object or a number per class"
            self.add_finding(line, f"{problem}; write names, with | between several")
            return
        if self.labels:
            label = label_in(self.labels, place.file)
            if not label:
                text = f"DATA.LABELS {format_value(self.labels)} does not match {shorten(place.file)}; correct it"
                self.add_finding(line, text)
                return
            target = (label,)
            target_id = self._id_of.get(target)
        if target_id is None:
            target_id = self.target_ids.setdefault(tuple(map(to_nfc, target)), len(self.target_ids))
            self._id_of[target] = target_id
        self.names.add(place.name)
        if self._files is not self.names:
            self._files.add(place.file)
        self.row_target_ids.append(target_id)
        self.lines.append(line)

    def add_finding(self, line: int, problem: str) -> None:
        self.findings.append(f"{self.place(line)}: {problem}")

    def place(self, line: int) -> str:
        """A line of the file."""
        return f"{self.file}:{line}"


def table_rows(table: Table, data: Data, split: str | None = None, others: Sequence[Path] = ()) -> TableRows:
    """The rows of a table with a column of paths and one of targets, which may be empty; only the rows of `split`.

    others: folders of images to predict, whose labels are not read, and which may be anywhere.
    """
    layout = find_layout(table, data, predicts=bool(others))
    places = layout.places or find_places(table, layout.path, data, others)
    if places.problem:
        raise UserError(places.problem)
    rows = TableRows(table.file, places)
    rows.labels = data.labels
    rows.notes[:0] = table.notes
    rows.classes = layout.labels if layout.is_one_hot else table.classes.get([*layout.labels, ""][0], ())
    unread = Counter[str]()
    unread_line = 0
    number = 0
    for line, cells in table:
        part = layout.split_in(cells, places) if split else None
        if (part == "test") != (split == "test"):
            continue
        labels = layout.labels_in(cells, unread)  # the splits of one table have one message
        number += len(layout.labels)
        if unread and not unread_line:
            unread_line = line
        if part == split and not layout.leaves_out(cells):
            rows.add(line, places.find(cells[layout.path]), labels)
    if unread:
        rows.unread = refuse_unread(rows.place(unread_line), number, unread, layout.values, data)
    words = layout.values.words
    if words and layout.is_one_hot:
        rows.notes.append(Note("log", f"{table.file}: in the columns of labels, yes is 1 and no is 0: {words}"))
    for line, problem in table.mistakes.items():
        rows.add_finding(line, problem)
    return rows


def read_unlabelled_list(file: Path, data: Data, trained_root: str | None) -> ImageFiles:
    """The images of a list or a table, with the column and the text that name them; see `datasets.reading.unlabelled`.

    Raises UserError: it cannot be read, or lists no images; in one error, all mistakes.
    """
    table = open_for(file, data)
    image_root = data.image_root if data.image_root != trained_root else None
    given = data.changed(image_root=image_root, labels=None)
    others = [file.with_suffix("")]
    if trained_root:
        others.append(Path(trained_root))
    rows = table_rows(table, given, others=others)
    column = find_layout(table, given, predicts=True).path
    raise_problems(file, rows.findings)
    if not len(rows.names):
        raise UserError(f"{file}: lists no images; write one path per line")
    arrays = listing_arrays(rows.names) | rows.arrays() | to_arrays(table.column(column), "listed")
    if data.groups in table.header:
        groups = [*table.column(data.groups)]
        if all(groups):
            arrays |= to_arrays(groups, "groups")
        else:
            rows.notes.append(Note("screen", f"{file}: {groups.count('')} rows have no {shorten(data.groups)}"))
    return ImageFiles(rows.root, ["0"], arrays, notes=rows.notes, has_class_names=False, column=column)
