"""Files that list images, one row per image: text lists, CSV files and JSON lines.

An error is raised at once if nothing can be read.
"""

import contextlib
import csv
import io
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

from configs.yaml_io import shorten
from datasets.decoding.images import IMAGE_EXTENSIONS
from datasets.sources.class_names import list_names
from datasets.sources.listing import list_directory, name_like
from datasets.sources.path_words import SPLIT_NAMES
from datasets.sources.tables.cells import UNKNOWN_MARK, UNREAD, CellValues
from datasets.sources.tables.places import Places
from utils.errors import UserError, error_from
from utils.files import open_regular_file
from utils.notes import Note

TEXT_LIST = ".txt"
JSON_LINES = ".jsonl"
PARQUET = ".parquet"
TABLE_SUFFIXES = (".csv", ".tsv", JSON_LINES, TEXT_LIST, PARQUET)
METADATA = ("metadata.csv", "metadata.jsonl", "_classes.csv")  # of Hugging Face's imagefolder, and of Roboflow
WORKBOOK = r"(?i)\.(xlsx|xls|ods)$"  # the end of its name
IS_WORKBOOK = "is a workbook, which is not read: save it as CSV"
LABEL_DIGITS = 6  # a longer label is a typing error, and would create as many classes
FOLDERS = "a folder of the paths"  # in place of a column of splits
_SEPARATORS = ",;\t|"  # spreadsheets write semicolons where the comma is the decimal sign
_INVISIBLE = " \u200b\u200c\u200d\u200e\u200f\u2060\ufeff"  # of web pages and spreadsheets
_COMMENT = re.compile(r"#(?!\S+\.\w+( +\d+)?$)")
_LABELLED = re.compile(r"(.*\S)\s+([0-9]+(?:\.0*)?)")  # a line of a list
_ENDINGS = "|".join(map(re.escape, IMAGE_EXTENSIONS))
_NAMED = re.compile(rf"(.*(?:{_ENDINGS}))\s+([^\W\d_][^\s/.]*)", re.IGNORECASE)  # a line of a list of names
Cells = dict[str, str]  # the text in each column of a row
Lines = Iterator[tuple[int, Cells]]  # the number of a line, and its row


def read_lines(file: Path, encoding: str = "utf-8-sig", errors: str = "surrogateescape") -> Iterator[str]:
    """The lines of a file; bytes that are not in its encoding become surrogates, as in the names of files."""
    try:
        with io.TextIOWrapper(open_regular_file(file), encoding=encoding, errors=errors, newline=None) as lines:
            yield from lines
    except OSError as error:
        raise error_from(
            error, f"{file}: cannot be read ({error.strerror}){name_like(file)}; check the path"
        ) from error


@dataclass(frozen=True)
class Layout:
    """The meaning of the columns of a table.

    path: the column of paths. labels: the column of labels or, with `is_one_hot`, a column of 0 and 1 for each class.
    split: the column of splits, or `FOLDERS`; None without one. split_of: the split of each of its values, in lower
    case, other folders are train; empty if the table has no splits. values: of the cells of columns of 0 and 1, and of
    unknown labels. places: of the images, if the column of paths is known.
    """

    path: str
    labels: tuple[str, ...]
    is_one_hot: bool = False
    split: str | None = None
    split_of: Mapping[str, str] = field(default_factory=dict)
    values: CellValues = field(default_factory=lambda: CellValues({}))
    places: Places | None = None

    def split_in(self, cells: Cells, places: Places) -> str:
        """The split of a row of a table with splits. places: of its images."""
        if self.split == FOLDERS:
            return self.split_of.get(places.split_folder(cells[self.path]).lower(), "train")
        return self.split_of[cells[self.split or ""].lower()]

    def leaves_out(self, cells: Cells) -> bool:
        """Whether the label of a row is unknown (cells in DATA.COLUMNS)."""
        return not self.is_one_hot and None in [self.values[cells[name]] for name in self.labels]

    def labels_in(self, cells: Cells, unread: Counter[str] | None = None) -> list[str]:
        """The text of the label of a row, or the names of its columns with 1; may be empty.

        The name of an unknown label follows `UNKNOWN_MARK`. unread: gets the texts of cells that have no value.
        """
        if not self.is_one_hot:
            texts = [cells[name] for name in self.labels if cells[name]]
            return [text for text in texts if not self.values.is_none(text)]
        labels = []
        for name in self.labels:
            value = self.values[cells[name]]
            if value == 1:
                labels.append(name)
            elif value is None:
                labels.append(UNKNOWN_MARK + name)
            elif value == UNREAD and unread is not None:
                unread[cells[name]] += 1
        return labels


