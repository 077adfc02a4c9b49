"""The folder of a run: created, recognized, and locked by one run at a time; its options files."""

import os
import time
from contextlib import AbstractContextManager
from pathlib import Path

from configs.reading.option_layers import RUN_OPTIONS
from utils.atomic_file import atomic_write, link_or_copy
from utils.errors import Unavailable, UserError, error_from
from utils.locks import locked

_LOCK = ".lock"
_LOCK_SECONDS = 5.0  # a run that was just stopped may need this time to exit


def check_writable(folder: Path) -> None:
    """Raises a UserError if the folder, or the nearest one above it that exists, is not writable."""
    existing = folder
    while not existing.exists():
        existing = existing.parent
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        reason = "a read-only or protected folder" if existing.is_dir() else "Not a directory"
        raise Unavailable(f"SAVE: {folder} is not writable: {reason}; choose another folder with -output")


def make_run_folder(root: Path, name: str) -> Path:
    """Creates `root/{name}-%Y%m%d-%H-%M`; appends a number if that name is taken.

    Raises:
        UserError: the folder cannot be created.
    """
    name = f"{name}-{time.strftime('%Y%m%d-%H-%M')}"
    for number in range(1, 1000):
        folder = root / (name if number == 1 else f"{name}-{number}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            if root.exists() and not root.is_dir():
                raise Unavailable(f"SAVE: {root} is a file; choose a folder with -output") from None
            continue
        except OSError as error:
            raise error_from(
                error, f"SAVE: {root} is not writable: {error.strerror}; choose another folder with -output"
            ) from None
        return folder
    raise UserError(f"SAVE: {root} already has 999 runs from this minute; choose another folder with -output")


def is_run_folder(folder: Path) -> bool:
    return all((folder / name).is_file() for name in (RUN_OPTIONS, "log.txt", "metrics.csv"))


def write_run_options(folder: Path, text: str, steps_done: int) -> None:
    """Writes the options file of a run. Earlier options are kept with the number of steps that were trained with them.

    A file that was kept at the same step stays: no step was trained with the later options.
    """
    current = folder / RUN_OPTIONS
    kept = folder / f"config-step-{steps_done:06d}.yaml"
    if current.is_file() and current.read_text(encoding="utf-8") != text and not kept.exists():
        link_or_copy(current, kept)
    atomic_write(current, text)


def lock_run_folder(folder: Path) -> AbstractContextManager[None]:
    """Locks the folder for this run, until the block or the process ends.

    Raises:
        UserError: another run has locked it.
    """
    fix = "stop that run first, or resume from a copy of its folder"
    return locked(folder / _LOCK, _LOCK_SECONDS, fix, is_essential=True)
