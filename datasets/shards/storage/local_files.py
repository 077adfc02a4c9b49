"""The shards in a local folder."""

import os
from collections.abc import Iterator
from pathlib import Path
from stat import S_ISREG
from typing import BinaryIO

from datasets.shards.shard import LOCAL_VERSION, Shard
from utils.files import open_regular_file

_CHUNK_BYTES = 1 << 22


class LocalFiles:
    """Files below `root`. All methods raise OSError."""

    attempt_seconds = 0.0
    can_list = True

    def __init__(self, root: str) -> None:
        self.root = Path(root)

    def list_folder(self, folder: str) -> tuple[list[str], list[str]]:
        """Lists the files and the folders in a folder below the root ('': the root itself)."""
        with os.scandir(self.root / folder) as entries:
            found = [(f"{folder}/{entry.name}" if folder else entry.name, entry) for entry in entries]
            return [name for name, entry in found if entry.is_file()], [name for name, entry in found if entry.is_dir()]

    def head(self, name: str) -> Shard:
        state = os.stat(self.root / name)
        if not S_ISREG(state.st_mode):
            raise OSError(None, "not a file")
        return _shard(name, state)

    def open_stream(self, name: str, start: int) -> tuple[Shard, Iterator[bytes]]:
        """Returns the whole file as it is now, and its bytes from `start` on."""
        file = open_regular_file(self.root / name)
        file.seek(start)
        return _shard(name, os.fstat(file.fileno())), _chunks(file)


def _shard(name: str, state: os.stat_result) -> Shard:
    return Shard(name, state.st_size, f"{LOCAL_VERSION}{state.st_mtime_ns}")


def _chunks(file: BinaryIO) -> Iterator[bytes]:
    with file:
        while chunk := file.read(_CHUNK_BYTES):
            yield chunk
