"""Console, log files and progress bar of a run."""

import logging
import re
import shutil
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from io import TextIOWrapper
from logging.handlers import MemoryHandler
from pathlib import Path
from typing import Any

from tqdm import tqdm

from engine.run.facts import Fact
from engine.run.record import LOG, RunRecord
from utils.distributed import ProcessContext
from utils.errors import escape_control_characters, on_one_line, shortened
from utils.files import own_file, unshared
from utils.notes import RANK_LOG, RUN_LOG, Note

# Levels of the notes for the screen, and of warnings that come first; what is only for the files has DEBUG.
_NOTE = logging.INFO + 5
_MISLEADS = logging.WARNING + 5
# on the screen before the first step, below the recipe: in all, and of them
_MAX_LINES = 7
_MAX_WARNINGS = 3
# that are shown
_MIN_PATH_CHARS = 30
_MIN_PROBLEM_CHARS = 40
_MAX_COLUMNS = 120
_TABLE = "is_table"  # an attribute of log records
_MARK = "----- "  # of lines in the files that are no steps
_OPTION = re.compile(r"\s-[a-z_]+[ =]")  # to type
_ADVICE = re.compile(r"; [^;:]*")  # without examples after it


class _LineFormatter(logging.Formatter):
    """Marks warnings. Escapes control characters, for the console and for files, which users print on a terminal.

    A line break in a name of the data is escaped, too, but the ones of `RunLogger.table` are not.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:
        if record.levelno >= logging.WARNING:
            record.message = f"{_MARK}Warning: {record.message}"
        escape = escape_control_characters if hasattr(record, _TABLE) else on_one_line
        return escape(super().formatMessage(record))


class _Console(logging.Handler):
    """Writes lines above the progress bar; notes and warnings wait for `begin`, and are one line each after it.

    Records warnings, also of modules without a `RunLogger`, such as the cache of shards.
    """

    def __init__(self, record: RunRecord, shows_all: bool) -> None:
        super().__init__(logging.DEBUG if shows_all else logging.INFO)
        self._record = record
        self.setFormatter(_LineFormatter())
        self._waiting: list[tuple[int, str]] | None = []  # levels and lines
        self.has_file = False  # with all lines in full

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.WARNING:
            self._record.add_warning(record.getMessage())
        line = self.format(record).removeprefix(_MARK)
        if record.levelno == logging.INFO:
            self.show(line, is_cut=False)
        elif self._waiting is None:
            self.show(line)
        else:
            self._waiting.append((record.levelno, line))

    def begin(self, lines: Sequence[str]) -> None:
        """Writes lines, and under them the notes and then the warnings so far: few, each cut, if a log file has all."""
        waiting = self._waiting or []
        self._waiting = None
        notes = [*lines, *(line for level, line in waiting if level < logging.WARNING)]
        by_level = sorted(waiting, key=lambda one: -one[0])
        warnings = [line for level, line in by_level if level >= logging.WARNING]
        shown = [*notes, *warnings]
        if self.has_file:
            last = warnings[:_MAX_WARNINGS]
            shown = [*notes[: _MAX_LINES - len(last)], *last]
        if hidden := len(notes) + len(warnings) - len(shown):
            shown[-1] = _fitted(shown[-1], f" (and {hidden} more in {LOG})")
        for line in shown:
            self.show(line, is_cut=self.has_file)

    def show(self, line: str, is_cut: bool = True) -> None:
        tqdm.write(_fitted(line) if is_cut else line, file=sys.stdout)
        sys.stdout.flush()


def _fitted(line: str, end: str = "") -> str:
    """The line in the width of the screen: without the middle of its longest path, then without its last words.

    The advice, which follows the last semicolon, is shown in place of words before it. A line with an option to type
    keeps all words.
    """
    width = min(shutil.get_terminal_size().columns, _MAX_COLUMNS) if sys.stdout.isatty() else _MAX_COLUMNS
    width -= len(end)
    if _OPTION.search(line):
        return line + end
    path = max(re.findall(r"\S*/\S*", line), key=len, default="")
    line = line.replace(path, shortened(path, max(len(path) + width - len(line), _MIN_PATH_CHARS)))
    shown = textwrap.shorten(line, width, placeholder=" ...")
    advice = ["", *_ADVICE.findall(line)][-1]
    if advice not in shown:
        room = max(width - len(advice), _MIN_PROBLEM_CHARS)
        shown = textwrap.shorten(line[: line.rfind(advice)], room, placeholder=" ...") + advice
    return shown + end


class _LogFile(logging.FileHandler):
    """Ignores a disk that is full or gone, for which logging prints a traceback: saving a checkpoint reports it."""

    def _open(self) -> TextIOWrapper:
        return open(unshared(Path(self.baseFilename)), "a", encoding="utf-8", opener=own_file)

    def handleError(self, record: logging.LogRecord) -> None:
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)

    def close(self) -> None:
        with suppress(OSError):
            super().close()


class RunLogger:
    """Writes the log of a run, and records its facts and warnings. Lines in log files start with the time.

    `info`, `log`, `warn` and `note` are for the run, on the main process only: all to log.txt; `info` and some
    notes, see `begin`, to the screen. `rank` logs to log_{rank}.txt of one of several processes. Lines from before the
    folder is known are kept until it is opened. shows_all: prints all notes.
    """

    def __init__(self, context: ProcessContext, shows_all: bool = False) -> None:
        self.record = RunRecord(context.is_main)
        self.started = time.perf_counter()
        self._run = _new_logger(RUN_LOG)
        self._rank = _new_logger(RANK_LOG)
        self._files = [(self._rank, f"log_{context.rank}.txt" if context.world_size > 1 else LOG, _new_buffer())]
        self._console = _Console(self.record, shows_all) if context.is_main else None
        self._run.addHandler(self._console or logging.NullHandler())  # without a handler, Python prints warnings
        self._skipped = Counter[str]()  # images that the run has warned of, by split
        if context.is_main:
            self._files.append((self._run, LOG, _new_buffer()))
        for logger, _, buffer in self._files:
            logger.addHandler(buffer)

    def open(self, folder: Path) -> None:
        """Writes the lines so far, and all later ones, to the files in `folder`."""
        for logger, name, buffer in self._files:
            file = _LogFile(folder / name, encoding="utf-8")
            file.setFormatter(_LineFormatter("%(asctime)s %(message)s"))
            buffer.setTarget(file)
            logger.removeHandler(buffer)
            buffer.close()  # writes its lines to the file
            logger.addHandler(file)
        if self._console:
            self._console.has_file = True

    def announce(self, message: str) -> None:
        """Logs a line, and prints it at once, cut to the width of the screen."""
        self.log(f"{_MARK}{message}")
        if self._console:
            line = textwrap.shorten(_fitted(on_one_line(message)), _MAX_COLUMNS, placeholder=" ...")
            self._console.show(line, is_cut=False)

    def begin(self, *lines: str) -> None:
        """Prints the first lines on the screen: of the run, then a few of its notes for the screen and its warnings.

        Without a log file, all of them. Later ones are printed at once.
        """
        if self._console:
            self._console.begin([*map(on_one_line, lines)])

    def info(self, message: str) -> None:
        """Logs a line, and prints it at once."""
        self._run.info(message)

    def table(self, text: str) -> None:
        """Logs a text of several lines, and prints it at once."""
        self._run.info(text, extra={_TABLE: True})

    def log(self, message: str) -> None:
        """Logs a line, which is not printed."""
        self._run.debug(message)

    def warn(self, text: str) -> None:
        """Records a problem that does not end the run, and logs it."""
        self._run.warning(text)

    def warn_of_skipped(self, images: str, skipped: int, lost: Sequence[str] = ()) -> None:
        """Warns of unreadable images once in a start of the run, and again if there are more.

        images: their split, such as 'training'. lost: classes without a readable one.
        """
        if skipped > self._skipped[images]:
            if lost:
                names = shortened(", ".join(map(repr, lost)), 60)
                self.note(Note("warning", f"Figures leave out {names}: no {images} image can be read", misleads=True))
            self._skipped[images] = skipped
            self.warn(f"Data: unreadable {images} images are skipped: {skipped}, see bad_images_*.csv")

    def note(self, *notes: Note | Fact) -> None:
        """Logs notes and the lines of facts; facts and warnings are recorded."""
        for note in notes:
            if not isinstance(note, Note):
                self.record.add_fact(note)
                self.log(f"{_MARK}{note}")
            elif note.kind == "warning":
                self._run.log(_MISLEADS if note.misleads else logging.WARNING, note.text)
            else:
                self._run.log(_NOTE if note.kind == "screen" else logging.DEBUG, f"{_MARK}{note.text}")

    def rank(self, message: str) -> None:
        self._rank.info(message)


def _new_buffer() -> MemoryHandler:
    """Keeps lines until a file is open."""
    return MemoryHandler(sys.maxsize, sys.maxsize)


def print_waiting_notes() -> None:
    """Prints the notes of a run that ends before its first lines."""
    for handler in logging.getLogger(RUN_LOG).handlers:
        if isinstance(handler, _Console):
            handler.begin(())


def _new_logger(name: str) -> logging.Logger:
    """The logger of that name, without the handlers of an earlier run in this process."""
    logger = logging.getLogger(name)
    logger.setLevel(logging.DEBUG)
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
