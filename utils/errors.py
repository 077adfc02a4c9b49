"""Errors for people: a line on the terminal for each, a non-zero exit, a traceback only with `-debug`."""

import difflib
import io
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence

from utils.signals import Interrupted, raise_on_signals
from utils.status import record_run_end

_MOST_SHOWN = 20
_LONGEST_LINE = 1000  # characters: what a file claims may be of any length


class UserError(Exception):
    """Something the user can put right. The message is one line: the file or key, what is wrong, what to do."""


class Findings(UserError):
    """Several things to put right: a headline, and below it a line for each."""


def combine_findings(headline: str, findings: Sequence[str]) -> UserError:
    """One finding speaks for itself; of several the first 20 are listed below the headline."""
    if len(findings) == 1:
        return UserError(findings[0])
    lines = list(map(to_single_line, [headline, *findings[:_MOST_SHOWN]]))
    if len(findings) > _MOST_SHOWN:
        lines.append(f"... and {len(findings) - _MOST_SHOWN} more")
    return Findings("\n  ".join(lines))


def to_single_line(text: str) -> str:
    """The text with its line breaks and runs of white space as single spaces; of a long one both ends."""
    line = " ".join(text.split())
    half = _LONGEST_LINE // 2
    return line if len(line) <= _LONGEST_LINE else f"{line[:half]} ... {line[-half:]}"


def escape_control_characters(text: str) -> str:
    """The text with all that a terminal would not show as a character escaped, but for line breaks.

    A file's name may hold bytes that are no text, or commands to the terminal.
    """
    return "".join(
        character if character.isprintable() or character == "\n" else character.encode("unicode_escape").decode()
        for character in text
    )


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """'; did you mean X?' for the known name closest to `name`, or an empty string when none is close."""
    by_lower = {candidate.lower(): candidate for candidate in known}
    matches = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.6)
    return f"; did you mean {by_lower[matches[0]]}?" if matches else ""


def run_and_report_errors(main: Callable[[list[str]], int], argv: list[str]) -> int:
    """The status `main(argv)` returns; a `UserError` becomes its line on standard error and status 1.

    However it ends, the status.json of its run tells.
    """
    raise_on_signals()
    threading.excepthook = _of_a_thread
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as standard error, where the terminal lacks a letter
    try:
        return main(argv)
    except UserError as error:
        message = str(error) if isinstance(error, Findings) else to_single_line(str(error))
        record_run_end("failed", message=message)
        if "-debug" in argv or "--debug" in argv:
            raise
        _let_lower_ranks_speak_first()
        print(f"error: {escape_control_characters(message)}", file=sys.stderr, flush=True)
        return 1
    except Interrupted as signal:
        record_run_end("interrupted", signal=str(signal))
        if _rank() == 0:
            print(f"interrupted by {signal}", file=sys.stderr, flush=True)
        return signal.status
    except Exception as error:
        record_run_end("failed", message=to_single_line(f"{type(error).__name__}: {error}"))
        raise


def _of_a_thread(error: threading.ExceptHookArgs) -> None:
    """A folder that is gone, a disk that is full: TensorBoard's thread and ours tell their callers as well."""
    if not isinstance(error.exc_value, OSError):
        threading.__excepthook__(error)


def _let_lower_ranks_speak_first() -> None:
    """An error all ranks share is printed once: the launcher ends the others while they wait here."""
    time.sleep(min(0.5 * _rank(), 3.0))


def _rank() -> int:
    """This process's rank, known to its launcher before the processes have met; 0 if it was started plainly."""
    known_as = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
    return int(next((os.environ[name] for name in known_as if name in os.environ), 0))
