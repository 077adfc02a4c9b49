"""The names of a run's checkpoints, and their two forms: a file, or the folder of shards of a sharded run.

A run may change its form when it is resumed. A save in one form then replaces the checkpoint in the other.
"""

import os
import shutil
from pathlib import Path

from utils.shard_folder import MANIFEST, SHARDS, discard_folder, is_shard_folder

FILE = ".pth"
LAST, PREVIOUS, BEST = "last.pth", "previous.pth", "best.pth"
_PERIODIC = "epoch-*"


def shards_of(file: Path) -> Path:
    return file.with_suffix(SHARDS)


def is_checkpoint(path: Path) -> bool:
    """Whether it has the form of one; it may be damaged."""
    return is_shard_folder(path) if path.suffix == SHARDS else path.is_file()


def find_form(file: Path) -> Path:
    """Of the two forms of a checkpoint the one that is there; `file` if there is none."""
    return next(filter(is_checkpoint, (shards_of(file), file)), file)


def checkpoints_by_progress(folder: Path) -> list[Path]:
    """The checkpoints of a folder, the furthest first. File times are not used: copying may change them."""
    names = [folder / LAST, folder / PREVIOUS, *periodic(folder), folder / BEST]
    paths = [path for name in names for path in ([name] if name.stem.startswith("epoch-") else [shards_of(name), name])]
    return list(filter(is_checkpoint, paths))


def periodic(folder: Path) -> list[Path]:
    """The last epoch first."""
    found = [path for path in folder.glob(_PERIODIC) if path.suffix in (SHARDS, FILE) and is_checkpoint(path)]
    return sorted(found, key=lambda path: path.name, reverse=True)


def modified_time(path: Path) -> int:
    """Of a folder of shards, that of its manifest."""
    try:
        return (path / MANIFEST if path.suffix == SHARDS else path).stat().st_mtime_ns
    except OSError:  # deleted by another process
        return 0


def remove_checkpoint(path: Path) -> None:
    if path.suffix == SHARDS:
        discard_folder(path)
    else:
        path.unlink(missing_ok=True)


def remove_old(folder: Path, keep: int) -> None:
    """Removes all periodic checkpoints but the `keep` newest."""
    for path in sorted(periodic(folder), key=modified_time, reverse=True)[keep:]:
        remove_checkpoint(path)


def remove_temporary(folder: Path) -> None:
    """Removes the temporary files and folders of a run that was killed while it saved."""
    for file in folder.glob(f".*{FILE}.tmp"):
        file.unlink()
    for part in folder.glob(f".*{SHARDS}*.tmp"):
        shutil.rmtree(part, ignore_errors=True)


def retire_other_form(folder: Path, form: str) -> None:
    """Call it when the last checkpoint was written as `form`: one in the other form becomes the previous one."""
    other = FILE if form == SHARDS else SHARDS
    last, previous = ((folder / name).with_suffix(other) for name in (LAST, PREVIOUS))
    if is_checkpoint(last):
        remove_checkpoint(previous)
        os.rename(last, previous)
        remove_checkpoint(previous.with_suffix(form))
    elif is_checkpoint(previous.with_suffix(form)):
        remove_checkpoint(previous)
