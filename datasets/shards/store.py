"""Reads the bytes of shards in a folder, on a web server, in S3 or GCS: the same methods, errors and retries.

The text of a library's error is never shown: it contains the answer of the server, and may contain signed URLs.
"""

import os
import re
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from datasets.shards.index import LOCAL_VERSION, Shard
from datasets.shards.records import chunks_of
from utils.errors import Unavailable
from utils.files import open_regular_file
from utils.system import require
from utils.threads import DaemonPool, tell_wait

if TYPE_CHECKING:
    from datasets.shards.remote import RemoteFiles

_T = TypeVar("_T")
_HEAD_THREADS = 32
_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 0.1, 2.0
SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
CHECK = "check DATA.DATA_PATH"


def is_local(root: str) -> bool:
    return not SCHEME.match(root)


class RangesNotSupported(Unavailable):
    """The server sends whole files only."""


class Problem(NamedTuple):
    """text: the problem; fix: the action of the user; retry_seconds: the time in which another attempt may succeed."""

    text: str
    fix: str
    retry_seconds: float = 0.0
    error: type[Unavailable] = Unavailable


def changed(root: str) -> Problem:
    """A shard of this `root` is another one than its index describes."""
    copy = "" if is_local(root) else " -output index.npz, copy this file to the shards"
    command = f"python scripts/index_shards.py -data_path={shlex.quote(root)}{copy}"
    return Problem("has changed since it was indexed", f"index it again: {command}, then resume")


class LocalFiles:
    """Files below the folder `root`, with the methods of `RemoteFiles` that a folder needs; they raise OSError."""

    attempt_seconds = 0.0
    can_list = True  # the names of files
    errors: tuple[type[Exception], ...] = (OSError, ValueError)  # ValueError: of a name with \0
    missing: tuple[type[Exception], ...] = (FileNotFoundError,)

    def __init__(self, root: str) -> None:
        self.root = Path(root)

    @staticmethod
    def describe(error: Exception) -> Problem:
        if isinstance(error, FileNotFoundError):
            return Problem("does not exist", CHECK)
        if isinstance(error, OSError):
            problem = f"cannot be read ({error.strerror or type(error).__name__})"
            return Problem(problem, "check the disk, then resume")
        return Problem("is not a valid name or URL", CHECK)

    def list_folder(self, folder: str) -> tuple[list[str], list[str]]:
        with os.scandir(self.root / folder) as entries:
            found = [(f"{folder}/{entry.name}" if folder else entry.name, entry) for entry in entries]
            return [name for name, entry in found if entry.is_file()], [name for name, entry in found if entry.is_dir()]

    def head(self, name: str) -> Shard:
        return _local_shard(name, os.stat(self.root / name))

    def open_stream(self, name: str, start: int) -> tuple[Shard, Iterator[bytes]]:
        """Returns the whole file as it is now, and its bytes from `start` on."""
        file = open_regular_file(self.root / name)
        file.seek(start)
        return _local_shard(name, os.fstat(file.fileno())), chunks_of(file)


def _local_shard(name: str, state: os.stat_result) -> Shard:
    return Shard(name, state.st_size, f"{LOCAL_VERSION}{state.st_mtime_ns}")


