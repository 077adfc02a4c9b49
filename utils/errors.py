"""Errors for people: one line on the terminal, a non-zero exit, a traceback only with `-debug`."""

import difflib
import os
import sys
import time
from collections.abc import Callable, Iterable

from utils.signals import Interrupted, end_at_once
from utils.status import run_ended


class UserError(Exception):
    """Something the user can put right. The message is one line: the file or key, what is wrong, what to do."""


def nearest(name: str, known: Iterable[str]) -> str:
    """'; did you mean X?' for the known name closest to `name`, or an empty string when none is close."""
    by_lower = {candidate.lower(): candidate for candidate in known}
    matches = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.6)
    return f"; did you mean {by_lower[matches[0]]}?" if matches else ""


def exit_status(main: Callable[[list[str]], int], argv: list[str]) -> int:
    """The status `main(argv)` returns; a `UserError` becomes one line on standard error and status 1.

    However it ends, the status.json of its run tells.
    """
    end_at_once()
    try:
        return main(argv)
    except UserError as error:
        run_ended("failed", message=str(error))
        if "-debug" in argv or "--debug" in argv:
            raise
        _let_lower_ranks_speak_first()
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr, flush=True)
        return 1
    except Interrupted as signal:
        run_ended("interrupted", signal=str(signal))
        if _rank() == 0:
            print(f"interrupted by {signal}", file=sys.stderr, flush=True)
        return signal.status
    except Exception as error:
        run_ended("failed", message=f"{type(error).__name__}: {error}")
        raise


def _let_lower_ranks_speak_first() -> None:
    """An error all ranks share is printed once: the launcher ends the others while they wait here."""
    time.sleep(min(0.5 * _rank(), 3.0))


def _rank() -> int:
    """This process's rank, known to its launcher before the processes have met; 0 if it was started plainly."""
    known_as = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
    return int(next((os.environ[name] for name in known_as if name in os.environ), 0))
