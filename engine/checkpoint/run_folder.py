"""The folder of a run: made, recognized, and held by one run at a time."""

import fcntl
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from utils.errors import UserError

_LOCK = ".lock"
_LOCK_SECONDS = 5.0  # a run that was ended a moment ago may still be leaving


def make_run_folder(root: Path, kind: str) -> Path:
    """Makes `root/{kind}-%Y%m%d-%H-%M`, with a number behind it where another run has that name.

    Raises:
        UserError: it cannot be made.
    """
    name = f"{kind}-{time.strftime('%Y%m%d-%H-%M')}"
    for number in range(1, 1000):
        folder = root / (name if number == 1 else f"{name}-{number}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            if root.exists() and not root.is_dir():
                raise UserError(f"SAVE: {root} is a file; give a folder with -output") from None
            continue
        except OSError as error:
            raise UserError(f"SAVE: {root} cannot be written: {error.strerror}; give another with -output") from None
        return folder
    raise UserError(f"SAVE: {root} holds a thousand runs of this minute; give another folder with -output")


def is_run_folder(folder: Path) -> bool:
    return all((folder / name).is_file() for name in ("config.yaml", "log.txt", "metrics.csv"))


@contextmanager
def lock_run_folder(folder: Path) -> Iterator[None]:
    """Holds the folder for this run; the system lets go of it however the process ends.

    Raises:
        UserError: another run holds it.
    """
    with open(folder / _LOCK, "a+") as file:
        if not _locks(file.fileno()):
            file.seek(0)
            holder = file.read().strip()[:200] or "another process"
            raise UserError(f"{folder}: is in use by {holder}; end that run first, or resume from a copy of its folder")
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        file.flush()
        yield


def _locks(descriptor: int) -> bool:
    give_up = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > give_up:
                return False
            time.sleep(0.1)
        except OSError:  # a file system without locks: nothing can be known
            return True
