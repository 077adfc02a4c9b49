"""Results of the programs of this folder, their table, and their file for `run_all.py`."""

import argparse
import json
import re
import sys
import time
import traceback
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from utils.errors import UserError, did_you_mean
from utils.tables import markdown_table


@dataclass
class Result:
    """The result of one test.

    failures: a text for each failed case.
    skipped: the reason for each skipped case.
    """

    name: str
    cases: int
    failures: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0


def measure(name: str, test: Callable[..., Result | None], *arguments: Any) -> Result:
    """Runs a test and measures its time. An exception is a failure; a test without a result is one case."""
    started = time.monotonic()
    try:
        result = test(*arguments) or Result(name, 1)
    except Exception as error:
        traceback.print_exc()
        line = traceback.extract_tb(error.__traceback__)[-1].line
        result = Result(name, 1, [f"{type(error).__name__}: {error} in: {line}"])
    result.name = name
    result.seconds = time.monotonic() - started
    show_progress(f"{name}: {result.cases} cases, {len(result.failures)} failed, {result.seconds:.0f} s")
    return result


def check_names(names: Iterable[str], known: Collection[str]) -> None:
    for name in names:
        if name not in known:
            raise UserError(f"unknown test {name}{did_you_mean(name, known)} (known: {', '.join(known)})")


def show_progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def parser(description: str) -> argparse.ArgumentParser:
    """A parser with the flags of all programs of this folder."""
    made = argparse.ArgumentParser(description=description, allow_abbrev=False)
    made.add_argument("-seed", type=int, default=0, metavar="N", help="of the random choices (default: 0)")
    made.add_argument("-json", type=Path, metavar="FILE", help="also write the results to this file")
    return made


def report(results: Sequence[Result], file: Path | None) -> int:
    """Prints the table, writes the file, and returns the exit status."""
    print(table(results))
    if file:
        file.write_text(json.dumps([asdict(result) for result in results], indent=1) + "\n")
    return 1 if any(result.failures for result in results) else 0


def table(results: Sequence[Result]) -> str:
    rows = []
    for result in results:
        counts = (result.cases, len(result.failures), len(result.skipped), round(result.seconds))
        rows.append([result.name, *(f"{count:,}" for count in counts), _notes(result)])
    return markdown_table(["test", "cases", "failed", "skipped", "seconds", "figures and failures"], rows)


def _notes(result: Result) -> str:
    figures = ", ".join(f"{name} {value}" for name, value in result.figures.items())
    notes = [*([figures] if figures else []), *result.failures, *(f"skipped: {text}" for text in result.skipped)]
    return re.sub(r"\s+", " ", "; ".join(notes)).replace("|", "\\|")
