"""Records the finished shards, so that an interrupted script continues, and refuses other data."""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from scripts.packing.tar import WrittenShard
from utils.errors import UserError

PROGRESS = "_progress.jsonl"


class Progress:
    """`finished`: the shards by name. The file has the plan in its first line and one more line for each shard."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.finished: dict[str, WrittenShard] = {}

    def add(self, shard: WrittenShard) -> None:
        """Records a shard that is on the disk; raises OSError."""
        self.append(shard._asdict())
        self.finished[shard.name] = shard

    def append(self, line: dict[str, Any]) -> None:
        self._file.write(json.dumps(line).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())


@contextmanager
def open_progress(folder: Path, plan: dict[str, Any]) -> Iterator[Progress]:
    """Creates `folder` or continues it, and locks it until the block ends.

    Args:
        plan: all that the shards depend on, as JSON; with the key 'shard_mb'.

    Raises:
        UserError: the folder has other files, or shards of another plan; or another process writes to it.
        OSError: it cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    strangers = sorted(path.name for path in folder.iterdir() if not _is_own(path.name))
    if strangers and not (folder / PROGRESS).exists():
        raise UserError(f"{folder}: contains other files ({strangers[0]}); give another folder with -output")
    with open(folder / PROGRESS, "ab+") as file:
        _lock(file, folder)
        for path in folder.glob(".*.tmp"):  # of a writer that was killed
            path.unlink()
        file.seek(0)
        # The last part is empty, or a line that a crash left incomplete.
        *lines, incomplete = file.read().split(b"\n")
        file.truncate(file.tell() - len(incomplete))
        progress = Progress(file)
        if lines:
            before, shards = _parse(folder, lines)
            _check_plan(folder, before, plan)
            progress.finished = {shard.name: shard for shard in shards}
        else:
            progress.append(plan)
        yield progress


def _is_own(name: str) -> bool:
    return name == PROGRESS or (name.startswith(".") and name.endswith(".tmp"))


def _lock(file: BinaryIO, folder: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise UserError(f"{folder}: another process writes to it; wait, or give another -output") from error
    except OSError:  # the file system does not support locks
        return


def _parse(folder: Path, lines: list[bytes]) -> tuple[dict[str, Any], list[WrittenShard]]:
    try:
        plan, *shards = map(json.loads, lines)
        return plan | {}, [WrittenShard(**shard) for shard in shards]
    except (ValueError, TypeError) as error:
        raise UserError(f"{folder / PROGRESS}: is damaged; remove {folder} and start again") from error


def _check_plan(folder: Path, before: dict[str, Any], plan: dict[str, Any]) -> None:
    if before == plan:
        return
    if before | {"shard_mb": 0} == plan | {"shard_mb": 0}:
        raise UserError(
            f"{folder}: its shards were written with -shard_mb {before['shard_mb']}, not {plan['shard_mb']}; give "
            "the same, or another -output"
        )
    raise UserError(f"{folder}: contains shards of other data; give the same data, or another folder with -output")
