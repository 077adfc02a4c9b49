"""Tables whose column of paths is two columns, and data of two tables: labels and splits, Camera Trap Data Packages."""

import os
import re
from collections.abc import Iterable
from contextlib import suppress
from itertools import chain, zip_longest
from pathlib import Path

from configs.schema import Data
from datasets.sources.listing import files_with, paths_in
from datasets.sources.path_words import SPLIT_NAMES, any_word_in, split_of
from datasets.sources.question import Question, on_all_rows
from datasets.sources.samples import ImageFiles, spread
from datasets.sources.tables.columns import splits_of
from datasets.sources.tables.files import Lines, Table, open_table, read_lines
from datasets.sources.tables.places import mend
from utils.files import open_regular_file
from utils.notes import Note

TWO_TABLES = "docs/data.md#joined-tables makes one table"
_MAX_NAMES = 1000  # whose words are searched
_BESIDE = (".csv", ".tsv", ".json", ".jsonl", ".ndjson", ".txt", ".xlsx", ".xls", ".ods")
_OF_TABLES = re.compile(r"(?i)meta|label|split|partition|anno|list|csv|eval")  # the name of a folder
_MOST = 20  # tables, or folders for them, in a folder: more are of single images
_MAX_SHOWN = 3  # lists
_PART_BYTES = 16384  # four parts of a file
_FEWEST = 10  # images that it names, of a longer one
_OF_SPLITS = re.compile(r"(?i)[\w ]*(split|partition)[\w ]*|sub[-_ ]?set")


class FolderAndName(Table):
    """A table with one more column: the texts of several, as a path. name: of them, RelativePath/File."""

    def __init__(self, table: Table, name: str) -> None:
        super().__init__(table.file, [*table.header, name])
        self._table = table
        self._name = name
        self.mistakes = table.mistakes
        self.notes = table.notes

    def __iter__(self) -> Lines:
        parts = self._name.split("/")
        for line, cells in self._table:
            yield line, cells | {self._name: "/".join(filter(None, map(cells.get, parts)))}


def open_for(file: Path, data: Data) -> Table:
    """As `open_table`, with a column of paths whose parts are in several."""
    table = open_table(file, data.encoding)
    path = data.given_columns.get("path", "")
    if path not in table.header and {*path.split("/")} <= {*table.header}:
        return FolderAndName(table, path)
    return table


def is_camera_package(folder: Path) -> bool:
    """Whether a folder is a Camera Trap Data Package of version 1 (https://camtrap-dp.tdwg.org)."""
    file = folder / "datapackage.json"
    profile = r'"profile"\s*:\s*"[^"]*camtrap-dp/1\.'
    return file.is_file() and re.search(profile, "".join(read_lines(file))) is not None


def check_splits_beside(listing: ImageFiles, table: Table, data: Data) -> list[Note]:
    """A warning about lists of splits beside a table without splits, as test_list.txt.

    Doubts of the table: names with words of splits, train_1.jpg and test_1.jpg; a table of splits of its images, as
    eval_partition.csv. listing: of the table.
    """
    names = listing.paths
    words = {split_of(os.path.basename(names[index])) for index in spread(len(names), _MAX_NAMES)}
    if None not in words and len(words) > 1:
        problem = "its images are of splits by their names"
        fix = "write the split of each row (train, val, test) into a column split"
        table.doubt = Question(f"{table.file}: {problem}; {fix}; or ", [on_all_rows(data)])
    others = [file for file in files_beside(table.file.parent) if file != table.file]
    tables, notes = splits_beside(others, names, table.file, "-beside-a-table")
    if tables:
        way = on_all_rows(data, f", without the splits in {tables[0]}; {TWO_TABLES} of both")
        table.doubt = Question(f"{table.file}: its images have splits in another table; ", [way])
    return notes


