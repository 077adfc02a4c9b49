"""The folder of a run: its checkpoints (last, previous, best, and the newest periodic ones), how it is created,
recognized, locked by one run at a time and seen by all hosts; its options files.
"""

import os
import re
import secrets
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path

from configs.load import RUN_OPTIONS, flatten, nest
from configs.yaml_io import Values, read_yaml, write_yaml
from utils.distributed import ProcessContext, broadcast_object, gather_objects
from utils.errors import Unavailable, UserError, error_from
from utils.files import atomic_write, link_or_copy, locked, read_json
from utils.notes import STATUS, SWEEP, run_name
from utils.threads import wait_for

FORMAT = 6  # of checkpoints
AVERAGE = "state_dict_ema"  # timm's name of the entry
WEIGHTS = ("model", AVERAGE)  # the entries whose values must be finite
FILE = ".pth"
LAST = "last.pth"
PREVIOUS = "previous.pth"
BEST = "best.pth"
_EPOCH = "epoch-"  # begins the names of periodic checkpoints
_TEMPORARY = re.compile(r"\..+\.\d+\.tmp")  # of `temporary_path`
HELD_OUT_FILE = "held_out.json"


def checkpoints_by_progress(folder: Path) -> list[Path]:
    """The checkpoints of a folder, the furthest first. The order is one of names: copying may change file times."""
    paths = (folder / LAST, folder / PREVIOUS, *_periodic(folder), folder / BEST)
    return [path for path in paths if path.is_file()]


def _periodic(folder: Path) -> list[Path]:
    """The last epoch first."""
    found = {path: path.stem.removeprefix(_EPOCH) for path in folder.glob(f"{_EPOCH}*{FILE}")}
    epochs = {path: int(number) for path, number in found.items() if number.isdecimal()}
    return sorted(epochs, key=lambda path: (epochs[path], path.name), reverse=True)


def modified_time(path: Path) -> int:
    """The time in nanoseconds."""
    try:
        return path.stat().st_mtime_ns
    except OSError:  # deleted by another process
        return 0


def remove_temporary(folder: Path, below: bool = True) -> None:
    """Removes the temporary files of a killed process, on any host. The caller has locked the folder.

    Weights of other names, such as an average, are written without the lock. Runs below the folder keep their files.
    below: also in its folders.
    """
    own = tuple(f".{name}" for name in (LAST, PREVIOUS, BEST, _EPOCH))
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if below and not Path(place, name, STATUS).exists()]
        for name in names:
            if _TEMPORARY.fullmatch(name) and (FILE not in name or name.startswith(own)):
                Path(place, name).unlink(missing_ok=True)


def link_copies(last: Path, is_best: bool, periodic_name: str | None, keep: int) -> None:
    """Links the checkpoint `last` as the best one and as a periodic one; keeps `keep` periodic ones.

    They are this one and the ones of the last epochs: copying and a clock that goes back change the times of files.
    """
    if is_best:
        link_or_copy(last, last.with_name(BEST))
    if periodic_name and keep:
        newest = last.with_stem(periodic_name)
        link_or_copy(last, newest)
        others = [path for path in _periodic(last.parent) if path != newest]
        for path in others[keep - 1 :]:
            path.unlink(missing_ok=True)


_LOCK = ".lock"
_LOCK_SECONDS = 5.0  # a run that was just stopped may need this time to exit


def check_writable(folder: Path, fix: str = "choose another folder with -output") -> None:
    """Raises a UserError if the folder, or the nearest one above it that exists, is not writable."""
    existing = folder
    while not existing.exists():
        existing = existing.parent
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        raise Unavailable(f"{folder}: is not writable: a read-only or protected folder, or a file; {fix}")


def make_run_folder(root: Path, name: str) -> Path:
    """Creates `root/{name}-%Y%m%d-%H-%M`; appends a number if that name is taken.

    Raises UserError: the folder cannot be created.
    """
    name = f"{name}-{time.strftime('%Y%m%d-%H-%M')}"
    number = 1
    while True:
        folder = root / (name if number == 1 else f"{name}-{number}")
        try:
            folder.mkdir(parents=True)
            return folder
        except OSError as error:
            if not folder.exists():
                raise error_from(
                    error, f"SAVE: {root} is not writable: {error.strerror}; choose another folder with -output"
                ) from None
            number += 1


