"""Tables whose columns are in two files (DATA.COLUMNS: join), such as Camtrap DP's media and observations."""

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from configs.schema import Data
from configs.yaml_io import shorten
from datasets.sources.class_names import list_names
from datasets.sources.tables.files import Cells, Table, open_columns, open_table
from utils.errors import UserError
from utils.notes import Note


class JoinedTable(Table):
    """A table with the columns of another one, whose rows have the same value in the column `on`.

    Several rows of the other table are one: the texts in each column, with | between. Rows without one are left out.
    Raises UserError: no row has one, a table lacks the column, or the other table has a mistake.
    """

    def __init__(self, table: Table, other: Table, on: str) -> None:
        super().__init__(table.file, dict.fromkeys([*table.header, *other.header]))
        for one in (table, other):
            if on not in one.header:
                problem = f"has no column {shorten(on)}; it has {list_names(one.header)}"
                raise UserError(f"{one.file}:1: {problem}; correct join in DATA.COLUMNS")
        self._table = table
        self._on = on
        self.mistakes = table.mistakes
        self._others = defaultdict[str, list[Cells]](list)
        for _, cells in other:
            self._others[cells[on]].append(cells)
        for line, problem in other.mistakes.items():
            raise UserError(f"{other.file}:{line}: {problem}")
        keys = [*table.column(on)]
        lost = [key for key in keys if key not in self._others]
        if len(lost) == len(keys):
            raise UserError(f"{other.file}: {shorten(on)} has no value of {table.file}; correct join in DATA.COLUMNS")
        if lost:
            text = f"{table.file}: {len(lost):,} of {len(keys):,} rows are left out, as {other.file} has no row of them"
            self.notes.append(Note("screen", f"{text}, such as {shorten(lost[0])}"))

    def __iter__(self) -> Iterator[tuple[int, Cells]]:
        for line, cells in self._table:
            others = self._others.get(cells[self._on], [])
            merged = {
                name: dict.fromkeys(one[name] for one in others if one[name]) for one in others[:1] for name in one
            }
            if others:
                yield line, {name: "|".join(texts) for name, texts in merged.items()} | cells


def open_for(file: Path, data: Data) -> Table:
    """As `open_table`, with the columns of the table beside it that `join` of DATA.COLUMNS names."""
    table = open_table(file, data.encoding)
    join = data.given_columns.get("join")
    if not join:
        return table
    return JoinedTable(table, open_columns(file.parent / join["file"], data.encoding), join["on"])
