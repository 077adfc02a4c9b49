"""Tables: CSV files that grow row by row, and Markdown."""

import csv
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any


class CsvFile:
    """A CSV file to which rows are appended. Its first column is a position in the run: an epoch or a step.

    An existing file is continued: rows up to position `last` are kept, and cells of columns that it lacks are empty.
    """

    def __init__(self, path: Path, columns: list[str], last: int) -> None:
        self.path = path
        self.columns = columns
        rows = read_rows(path) if path.exists() else []
        temporary = path.with_name(f".{path.name}.tmp")
        with open(temporary, "w", newline="") as file:
            writer = csv.DictWriter(file, columns, extrasaction="ignore")
            writer.writeheader()
            writer.writerows(row for row in rows if int(row[columns[0]]) <= last)
        os.replace(temporary, path)

    def append(self, row: dict[str, Any]) -> None:
        with open(self.path, "a", newline="") as file:
            csv.DictWriter(file, self.columns).writerow(row)

    def sync(self) -> None:
        """Returns when the rows are on the disk."""
        with open(self.path) as file:
            os.fsync(file.fileno())


def read_rows(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file, without a last row that a crash left incomplete."""
    with open(path, newline="") as file:
        complete_lines = (line for line in file if line.endswith("\n"))
        return [row for row in csv.DictReader(complete_lines) if None not in row.values()]


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