def files_beside(root: Path, given: Path | None = None) -> list[Path]:
    """The tables, lists, workbooks and .json files in `root`, in the folders in it, and near it.

    given: DATA_PATH around `root`, and the folders for tables in it, as Data-split/COVID.
    """
    outer = given or root
    near = (Path(os.path.normpath(root / name)) for name in ("", "..", "../meta", "../labels", "../val"))
    of_tables = [folder for folder in paths_in(outer, "[!.]*/") if _OF_TABLES.search(folder.name)]
    inner = chain.from_iterable(paths_in(folder, "[!.]*/")[:_MOST] for folder in of_tables)
    found = list[Path]()
    for folder in dict.fromkeys((*near, *paths_in(root, "[!.]*/"), outer, *of_tables, *inner)):
        with suppress(OSError):
            names = files_with(folder, _BESIDE)
            found += [folder / name for name in names if len(names) <= _MOST]
    return found


def splits_beside(
    files: Iterable[Path], names: Iterable[str], place: Path, page: str = ""
) -> tuple[list[Path], list[Note]]:
    """The tables with a column of splits of images, and a warning about lists of splits.

    names: of the images. page: the end of its name.
    """
    tables = list[Path]()
    lists = list[str]()
    stems = set[str]()
    for file in files:
        others, is_table = _columns_beside(file)
        is_split = "split" in file.stem.lower()
        is_list = any_word_in(file.stem) in SPLIT_NAMES
        if not (is_table or is_list or is_split):
            continue
        stems = stems or {*map(stem_of, names)}
        columns = [{*map(stem_of, column)} for column in others]
        is_named = any(len(stems & column) >= min(_FEWEST, len(column) / 2) for column in columns)
        if is_table and is_named:
            tables.append(file)
        elif is_named or (is_list and is_split):  # perhaps of the numbers of images
            lists.append(str(file))
    text = f"{place}: lists of splits are not read: {', '.join(lists[:_MAX_SHOWN])}"
    fix = f"docs/data.md#lists-of-splits{page} makes a table of them"
    return tables, [Note("warning", f"{text}; {fix}")] if lists else []


def stem_of(path: str) -> str:
    """The name of an image without its ending, from a name or a cell."""
    return os.path.splitext(mend(path.strip()).rpartition("/")[2])[0]


def may_name(file: Path, stems: set[str]) -> bool:
    """Whether a fiftieth of the lines in a part of a table name images: others are not read."""
    text = text_of(file)
    cells = chain(re.split(r"[,;|\"\t\n]", text), text.split())
    return 50 * len(stems.intersection(map(stem_of, cells))) > text.count("\n")


def text_of(file: Path) -> str:
    """The first lines of a file, and of three parts of a large one: the images may be the last ones of a table."""
    text = b""
    with suppress(OSError), open_regular_file(file) as opened:
        text = opened.read(_PART_BYTES)
        size = opened.seek(0, os.SEEK_END)
        for part in (1, 2, 3) if size > _PART_BYTES else ():
            opened.seek(part * (size - _PART_BYTES) // 3)
            lines = opened.read(_PART_BYTES).partition(b"\n")[2]  # without the end of one
            text = text[: text.rfind(b"\n")] + b"\n" + lines
    return text.replace(b"\0", b"").decode("utf-8-sig", "replace")


def _columns_beside(file: Path) -> tuple[list[tuple[str, ...]], bool]:
    """The cells of each column of a file that is not of splits, and whether a column is of splits."""
    rows = list[list[str]]()
    for line in text_of(file).splitlines():
        rows.append([cell.strip(' "{}') for cell in re.split(r"[,;|\t]|\": ?", line)])  # also of JSON
    columns = [*zip_longest(*rows, fillvalue="")]
    others = [column for column in columns if not _are_splits(*column)]
    return others, len(others) < len(columns) and len(rows) > 1


def _are_splits(name: str, *values: str) -> bool:
    """Whether a column of a table, or of a part, is of splits by its name, or by its values."""
    return _OF_SPLITS.fullmatch(name) is not None or bool(splits_of(name, values))
