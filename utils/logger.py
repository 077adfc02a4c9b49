"""Console, log files, CSV, TensorBoard, progress bar: what a run leaves besides its weights."""

import logging
import sys
from collections.abc import Iterable
from pathlib import Path

from tqdm import tqdm

from utils.distributed import ProcessContext
from utils.errors import escape_control_characters


class _Printable(logging.Formatter):
    """On a terminal as in a file, which may be shown on one."""

    def format(self, record: logging.LogRecord) -> str:
        return escape_control_characters(super().format(record))


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
            console = _Console()
            console.setFormatter(_Printable())
            self._run.addHandler(console)
        if folder:
            formatter = _Printable("%(asctime)s %(message)s")
            names = {self._rank: f"log_{context.rank}.txt"} | ({self._run: "log.txt"} if context.is_main else {})
            for logger, name in names.items():
                handler = logging.FileHandler(folder / name, encoding="utf-8")
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


def progress_bar(
    title: str, context: ProcessContext, total: int, done: int = 0, unit: str = "step", over: Iterable | None = None
) -> tqdm:
    """A bar on the terminal of the main process, `over` something or moved by hand; nothing where none looks on."""
    shown = context.is_main and sys.stderr.isatty()
    return tqdm(over, title, total, initial=done, unit=unit, leave=False, disable=not shown)
