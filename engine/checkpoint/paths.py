"""The paths of a run's checkpoints. A checkpoint is a file, or, of a sharded run, a folder with parts of all ranks.

A run may be resumed with another strategy. Its saves then replace files by folders, or folders by files.
"""

import os
import shutil
from pathlib import Path

from utils.atomic_file import link_or_copy
from utils.file_formats.checkpoint_folder import MANIFEST, SHARDS, discard_folder, is_checkpoint_folder, link_folder

FILE = ".pth"
LAST, PREVIOUS, BEST = "last.pth", "previous.pth", "best.pth"
_EPOCH = "epoch-"  # begins the names of periodic checkpoints
_OTHER = {FILE: SHARDS, SHARDS: FILE}


def folder_path(file: Path) -> Path:
    """The path of the checkpoint `file` if it is a folder."""
    return file.with_suffix(SHARDS)


def saved_path(file: Path) -> Path:
    """The path of the checkpoint `file`, or of its folder if there is one."""
    return next(filter(is_checkpoint, (folder_path(file), file)), file)


def is_checkpoint(path: Path) -> bool:
    """Returns whether it is a file, or a folder of a checkpoint; it may be damaged."""
    return is_checkpoint_folder(path) if path.suffix == SHARDS else path.is_file()


def checkpoints_by_progress(folder: Path) -> list[Path]:
    """The checkpoints of a folder, the furthest first. The order is one of names: copying may change file times."""
    last, previous, best = ([folder_path(folder / name), folder / name] for name in (LAST, PREVIOUS, BEST))
    return list(filter(is_checkpoint, [*last, *previous, *periodic(folder), *best]))


def periodic(folder: Path) -> list[Path]:
    """The last epoch first."""
    found = {path: path.stem.removeprefix(_EPOCH) for path in folder.glob(f"{_EPOCH}*") if path.suffix in _OTHER}
    epochs = {path: int(number) for path, number in found.items() if number.isdecimal() and is_checkpoint(path)}
    return sorted(epochs, key=lambda path: (epochs[path], path.name), reverse=True)


def modified_time(path: Path) -> int:
    """The time in nanoseconds; for a folder, the time of its manifest."""
    try:
        return (path / MANIFEST if path.suffix == SHARDS else path).stat().st_mtime_ns
    except OSError:  # deleted by another process
        return 0


def remove_checkpoint(path: Path) -> None:
    if path.suffix == SHARDS:
        discard_folder(path)
    else:
        path.unlink(missing_ok=True)


def remove_temporary(folder: Path) -> None:
    """Removes the temporary files of a killed run, on any host: these names are written under the lock only."""
    for name in (LAST, PREVIOUS, BEST, f"{_EPOCH}*{FILE}"):
        for file in folder.glob(f".{name}*.tmp"):
            file.unlink(missing_ok=True)
        for part in folder.glob(f".{folder_path(Path(name))}*.tmp"):
            shutil.rmtree(part, ignore_errors=True)


def replace_other_kind(last: Path) -> None:
    """Makes the `last` of the other kind (file or folder) the previous checkpoint. Call it when `last` was written."""
    previous, before = last.with_stem(Path(PREVIOUS).stem), last.with_suffix(_OTHER[last.suffix])
    other_previous = previous.with_suffix(before.suffix)
    if is_checkpoint(before):
        remove_checkpoint(other_previous)
        os.rename(before, other_previous)
        remove_checkpoint(previous)
    elif is_checkpoint(previous):
        remove_checkpoint(other_previous)


def link_copies(last: Path, is_best: bool, periodic_name: str | None, keep: int) -> None:
    """Links the checkpoint `last` as the best one and as a periodic one; keeps the `keep` newest periodic ones."""
    names = [Path(BEST).stem] if is_best else []
    names += [periodic_name] if periodic_name and keep else []
    for name in names:
        target = last.with_stem(name)
        (link_folder if last.suffix == SHARDS else link_or_copy)(last, target)
        remove_checkpoint(target.with_suffix(_OTHER[last.suffix]))
    if periodic_name and keep:
        for path in sorted(periodic(last.parent), key=modified_time, reverse=True)[keep:]:
            remove_checkpoint(path)
