"""Console, log files and progress bar of a run."""

import logging
import sys
from collections.abc import Iterable
from contextlib import suppress
from logging.handlers import MemoryHandler
from pathlib import Path

from tqdm import tqdm

from utils.distributed import ProcessContext
from utils.errors import escape_control_characters
from utils.status import RANK_LOG


class _EscapingFormatter(logging.Formatter):
    """Escapes control characters, for the console and for files, which users print on a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        return escape_control_characters(super().format(record))


class _ConsoleHandler(logging.Handler):
    """Writes lines above the progress bar."""

    def emit(self, record: logging.LogRecord) -> None:
        tqdm.write(self.format(record), file=sys.stdout)
        sys.stdout.flush()


class _LogFile(logging.FileHandler):
    """Ignores a disk that is full or gone, for which logging prints a traceback: saving a checkpoint reports it."""

    def handleError(self, record: logging.LogRecord) -> None:
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)

    def close(self) -> None:
        with suppress(OSError):
            super().close()


class RunLogger:
    """`info` logs for the run: main process only, to the console and log.txt. `rank` logs to log_{rank}.txt.

    Lines in files start with the time. Lines from before the folder is known are kept, and written when it is opened.
    """

    def __init__(self, folder: Path | None, context: ProcessContext) -> None:
        self._run = _new_logger("ampvit.run")
        self._rank = _new_logger(RANK_LOG)
        if context.is_main:
            console = _ConsoleHandler()
            console.setFormatter(_EscapingFormatter())
            self._run.addHandler(console)
        files = [(self._rank, f"log_{context.rank}.txt")] + [(self._run, "log.txt")] * context.is_main
        self._buffers = [(logger, name, MemoryHandler(sys.maxsize, sys.maxsize)) for logger, name in files]
        for logger, _, buffer in self._buffers:
            logger.addHandler(buffer)
        if folder:
            self.open(folder)

    def open(self, folder: Path) -> None:
        """Writes the lines so far, and all later ones, to the log files in `folder`."""
        for logger, name, buffer in self._buffers:
            file = _LogFile(folder / name, encoding="utf-8")
            file.setFormatter(_EscapingFormatter("%(asctime)s %(message)s"))
            buffer.setTarget(file)
            logger.removeHandler(buffer)
            buffer.close()  # writes its lines to the file
            logger.addHandler(file)
        self._buffers = []

    def info(self, message: str) -> None:
        self._run.info(message)

    def rank(self, message: str) -> None:
        self._rank.info(message)


def _new_logger(name: str) -> logging.Logger:
    """The logger of that name, without the handlers of an earlier run in this process."""
    logger = logging.getLogger(name)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    for handler in logger.handlers:
        handler.close()
    logger.handlers = []
    return logger


def progress_bar(
    title: str, context: ProcessContext, total: int, done: int = 0, unit: str = "step", over: Iterable | None = None
) -> tqdm:
    """A progress bar around `over`, or updated by the caller; visible on a terminal of the main process only.

    It has no rate, which would repeat images/s. tqdm draws it in ASCII if the terminal cannot encode UTF-8.
    """
    visible = context.is_main and sys.stderr.isatty()
    return tqdm(
        over, title, total, initial=done, unit=unit, leave=False, disable=not visible, miniters=1, dynamic_ncols=True,
        bar_format="{l_bar}{bar}| {n_fmt}/{total_fmt} {unit} [{elapsed}<{remaining}{postfix}]",
    )  # fmt: skip