def decided_run(sweep: Path, name: str | None) -> Path | None:
    """The folder of a run of the sweep with the epochs of the run `name`: they have one speed. None: `name` decides."""
    speeds = read_json(sweep / SWEEP)
    runs = (path.parent for path in sorted(sweep.glob(f"*/{RUN_OPTIONS}")))
    return next((run for run in runs if name in speeds and speeds.get(run_name(run)) == speeds[name]), None)


RECORDS = ("log.txt", "run.json", "metrics.jsonl", "metrics.csv")  # of a run, beside its options


def is_run_folder(folder: Path) -> bool:
    """Returns whether the folder has checkpoints and a record of their run.

    A copy of a checkpoint, alone or with the options of its run, is none, and neither is an export.
    """
    has_record = any((folder / name).exists() for name in (*RECORDS, STATUS, _LOCK))
    return has_record and bool(checkpoints_by_progress(folder))


_VISIBLE_SECONDS = 3.0  # a network file system shows a new file to other hosts within this time


def check_shared(folder: Path, context: ProcessContext) -> None:
    """Checks that one rank of each host sees a file that rank 0 creates in the folder. A collective call.

    The file has a random name: a folder of the same name on the disk of another host does not pass. Raises UserError on
    all ranks.
    """
    if context.is_one_host:
        return
    own = folder / f".shared-{secrets.token_hex(8)}.tmp"
    try:
        if context.is_main:
            own.touch()
        fix = "choose a folder on a disk that all hosts share with -output"
        _check_hosts(broadcast_object(own, context).exists, f"SAVE: {os.path.abspath(folder)}", fix, context)
    finally:
        if context.is_main:
            own.unlink(missing_ok=True)


def check_same_checkpoint(path: Path, context: ProcessContext) -> None:
    """Checks that one rank of each host sees the checkpoint of rank 0, by its size. A collective call.

    Writes nothing: the folder of an evaluated run may be read-only. Raises UserError on all ranks.
    """
    if context.is_one_host:
        return
    size = None
    with suppress(OSError):  # reading the checkpoint reports it
        size = _size(path) if context.is_main else None
    if (size := broadcast_object(size, context)) is not None:
        fix = "put it on a disk that all hosts share"
        _check_hosts(lambda: _size(path) == size, os.path.abspath(path), fix, context)


def _size(file: Path) -> int:
    """The size of a file. Opening it first makes a network file system ask its server instead of its cache."""
    with open(file, "rb") as opened:
        return os.fstat(opened.fileno()).st_size


def _check_hosts(is_visible: Callable[[], bool], subject: str, fix: str, context: ProcessContext) -> None:
    """Raises UserError on all ranks, with the hosts on which the condition stays false."""
    looks = context.local_rank == 0 or context.is_counted
    sees = gather_objects(not looks or wait_for(is_visible, _VISIBLE_SECONDS), context)
    if blind := list(dict.fromkeys(host for host, seen in zip(context.hosts, sees, strict=True) if not seen)):
        hosts = f"{' and '.join(blind)} {'does' if len(blind) == 1 else 'do'}"
        raise Unavailable(f"{subject}: {hosts} not see this path of {context.hosts[0]}, the host of rank 0; {fix}")


def write_run_options(folder: Path, text: str, steps_done: int) -> None:
    """Writes the options file of a run. Earlier options are kept with the number of steps that were trained with them.

    A file that was kept at the same step stays: no step was trained with the later options.
    """
    current = folder / RUN_OPTIONS
    kept = folder / f"config-step-{steps_done:06d}.yaml"
    if current.is_file() and current.read_text(encoding="utf-8") != text and not kept.exists():
        link_or_copy(current, kept)
    atomic_write(current, text)


def change_run_options(folder: Path, changes: Values) -> None:
    """Changes values by dotted key in the options file of a run; on a full disk saving a checkpoint reports it."""
    file = folder / RUN_OPTIONS
    with suppress(OSError, UserError):
        options = dict(flatten(read_yaml(file)))
        atomic_write(file, write_yaml(nest(options | changes)))


def lock_run_folder(folder: Path) -> AbstractContextManager[bool]:
    """Locks the folder for this run, until the block or the process ends; see `locked`.

    Raises UserError: another run has locked it.
    """
    fix = "stop that run first, or resume from a copy of its folder"
    return locked(folder / _LOCK, _LOCK_SECONDS, fix)
