"""Tables whose column of paths is two columns, and Camera Trap Data Packages (Camtrap DP), which are two tables."""

import re
from pathlib import Path

from configs.schema import Data
from datasets.sources.tables.files import Lines, Table, open_table, read_lines

TWO_TABLES = "docs/data.md#joined-tables makes one table"


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
