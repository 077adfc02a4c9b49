"""User errors: one line on standard error, a non-zero exit status, and a traceback only with `-debug`."""

import difflib
import io
import os
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from utils.signals import Interrupted, raise_on_signals
from utils.status import record_run_end
from utils.streams import repair_standard_streams

_MAX_SHOWN = 20
_VARIABLE = re.compile(r"'[^']*'|[0-9]+")  # in the findings of one kind
_MAX_LINE_CHARS = 1000  # an error may quote text of any length from a file


class UserError(Exception):
    """An error that the user can fix. The message is one line: file or key, problem, remedy."""


class Findings(UserError):
    """Several errors: a headline and one line for each."""


def combine_findings(headline: str, findings: Sequence[str]) -> UserError:
    """An error with the only finding, or with a headline and 20 findings: the first of each kind, then the second, ...

    They keep their order. The kind is the text after the file, without names in quotes and numbers.
    """
    if len(findings) == 1:
        return UserError(findings[0])
    kinds = Counter()
    by_rank = []
    for position, finding in enumerate(findings):
        kind = _VARIABLE.sub("", finding.partition(": ")[2])
        by_rank.append((kinds[kind], position))
        kinds[kind] += 1
    shown = sorted(position for _, position in sorted(by_rank)[:_MAX_SHOWN])
    lines = list(map(to_single_line, [headline, *(findings[position] for position in shown)]))
    if len(findings) > _MAX_SHOWN:
        lines.append(f"... and {len(findings) - _MAX_SHOWN} more")
    return Findings("\n  ".join(lines))


def to_single_line(text: str) -> str:
    """Replaces each run of white space by one space, and the middle of a long text by ' ... '."""
    line = " ".join(text.split())
    half = _MAX_LINE_CHARS // 2
    return line if len(line) <= _MAX_LINE_CHARS else f"{line[:half]} ... {line[-half:]}"


def escape_control_characters(text: str) -> str:
    """Escapes all characters that are not printable, except for line breaks.

    File names may contain invalid UTF-8 or control sequences for the terminal.
    """
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() or character == "\n" else character.encode("unicode_escape").decode()
        for character in text
    )


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """'; did you mean X?' for the known name most similar to `name`, or '' if no name is similar."""
    by_lower = {candidate.lower(): candidate for candidate in known}
    matches = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.6)
    return f"; did you mean {by_lower[matches[0]]}?" if matches else ""


def run_and_report_errors(main: Callable[[list[str]], int], argv: list[str]) -> int:
    """Runs `main(argv)` and returns its exit status. A `UserError` is printed as one line and gives status 1.

    The end of the run is recorded in its status.json.
    """
    repair_standard_streams()
    raise_on_signals()
    threading.excepthook = _report_thread_exception
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # for terminals without UTF-8; the default of stderr
    try:
        return main(argv)
    except UserError as error:
        message = str(error) if isinstance(error, Findings) else to_single_line(str(error))
        record_run_end("failed", message=message)
        if "-debug" in argv or "--debug" in argv:
            raise
        _wait_for_lower_ranks()
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


def _report_thread_exception(error: threading.ExceptHookArgs) -> None:
    """Ignores an OSError, such as a full disk: threads of TensorBoard and this project report it to their callers."""
    if not isinstance(error.exc_value, OSError):
        threading.__excepthook__(error)


def _wait_for_lower_ranks() -> None:
    """Delays higher ranks, so that an error of all ranks is printed once: the launcher terminates the waiting ranks."""
    time.sleep(min(0.5 * _rank(), 3.0))


def _rank() -> int:
    """The rank in the launcher's environment variables; 0 without a launcher. It needs no process group."""
    variables = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
    return int(next((os.environ[name] for name in variables if name in os.environ), 0))