class ShardStore:
    """Reads files below `root`, a local folder or a URL; threads may share it, and it can be pickled.

    A server that is away for half of `timeout_seconds` does no harm. All methods raise an Unavailable that names the
    file or URL, at the latest after `timeout_seconds` without a byte.
    """

    def __init__(self, root: str, timeout_seconds: float) -> None:
        self.root, self.timeout_seconds = root, timeout_seconds
        self.is_local = is_local(root)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.root, self.timeout_seconds)

    @cached_property
    def files(self) -> "LocalFiles | RemoteFiles":
        if self.is_local:
            return LocalFiles(self.root)
        require("-dataset=tar with a URL", "obstore")
        from datasets.shards.remote import RemoteFiles

        return RemoteFiles(self.root, self.timeout_seconds)

    def url(self, name: str) -> str:
        """Returns the path or URL of a file. It contains no credentials: `parse_location` refuses them."""
        return f"{self.root.rstrip('/')}/{name}"

    def list_folder(self, folder: str = "") -> tuple[list[str], list[str]]:
        """Lists the files and the folders in a folder below the root ('': the root itself), unordered."""
        return self._retry(folder, lambda: self.files.list_folder(folder))

    def head(self, names: Sequence[str]) -> list[Shard]:
        """Returns the size and version of each file, in the order of `names`."""
        head = self.files.head
        with closing(DaemonPool(min(_HEAD_THREADS, len(names)))) as pool:  # after an error, no request begins
            return [answer.result() for answer in [pool.submit(self._retry, n, partial(head, n)) for n in names]]

    def read_many(self, name: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Reads the bytes of each range (start, length) of a remote file; raises RangesNotSupported, too."""
        assert not isinstance(self.files, LocalFiles)
        wanted = [part for part in ranges if part[1]]  # servers refuse empty ranges
        parts = self._retry(name, partial(self.files.read_ranges, name, wanted)) if wanted else []
        if [len(part) for part in parts] != [length for _, length in wanted]:
            raise self._changed(name)
        filled = iter(parts)
        return [next(filled) if length else b"" for _, length in ranges]

    def read_small(self, name: str, max_bytes: int) -> bytes | None:
        """Reads a whole file; None if it does not exist. S3 refuses access to a file that does not exist."""

        def read() -> bytes | None:
            try:
                found, chunks = self.files.open_stream(name, 0)
            except self.files.missing:
                return None
            if found.num_bytes > max_bytes:
                raise Unavailable(f"{self.url(name)}: is larger than {max_bytes:,} bytes; check what it is")
            return b"".join(chunks)

        return self._retry(name, read)

    def stream(self, shard: Shard) -> Iterator[bytes]:
        """Yields the bytes of a whole shard in order; raises Unavailable if the file is another one."""
        position, chunks = 0, None

        def next_chunk() -> bytes:
            nonlocal shard, chunks
            source, chunks = chunks, None  # after an error, the file is opened again
            if source is None:
                found, source = self.files.open_stream(shard.name, position)
                if not found.is_same_as(shard):
                    raise self._changed(shard.name)
                shard = shard._replace(version=shard.version or found.version)
            chunk, chunks = next(source, b""), source
            return chunk

        while position < shard.num_bytes:
            chunk = self._retry(shard.name, next_chunk)
            if not chunk:
                raise self._changed(shard.name)
            position += len(chunk)
            yield chunk

    def check_unchanged(self, shard: Shard) -> None:
        """Raises Unavailable if the file is no longer `shard`. Call it where a checksum does not match."""
        if not self.head([shard.name])[0].is_same_as(shard):
            raise self._changed(shard.name)

    def _changed(self, name: str) -> Unavailable:
        problem = changed(self.root)
        return Unavailable(f"{self.url(name)}: {problem.text}; {problem.fix}")

    def _retry(self, name: str, call: Callable[[], _T]) -> _T:
        """Returns the result of a call, which is repeated after an error that may pass; raises Unavailable."""
        started, pause_seconds = time.monotonic(), _FIRST_PAUSE_SECONDS
        url = self.url(name) if name else self.root
        while True:
            try:
                return call()
            except self.files.errors as error:
                problem, waited = self.files.describe(error), time.monotonic() - started
                until_last_call = self.timeout_seconds - self.files.attempt_seconds
                if waited + pause_seconds > min(problem.retry_seconds, until_last_call):
                    tried = f", after {waited:.0f} s of attempts" if problem.retry_seconds else ""
                    raise problem.error(f"{url}: {problem.text}{tried}; {problem.fix}") from None
            tell_wait(f"the run waits for {url}: {problem.text}", waited)
            time.sleep(pause_seconds)
            pause_seconds = min(2 * pause_seconds, _MAX_PAUSE_SECONDS)
