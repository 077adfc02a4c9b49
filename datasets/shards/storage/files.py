"""The files of a local folder, of a web server, of S3 or GCS: one set of methods.

`RemoteFiles` uses obstore, which reads credentials from its own environment variables (AWS_*, GOOGLE_*). `ShardStore`
repeats failed requests.
"""

import os
from collections.abc import Iterator, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from obstore.store import GCSStore, HTTPStore, S3Store

from datasets.shards.shard import LOCAL_VERSION, Shard
from utils.files import open_regular_file

_LOCAL_CHUNK_BYTES, _REMOTE_CHUNK_BYTES = 1 << 22, 1 << 18
_CONNECT_SECONDS, _READ_SECONDS = 10.0, 30.0  # at most
_COALESCE_BYTES = 1 << 17  # gap of two ranges in one request: a connection reads it in about one latency
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT", "GOOGLE_BASE_URL")


class LocalFiles:
    """Files below the folder `root`. All methods raise OSError."""

    attempt_seconds = 0.0
    can_list = True  # the names of files

    def __init__(self, root: str) -> None:
        self.root = Path(root)

    def list_folder(self, folder: str) -> tuple[list[str], list[str]]:
        """Lists the files and the folders in a folder below the root ('': the root itself)."""
        with os.scandir(self.root / folder) as entries:
            found = [(f"{folder}/{entry.name}" if folder else entry.name, entry) for entry in entries]
            return [name for name, entry in found if entry.is_file()], [name for name, entry in found if entry.is_dir()]

    def head(self, name: str) -> Shard:
        return _local_shard(name, os.stat(self.root / name))

    def open_stream(self, name: str, start: int) -> tuple[Shard, Iterator[bytes]]:
        """Returns the whole file as it is now, and its bytes from `start` on."""
        file = open_regular_file(self.root / name)
        file.seek(start)
        return _local_shard(name, os.fstat(file.fileno())), _chunks(file)


def _local_shard(name: str, state: os.stat_result) -> Shard:
    return Shard(name, state.st_size, f"{LOCAL_VERSION}{state.st_mtime_ns}")


def _chunks(file: BinaryIO) -> Iterator[bytes]:
    with file:
        yield from iter(partial(file.read, _LOCAL_CHUNK_BYTES), b"")


class RemoteFiles:
    """Objects below the URL `root`. All methods raise the errors of obstore.

    A call without an answer fails after `attempt_seconds`, at most a quarter of `timeout_seconds`.
    """

    def __init__(self, root: str, timeout_seconds: float) -> None:
        self.attempt_seconds = min(_READ_SECONDS, timeout_seconds / 4)
        scheme, _, rest = root.partition("://")
        has_plain_endpoint = any(os.environ.get(name, "").startswith("http://") for name in _ENDPOINTS)
        options: dict[str, Any] = {
            "client_options": {
                "connect_timeout": timedelta(seconds=min(_CONNECT_SECONDS, self.attempt_seconds)),
                "read_timeout": timedelta(seconds=self.attempt_seconds),
                "timeout": timedelta(days=1),  # of a whole download; obstore's default is 30 s
                "allow_http": scheme == "http" or (scheme in ("s3", "gs") and has_plain_endpoint),
            },
            "retry_config": {"max_retries": 0, "retry_timeout": timedelta(0)},
        }
        if scheme in ("http", "https"):
            self.store: HTTPStore | S3Store | GCSStore = HTTPStore(root, **options)
        else:
            bucket, _, prefix = rest.partition("/")
            self.store = (S3Store if scheme == "s3" else GCSStore)(bucket, prefix=prefix or None, **options)
        self.can_list = scheme in ("s3", "gs")

    def list_folder(self, folder: str) -> tuple[list[str], list[str]]:
        """Lists the objects and the folders in a folder below the root ('': the root itself)."""
        found = self.store.list_with_delimiter(folder or None)
        return [entry["path"] for entry in found["objects"]], list(found["common_prefixes"])

    def head(self, name: str) -> Shard:
        meta = self.store.head(name)
        return Shard(name, meta["size"], meta["e_tag"])

    def read_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Reads the bytes of each (start, length) at the same time; fewer where the object or the answer ends."""
        starts, lengths = zip(*ranges, strict=True)
        parts = self.store.get_ranges(name, starts=starts, lengths=lengths, coalesce=_COALESCE_BYTES)
        return list(map(bytes, parts))

    def open_stream(self, name: str, start: int) -> tuple[Shard, Iterator[bytes]]:
        """Returns the whole object as it is now, and its bytes from `start` on."""
        result = self.store.get(name, options={"range": {"offset": start}} if start else None)
        found = Shard(name, result.meta["size"], result.meta["e_tag"])
        return found, map(bytes, result.stream(min_chunk_size=_REMOTE_CHUNK_BYTES))