class Table:
    """A list of images. Iteration yields the number of a line, and the text in each column of it.

    mistakes: the problem of each line that was not yielded. notes: lines for the log. is_list: labels are class
    numbers; else their texts decide.
    """

    is_list = False
    root: Path | None = None  # of the paths, if it is not the folder of the table
    columns: Mapping[str, str] = {}  # as DATA.COLUMNS, if the table names them
    classes: Mapping[str, tuple[str, ...]] = {}  # the names of all classes of a column, if the table has them
    unread = ""  # about columns that are not read, for errors
    cut_line = 0  # the last line if it has fewer fields than the header and no line end: perhaps cut off
    layout: Layout | None = None  # see `columns.find_layout`
    doubt: UserError | None = None  # that rows to train on may be of test or val, for trainings

    def __init__(self, file: Path, header: Iterable[str] = ()) -> None:
        self.file = file
        self.header = [*header]
        self.notes = list[Note]()
        self.mistakes = dict[int, str]()

    def __iter__(self) -> Lines:
        raise NotImplementedError

    def require(self, names: Iterable[str]) -> None:
        """Raises UserError for a column that the table lacks."""
        lost = [name for name in names if name not in self.header]
        if lost:
            raise UserError(
                f"{self.file}:1: has no column {list_names(lost)}; it has {list_names(self.header)}{self.unread}; "
                "correct DATA.GROUPS, or DATA.COLUMNS: -opts 'DATA.COLUMNS={path: NAME, label: NAME}'"
            )

    def column(self, name: str) -> Iterator[str]:
        return (cells[name] for _, cells in self)


def open_table(file: Path, encoding: str | None = None) -> Table:
    """As `open_columns` or, in a .txt file without names of columns, a list of paths and labels."""
    is_list = file.suffix.lower() == TEXT_LIST and not _names_columns(next(read_lines(file), "").strip())
    return TextList(file) if is_list else open_columns(file, encoding)


def _names_columns(line: str) -> bool:
    """Whether the first line of a text has fields, and neither an image nor a class number at its end."""
    fields = re.split(f"[{_SEPARATORS}]", line.lower())
    has_image = any(field.strip(' "').endswith(IMAGE_EXTENSIONS) for field in fields)
    return len(fields) > 1 and not has_image and not _LABELLED.fullmatch(line)


def open_columns(file: Path, encoding: str | None) -> Table:
    """A table that names its columns. Raises UserError: it cannot be read."""
    found = _find_encoding(file, encoding)
    return JsonLines(file, found) if file.suffix.lower() == JSON_LINES else CsvTable(file, found)


def _find_encoding(file: Path, given: str | None) -> str:
    """UTF-8, by its byte order mark UTF-16, or the given one: in some encoding of one byte, any file is text."""
    for encoding in filter(None, ("utf-8-sig", "utf-16", given)):
        with contextlib.suppress(UnicodeError):
            if not any("\0" in line for line in read_lines(file, encoding, "strict")):
                return encoding
    if is_zipfile(file):
        raise UserError(f"{file}: is a ZIP archive, as workbooks are: unpack it, or save it as CSV")
    raise UserError(
        f"{file}: is not text in {given or 'UTF-8'}; "
        "name its encoding, such as -opts DATA.ENCODING=cp1252; save a workbook as CSV"
    )


def table_file(root: Path, split: str) -> Path:
    """The table of a split, by its name: val.csv rather than valid.csv, valid/metadata.csv; it may not exist.

    Raises UserError: several, none of which is named `split`.
    """
    stems = set()
    with contextlib.suppress(OSError):
        folders, files = list_directory(root)
        stems = {name.removesuffix(".csv") for name in (*folders, *files)}
    named = sorted(name for name in stems if SPLIT_NAMES.get(name.lower()) == split)
    for ending in (".csv", *(f"/{name}" for name in METADATA)):
        names = [name for name in named if Path(f"{root}/{name}{ending}").exists()]
        if split in names:
            names = [split]
        if len(names) > 1:
            raise UserError(f"{root}: {' and '.join(map(shorten, names))}: which one is {split}? Rename it {split}")
        if names:
            return Path(f"{root}/{names[0]}{ending}")
    return root / f"{split}.csv"


