"""Reads the bytes of shards in a folder, on a web server, in S3 or GCS: the same methods, errors and retries."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import cached_property, partial
from typing import Any, TypeVar

from obstore.exceptions import NotSupportedError, PermissionDeniedError, UnauthenticatedError

from datasets.loading.waits import tell_wait
from datasets.shards.location import is_local
from datasets.shards.shard import Shard
from datasets.shards.storage.files import LocalFiles, RemoteFiles
from datasets.shards.storage.store_errors import STORE_ERRORS, RangesNotSupported, StoreError, changed, describe
from utils.threads import DaemonPool

_T = TypeVar("_T")
_HEAD_THREADS = 32
_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 0.1, 2.0


class ShardStore:
    """Reads files below `root`, a local folder or a URL; threads may share it, and it can be pickled.

    A server that is away for half of `timeout_seconds` does no harm. All methods raise a StoreError that names the
    file or URL, at the latest after `timeout_seconds` without a byte.
    """

    def __init__(self, root: str, timeout_seconds: float) -> None:
        self.root, self.timeout_seconds = root, timeout_seconds
        self.is_local = is_local(root)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.root, self.timeout_seconds)

    @cached_property
    def files(self) -> LocalFiles | RemoteFiles:
        try:
            return LocalFiles(self.root) if self.is_local else RemoteFiles(self.root, self.timeout_seconds)
        except STORE_ERRORS as error:
            problem = describe(error, self.root)
            raise StoreError(f"{self.root}: {problem.text}; {problem.fix}") from None

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
        """Reads the bytes of each range (start, length) of a remote file at the same time.

        Raises:
            StoreError: the file is shorter, or cannot be read.
            RangesNotSupported: the server sends whole files only.
        """
        assert isinstance(self.files, RemoteFiles)
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
            except (FileNotFoundError, PermissionDeniedError, UnauthenticatedError):
                return None
            if found.num_bytes > max_bytes:
                raise StoreError(f"{self.url(name)}: is larger than {max_bytes:,} bytes; check what it is")
            return b"".join(chunks)

        return self._retry(name, read)

    def stream(self, shard: Shard) -> Iterator[bytes]:
        """Yields the bytes of a whole shard in order; raises StoreError if the file is another one."""
        attempts, position = _Attempts(self, shard.name), 0
        while position < shard.num_bytes:
            try:
                skip = 0
                try:
                    found, chunks = self.files.open_stream(shard.name, position)
                except NotSupportedError:  # the server sends whole files only
                    (found, chunks), skip = self.files.open_stream(shard.name, 0), position
                if not found.is_same_as(shard):
                    raise self._changed(shard.name)
                shard = shard._replace(version=shard.version or found.version)
                for chunk in chunks:
                    unread, skip = chunk[skip:], max(0, skip - len(chunk))
                    position += len(unread)
                    if unread:
                        yield unread
                        attempts.restart()
                if position < shard.num_bytes:
                    raise self._changed(shard.name)
            except STORE_ERRORS as error:
                attempts.pause(error)

    def check_unchanged(self, shard: Shard) -> None:
        """Raises StoreError if the file is no longer `shard`. Call it where a checksum does not match."""
        if not self.head([shard.name])[0].is_same_as(shard):
            raise self._changed(shard.name)

    def _changed(self, name: str) -> StoreError:
        text, fix, _ = changed(self.root)
        return StoreError(f"{self.url(name)}: {text}; {fix}")

    def _retry(self, name: str, call: Callable[[], _T]) -> _T:
        attempts = _Attempts(self, name)
        while True:
            try:
                return call()
            except STORE_ERRORS as error:
                attempts.pause(error)


class _Attempts:
    """Decides whether a failed call is repeated, and waits before."""

    def __init__(self, store: ShardStore, name: str) -> None:
        self.root, self.url = store.root, store.url(name) if name else store.root
        self.max_seconds = store.timeout_seconds - store.files.attempt_seconds  # until the start of the last call
        self.restart()

    def restart(self) -> None:
        """Begins the time limit again, after progress."""
        self.started, self.pause_seconds = time.monotonic(), _FIRST_PAUSE_SECONDS

    def pause(self, error: Exception) -> None:
        """Returns after a pause, or raises a StoreError."""
        problem = describe(error, self.root)
        if isinstance(error, NotSupportedError):
            raise RangesNotSupported(f"{self.url}: {problem.text}; {problem.fix}") from None
        waited = time.monotonic() - self.started
        if waited + self.pause_seconds > min(problem.retry_seconds, self.max_seconds):
            tried = f", after {waited:.0f} s of attempts" if problem.retry_seconds else ""
            raise StoreError(f"{self.url}: {problem.text}{tried}; {problem.fix}") from None
        tell_wait(f"the run waits for {self.url}: {problem.text}", waited)
        time.sleep(self.pause_seconds)
        self.pause_seconds = min(2 * self.pause_seconds, _MAX_PAUSE_SECONDS)
