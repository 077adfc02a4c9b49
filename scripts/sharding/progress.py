"""Records the finished shards, so that an interrupted script continues, and refuses other data."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from scripts.sharding.tar import WrittenShard
from utils.errors import UserError
from utils.locks import locked

PROGRESS, _LOCK = "_progress.jsonl", ".lock"


class Progress(NamedTuple):
    """`finished`: the shards by name. The file has the plan in its first line and one more line for each shard."""

    file: BinaryIO
    finished: dict[str, WrittenShard]

    def add(self, line: dict[str, Any]) -> None:
        """Records a shard that is on the disk; raises OSError."""
        self.file.write(json.dumps(line).encode() + b"\n")
        self.file.flush()
        os.fsync(self.file.fileno())


@contextmanager
def open_progress(folder: Path, plan: dict[str, Any]) -> Iterator[Progress]:
    """Creates `folder` or continues it, and locks it until the block ends. `plan`: all that the shards depend on.

    Raises:
        UserError: the folder has other files, or shards of another plan; or another process writes to it.
        OSError: it cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    others = sorted(path.name for path in folder.iterdir() if not path.match(".*"))
    if others and PROGRESS not in others:
        raise UserError(f"{folder}: contains other files ({others[0]}); give another folder with -output")
    lock = locked(folder / _LOCK, 0.0, "wait, or give another -output", is_essential=True)
    with lock, open(folder / PROGRESS, "ab+") as file:
        for path in folder.glob(".*.tmp"):  # of a writer that was killed
            path.unlink()
        file.seek(0)
        # The last part is empty, or a line that a crash left incomplete.
        *lines, incomplete = file.read().split(b"\n")
        file.truncate(file.tell() - len(incomplete))
        try:
            before, *rows = map(json.loads, lines or [json.dumps(plan)])
            finished = {shard.name: shard for shard in (WrittenShard(**row) for row in rows)}
        except (ValueError, TypeError) as error:
            raise UserError(f"{folder / PROGRESS}: is damaged; remove {folder} and start again") from error
        if before != plan:
            raise UserError(
                f"{folder}: contains shards of other data, -shard_mb or -size; give the same, or another -output"
            )
        progress = Progress(file, finished)
        if not lines:
            progress.add(plan)
        yield progress
