"""Tables: CSV, workbooks, Markdown, and text for a terminal."""

import csv
import io
import math
import re
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from tqdm.utils import disp_len

from utils.errors import on_one_line, shortened

_FORMULA = ("=", "+", "-", "@")
_NUMBER = re.compile(r"[+-]([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?", re.IGNORECASE)


def read_csv_rows(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file that have a cell for each column; a crash leaves the last one incomplete."""
    with open(path, newline="", encoding="utf-8") as file:
        complete_lines = (line for line in file if line.endswith("\n"))
        return [row for row in csv.DictReader(complete_lines) if None not in (*row, *row.values())]


def to_float(text: str | float | None) -> float | None:
    """The finite number in a cell of a table; None if there is none."""
    with suppress(TypeError, ValueError, OverflowError):
        value = float(text)  # type: ignore[arg-type]  # None is a TypeError
        if math.isfinite(value):
            return value
    return None


def safe_cell(value: object) -> str:
    """A cell with text from outside, such as a file name: on one line, and never a formula of a spreadsheet.

    A text that begins with a character of `_FORMULA` gets an apostrophe in front, which spreadsheets do not show
    (OWASP, CSV injection), unless it is a number. Control characters, line breaks and invalid UTF-8 are escaped.
    """
    text = on_one_line(value)
    is_formula = text.startswith(_FORMULA) and not _NUMBER.fullmatch(text)
    return f"'{text}" if is_formula else text


def unescaped_cell(cell: str) -> str:
    """Reverses `safe_cell`: removes the apostrophe in front of a character of `_FORMULA`."""
    return cell[1:] if cell.startswith("'") and cell[1:].startswith(_FORMULA) else cell


def table_text(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A CSV file."""
    lines = io.StringIO()
    csv.writer(lines, lineterminator="\n").writerows([header, *rows])
    return lines.getvalue()


MAX_ROWS = 2**20  # of a sheet of Excel


def write_workbook(file: IO[bytes], rows: Iterable[Sequence[str]], number_columns: Collection[int]) -> None:
    """Writes the rows, a header first, as .xlsx: of a CSV file Excel reads `0.5` by the language of the system.

    number_columns: whose cells are numbers, or empty.
    """
    import xlsxwriter  # late: few predictions write one

    with xlsxwriter.Workbook(file, {"constant_memory": True, "nan_inf_to_errors": True}) as book:
        sheet = book.add_worksheet("table")
        for number, row in enumerate(rows):
            for column, cell in enumerate(row):
                text = unescaped_cell(cell)
                if number and column in number_columns and text:
                    sheet.write_number(number, column, float(text))
                else:
                    sheet.write_string(number, column, text)


def matrix_text(names: Sequence[str], counts: Iterable[Sequence[int]]) -> str:
    """Returns a confusion matrix as a CSV file: a row per true class, a column per predicted class."""
    cells = [*map(safe_cell, names)]
    return table_text(("true \\ predicted", *cells), ([name, *row] for name, row in zip(cells, counts, strict=True)))


def aligned_table(header: Sequence[str], rows: Iterable[Sequence[str]], max_width: int) -> str:
    """Columns for a terminal, of at most `max_width` characters each; control characters are escaped."""
    lines = [[shortened(on_one_line(cell), max_width) for cell in row] for row in (header, *rows)]
    widths = [max(map(disp_len, column)) for column in zip(*lines, strict=True)]
    padded = (
        "  ".join(cell + " " * (width - disp_len(cell)) for cell, width in zip(line, widths, strict=True))
        for line in lines
    )
    return "\n".join(line.rstrip() for line in padded)


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def format_bytes(number: float) -> str:
    """At least two digits: '0.0042 GB', '3.2 GB', '124 GB'."""
    size = number / 1e9
    return f"{size:.2g} GB" if size < 9.95 else f"{size:,.0f} GB"


def format_duration(seconds: float) -> str:
    """The two largest units: '4.2s', '42s', '7m23s', '10h03m', '12d03h'."""
    if seconds < 9.95:
        return f"{seconds:.1f}s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    minutes, whole = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes}m{whole:02d}s"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours}h{minutes:02d}m"
    return f"{hours // 24}d{hours % 24:02d}h"


def three_digits(value: float) -> str:
    """Three significant digits; large values as whole numbers, without an exponent."""
    return f"{value:.3g}" if value < 999.5 else f"{value:.0f}"
