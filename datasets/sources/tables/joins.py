"""Tables whose column of paths is two columns, and data of two tables: labels and splits, Camera Trap Data Packages."""

import os
import re
from contextlib import suppress
from itertools import chain, islice, zip_longest
from pathlib import Path

from configs.schema import Data
from datasets.sources.listing import paths_in
from datasets.sources.path_words import SPLIT_NAMES, SPLIT_WORDS, split_of, word_in
from datasets.sources.question import Question, on_all_rows
from datasets.sources.samples import ImageFiles, spread
from datasets.sources.tables.files import Lines, Table, open_table, read_lines
from datasets.sources.tables.places import mend
from utils.errors import UserError
from utils.notes import Note

TWO_TABLES = "docs/data.md#joined-tables makes one table"
_MAX_LINES = 1000  # of a file beside a table
_FEWEST = 10  # images that it names, of a longer one
_OF_SPLITS = re.compile(r"(?i)[\w ]*(split|partition)[\w ]*")


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
    eval_partition.csv. More than 20 files are of images. listing: of the table.
    """
    names = listing.paths
    words = {split_of(os.path.basename(names[index])) for index in spread(len(names), _MAX_LINES)}
    if None not in words and len(words) > 1:
        problem = "its images are of splits by their names"
        fix = "write the split of each row (train, val, test) into a column split"
        table.doubt = Question(f"{table.file}: {problem}; {fix}; or ", [on_all_rows(data)])
    root = table.file.parent
    found = [file for folder in (root, *paths_in(root, "*/")) for file in paths_in(folder, "*.[ct][sx][vt]")]
    lists = {file for file in found if word_in(file.stem) in SPLIT_NAMES}
    files = [file for file in found if file != table.file and (file in lists or file.suffix != ".txt")]
    stems = set[str]()
    shown = []
    for file in files if len(files) <= 20 else ():
        others, is_table = _columns_beside(file)
        if not (is_table or file in lists):
            continue
        stems = stems or {*map(_stem, names)}
        named = stems.intersection(map(_stem, chain(*others)))
        if not named or len(named) < min(_FEWEST, len(others[0]) - 1):
            continue
        if is_table:
            way = on_all_rows(data, f", without the splits in {file}; {TWO_TABLES} of both")
            table.doubt = Question(f"{table.file}: its images have splits in another table; ", [way])
        else:
            shown.append(str(file))
    fix = "docs/data.md#lists-of-splits-beside-a-table makes a column of them"
    text = f"{table.file}: lists of splits are not read: {', '.join(shown)}; {fix}"
    return [Note("warning", text)] if shown else []


def _columns_beside(file: Path) -> tuple[list[tuple[str, ...]], bool]:
    """The first cells of the columns of a file but those of splits, and whether it has one of these."""
    lines = list[list[str]]()
    with suppress(UserError):  # it cannot be read
        for line in islice(read_lines(file), _MAX_LINES):
            lines.append([cell.strip(' "\n') for cell in re.split(r"[,;|\t]", line)])
    columns = [*zip_longest(*lines, fillvalue="")]
    others = [column for column in columns if not _are_splits(*column)]
    return others, len(others) < len(columns)


def _are_splits(name: str, *values: str) -> bool:
    """Whether a column of a table, or of a part, is of splits by its name, or by the words in it."""
    words = {value.lower() for value in values}
    return _OF_SPLITS.fullmatch(name) is not None or (bool(words) and words <= SPLIT_WORDS.keys())


def _stem(path: str) -> str:
    return os.path.splitext(os.path.basename(mend(path)))[0]
