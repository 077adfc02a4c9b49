"""Console, log files, CSV, TensorBoard, progress bar: what a run leaves besides its weights."""

import csv
import logging
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tqdm import tqdm

from utils.distributed import ProcessContext


class _Console(logging.Handler):
    """Writes above the progress bar, not through it."""

    def emit(self, record: logging.LogRecord) -> None:
        tqdm.write(self.format(record), file=sys.stdout)
        sys.stdout.flush()


class RunLogger:
    """`info` speaks for the run (main process: console and log.txt), `rank` for one rank (log_{rank}.txt).

    Each line in a file starts with the time.
    """

    def __init__(self, folder: Path | None, context: ProcessContext) -> None:
        self._run = _logger("run")
        self._rank = _logger("rank")
        if context.is_main:
            self._run.addHandler(_Console())
        if folder:
            formatter = logging.Formatter("%(asctime)s %(message)s")
            names = {self._rank: f"log_{context.rank}.txt"} | ({self._run: "log.txt"} if context.is_main else {})
            for logger, name in names.items():
                handler = logging.FileHandler(folder / name)
                handler.setFormatter(formatter)
                logger.addHandler(handler)

    def info(self, message: str) -> None:
        self._run.info(message)

    def rank(self, message: str) -> None:
        self._rank.info(message)


def _logger(name: str) -> logging.Logger:
    logger = logging.getLogger(f"ampvit.{name}")
    logger.setLevel(logging.INFO)
    logger.propagate = False
    for handler in logger.handlers:
        handler.close()
    logger.handlers = []
    return logger


class CsvFile:
    """A table that grows by rows. On resuming, rows whose `columns[0]` lies after the checkpoint's are dropped."""

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
        """Returns when the rows have reached the disk."""
        with open(self.path) as file:
            os.fsync(file.fileno())


def read_rows(path: Path) -> list[dict[str, str]]:
    """The whole rows of the file; the torso of a last one, left by a crash, is passed over."""
    with open(path, newline="") as file:
        whole_lines = (line for line in file if line.endswith("\n"))
        return [row for row in csv.DictReader(whole_lines) if None not in row.values()]


def progress_bar(
    title: str, context: ProcessContext, total: int, done: int = 0, unit: str = "step", over: Iterable | None = None
) -> tqdm:
    """A bar on the terminal of the main process, `over` something or moved by hand; nothing where none looks on."""
    shown = context.is_main and sys.stderr.isatty()
    return tqdm(over, title, total, initial=done, unit=unit, leave=False, disable=not shown)