class CsvTable(Table):
    """A file of fields between separators, with a header."""

    _line = ""

    def __init__(self, file: Path, encoding: str) -> None:
        super().__init__(file)
        self._encoding = encoding
        first = next(read_lines(file, encoding), "")
        marked = re.fullmatch(r"\"?sep=(.)\"?\s*", first)  # for Excel
        self._for_excel = marked and first
        self._separator = marked[1] if marked else max(_SEPARATORS, key=first.count)
        names = next(self._lines(), (0, list[str]()))[1]
        for place, name in enumerate(names):  # as pandas does
            again = names[:place].count(name)
            self.header.append(f"{name}.{again}" if again else name)

    def __iter__(self) -> Lines:
        for line, row in islice(self._lines(), 1, None):
            yield line, dict(zip(self.header, row, strict=True))

    def _lines(self) -> Iterator[tuple[int, list[str]]]:
        """The header and the rows of a CSV file; spreadsheets write empty rows, which are left out."""
        lines = map(self._keep_line, read_lines(self.file, self._encoding))
        reader = csv.reader(lines, delimiter=self._separator, skipinitialspace=True, strict=True)
        width = 0
        try:
            for row in reader:
                texts = list(map(_clean, row))
                if not any(texts):
                    continue
                width = width or len(row)
                if len(row) < width and not self._line.endswith("\n"):
                    self.cut_line = reader.line_num
                if len(row) > width:
                    problem = "has more fields than the header; quote a path that contains a separator"
                    self.mistakes[reader.line_num] = problem
                else:  # spreadsheets leave out the separators of empty cells at the end
                    yield reader.line_num, [*texts, *[""] * (width - len(row))]
        except csv.Error as error:  # the lines after it cannot be parsed reliably
            self.mistakes[reader.line_num] = f"is not valid CSV ({error}); correct the line"

    def _keep_line(self, line: str) -> str:
        self._line = line
        return "\n" if line == self._for_excel else line


class JsonLines(Table):
    """A file with a JSON object of one image in each line."""

    def __init__(self, file: Path, encoding: str) -> None:
        super().__init__(file)
        self._encoding = encoding
        self.header = list(dict.fromkeys(key for _, record in self._objects() for key in record))

    def __iter__(self) -> Lines:
        for line, record in self._objects():
            cells = dict.fromkeys(self.header, "")
            for name, value in record.items():
                if isinstance(value, list) and len(value) == 1:
                    value = value[0]
                if value is not None:
                    cells[name] = _clean(str(value))
            yield line, cells

    def _objects(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """The JSON object of each line."""
        for number, line in enumerate(read_lines(self.file, self._encoding), 1):
            record = None
            with contextlib.suppress(ValueError, RecursionError):
                record = json.loads(line)
            if isinstance(record, dict) and record:
                yield number, record
            elif line.strip():
                self.mistakes[number] = "is not a JSON object; write one for each image in a line"


class TextList(Table):
    """PaddleViT's lists: a path, which may contain spaces, white space, and a class number, which may lack.

    If the first image has a name in its place (cat.jpg cat), others may have, too. A line that begins with # is a
    comment, but for a name without spaces, such as #1.png.
    """

    def __init__(self, file: Path) -> None:
        super().__init__(file, ("path", "label"))

    @cached_property
    def is_list(self) -> bool:  # type: ignore[override]
        _, first = next(self._lines(), (0, ""))
        return not _NAMED.fullmatch(first)

    def __iter__(self) -> Lines:
        for number, line in self._lines():
            labelled = _LABELLED.fullmatch(line) or (not self.is_list and _NAMED.fullmatch(line))
            path, label = labelled.groups() if labelled else (line, "")
            yield number, {"path": path, "label": label}

    def _lines(self) -> Iterator[tuple[int, str]]:
        """The lines with an image, and their numbers."""
        for number, line in enumerate(map(str.strip, read_lines(self.file)), 1):
            if line and not _COMMENT.match(line):
                yield number, line


def _clean(text: str) -> str:
    return text.strip().strip(_INVISIBLE)
