"""Console, log files and progress bar of a run."""

import logging
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from io import TextIOWrapper
from logging.handlers import MemoryHandler
from pathlib import Path
from typing import Any

from tqdm import tqdm

from engine.run.facts import Fact
from engine.run.record import LOG, RunRecord
from utils.distributed import ProcessContext
from utils.errors import escape_control_characters
from utils.files import own_file
from utils.notes import Note
from utils.status import RANK_LOG, RUN_LOG


class _LineFormatter(logging.Formatter):
    """Marks warnings. Escapes control characters, for the console and for files, which users print on a terminal."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        if record.levelno >= logging.WARNING:
            record.message = f"----- Warning: {record.message}"
        return escape_control_characters(super().formatMessage(record))


class _ConsoleHandler(logging.Handler):
    """Writes lines above the progress bar."""

    def emit(self, record: logging.LogRecord) -> None:
        tqdm.write(self.format(record), file=sys.stdout)
        sys.stdout.flush()


class _LogFile(logging.FileHandler):
    """Ignores a disk that is full or gone, for which logging prints a traceback: saving a checkpoint reports it."""

    def _open(self) -> TextIOWrapper:
        return open(self.baseFilename, "a", encoding="utf-8", opener=own_file)

    def handleError(self, record: logging.LogRecord) -> None:
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)

    def close(self) -> None:
        with suppress(OSError):
            super().close()


class _Warnings(logging.Handler):
    """Records warnings, also of modules without a `RunLogger`, such as the cache of shards."""

    def __init__(self, record: RunRecord) -> None:
        super().__init__()
        self._record = record

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.WARNING:
            self._record.add_warning(record.getMessage())


class RunLogger:
    """Writes the log of a run, and records its facts and warnings. Lines in log files start with the time.

    `info`, `fact`, `warn` and `note` log for the run: main process only, to the console and log.txt. `rank` logs to
    log_{rank}.txt of one of several processes. Lines from before the folder is known are kept until it is opened.
    """

    def __init__(self, folder: Path | None, context: ProcessContext) -> None:
        self.record, self.started = RunRecord(context.is_main), time.perf_counter()
        self._run, self._rank = _new_logger(RUN_LOG), _new_logger(RANK_LOG)
        self._files = [(self._rank, f"log_{context.rank}.txt" if context.world_size > 1 else LOG)]
        if context.is_main:
            console = _ConsoleHandler()
            console.setFormatter(_LineFormatter())
            self._run.addHandler(console)
            self._run.addHandler(_Warnings(self.record))
            self._files.append((self._run, LOG))
        else:
            self._run.addHandler(logging.NullHandler())  # without a handler, Python prints warnings
        self._buffers = [MemoryHandler(sys.maxsize, sys.maxsize) for _ in self._files]
        for (logger, _), buffer in zip(self._files, self._buffers, strict=True):
            logger.addHandler(buffer)
        if folder:
            self.open(folder)

    def open(self, folder: Path) -> None:
        """Writes the lines so far, and all later ones, to the files in `folder`."""
        for (logger, name), buffer in zip(self._files, self._buffers, strict=True):
            file = _LogFile(folder / name, encoding="utf-8")
            file.setFormatter(_LineFormatter("%(asctime)s %(message)s"))
            buffer.setTarget(file)
            logger.removeHandler(buffer)
            buffer.close()  # writes its lines to the file
            logger.addHandler(file)

    def info(self, message: str) -> None:
        self._run.info(message)

    def fact(self, fact: Fact) -> None:
        """Records a fact, and logs its line."""
        self.record.add_fact(fact)
        self.info(f"----- {fact}")

    def warn(self, text: str) -> None:
        """Records a problem that does not end the run, and logs it."""
        self._run.warning(text)

    def note(self, note: Note | Fact) -> None:
        """Logs a note; a fact or a warning is recorded."""
        if not isinstance(note, Note):
            self.fact(note)
        elif note.kind == "warning":
            self.warn(note.text)
        else:
            self.info(f"----- {note.text}")

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
    title: str,
    context: ProcessContext,
    total: int,
    unit: str,
    unit_scale: int = 0,
    done: int = 0,
    over: Iterable[Any] | None = None,
) -> "tqdm[Any]":
    """A progress bar around `over`, or updated by the caller; visible on a terminal of the main process only.

    unit_scale: units per step of the bar, such as images; 0 counts steps.
    """
    visible = context.is_main and sys.stderr.isatty()
    return tqdm(
        over, title, total, initial=done, unit=f" {unit}", unit_scale=unit_scale, leave=False, disable=not visible,
        mininterval=1.0, miniters=1, dynamic_ncols=True,
        bar_format="{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}, {rate_noinv_fmt}{postfix}]",
    )  # fmt: skip
