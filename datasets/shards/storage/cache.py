"""The cache of remote shards on this host, shared by all processes of all runs.

A shard is downloaded once, into a `.part` file that its downloader locks and renames when it is complete. Readers
verify a checksum of each sample, so that a file that a power cut has damaged is found.
"""

import fcntl
import hashlib
import logging
import os
import shutil
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from datasets.shards.shard import Shard
from datasets.shards.storage.store import ShardStore
from utils.errors import to_single_line
from utils.files import open_regular_file
from utils.status import RUN_LOG

_FREE_BYTES = 1 << 30  # stay free on the disk of the cache: checkpoints may be on it
_PAUSE_SECONDS = 60.0  # after an error of the disk
_POLL_SECONDS = 0.2
_COMPLETE, _PART = ".tar", ".part"


def cache_folder(cache_dir: str | None) -> Path:
    """Returns the folder of shards and indexes: DATA.CACHE_DIR; its default follows the XDG base directories."""
    if cache_dir:
        return Path(cache_dir)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ampvit"


class _CachedFile(NamedTuple):
    last_used: float
    path: Path
    num_bytes: int
    disk_bytes: int


class _CompleteError(Exception):
    """The shard is in the cache: another process was faster."""


class ShardCache:
    """Shards of `store` in `folder`/shards, at most `max_bytes` in all. Threads may share it, and it can be pickled."""

    def __init__(self, folder: Path, max_bytes: int, store: ShardStore) -> None:
        self.folder, self.max_bytes, self.store = folder / "shards", max_bytes, store
        self._resume_at = 0.0
        self._has_warned = False

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.folder.parent, self.max_bytes, self.store)

    def descriptor(self, shard: Shard) -> BinaryIO | None:
        """Opens the file of a shard; None if it is not in the cache. It stays readable if the cache removes it."""
        path = self._path(shard)
        try:
            file = open_regular_file(path)
        except OSError:
            return None
        with suppress(OSError):
            os.utime(file.fileno())  # the time of its last use
        if os.fstat(file.fileno()).st_size == shard.num_bytes:
            return file
        file.close()
        self.drop(shard)
        return None

    def drop(self, shard: Shard) -> None:
        """Removes a damaged file."""
        with suppress(OSError):
            self._path(shard).unlink(missing_ok=True)

    def download(
        self,
        shard: Shard,
        keep: Collection[Shard] = (),
        wait: bool = False,
        is_cancelled: Callable[[], bool] = lambda: False,
    ) -> bool:
        """Downloads a shard that is not in the cache; returns whether it is in the cache now.

        It removes the least recently used shards, but none of `keep`. Returns False if there is no room, the disk
        fails, `is_cancelled` returns True or another process downloads the shard; with `wait` it waits for this
        process.

        Raises:
            StoreError: the shard cannot be read from its source.
        """
        if shard.num_bytes > self.max_bytes:
            self._warn(f"is too small for {self.store.url(shard.name)}; raise DATA.CACHE_GB")
            return False
        while not is_cancelled() and time.monotonic() >= self._resume_at:
            try:
                part = self._reserve(shard, keep)
                return part is not None and self._fill(part, shard, is_cancelled)
            except _CompleteError:
                return True
            except BlockingIOError:
                if not wait:
                    return False
                time.sleep(_POLL_SECONDS)
            except OSError as error:
                self._resume_at = time.monotonic() + _PAUSE_SECONDS
                self._warn(f"{error.strerror}; samples are read from their source")
        return False

    def _path(self, shard: Shard) -> Path:
        key = "\n".join([self.store.url(shard.name), str(shard.num_bytes), shard.version or ""])
        return self.folder / (hashlib.sha256(key.encode()).hexdigest()[:32] + _COMPLETE)

    def _reserve(self, shard: Shard, keep: Collection[Shard]) -> BinaryIO | None:
        """Locks a file as large as the shard, so that others count it; returns None if there is no room.

        Raises _CompleteError if the shard is there, BlockingIOError if another process downloads it.
        """
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = self._path(shard).with_suffix(_PART)
        with self._locked():
            if self._path(shard).exists():
                raise _CompleteError
            part, has_room = _lock(path, os.O_CREAT), False
            try:
                os.ftruncate(part.fileno(), 0)  # a killed downloader has left it
                if self._make_room(shard.num_bytes, {self._path(other) for other in keep}):
                    os.ftruncate(part.fileno(), shard.num_bytes)
                    has_room = True
            finally:
                if not has_room:
                    _remove(part, path)
            return part if has_room else None

    def _fill(self, part: BinaryIO, shard: Shard, is_cancelled: Callable[[], bool]) -> bool:
        """Downloads into a file that `_reserve` has made, and renames it; returns False if it is cancelled."""
        path = self._path(shard).with_suffix(_PART)
        try:
            for chunk in self.store.stream(shard):
                if is_cancelled():
                    break
                part.write(chunk)
            part.flush()
            if is_complete := part.tell() == shard.num_bytes:
                with self._locked():  # no process counts it twice, or not at all
                    os.replace(path, self._path(shard))
            return is_complete
        finally:
            _remove(part, path)

    def _make_room(self, num_bytes: int, keep: Collection[Path]) -> bool:
        """Removes the least recently used files that are not in `keep`, none if that is not enough."""
        files = sorted(self._files())
        free_bytes = shutil.disk_usage(self.folder).free - _FREE_BYTES
        max_bytes = min(self.max_bytes, sum(file.disk_bytes for file in files) + free_bytes)
        excess = sum(file.num_bytes for file in files) + num_bytes - max_bytes
        unused = [file for file in files if file.path.suffix == _COMPLETE and file.path not in keep]
        if excess > sum(file.num_bytes for file in unused):
            self._warn(
                f"has no room for more shards ({max(0, max_bytes) / 1e9:.1f} GB); some samples are read from "
                "their source; raise DATA.CACHE_GB, or free space"
            )
            return False
        while excess > 0:
            file = unused.pop(0)
            file.path.unlink(missing_ok=True)
            excess -= file.num_bytes
        return True

    def _files(self) -> Iterator[_CachedFile]:
        """Yields all files of the cache; removes the parts that killed downloaders have left."""
        with os.scandir(self.folder) as entries:
            for entry in entries:
                path = Path(entry.path)
                with suppress(FileNotFoundError):  # it has just been removed
                    if path.suffix == _PART:
                        with suppress(BlockingIOError):
                            _remove(_lock(path), path)
                    if path.suffix in (_COMPLETE, _PART):
                        state = path.stat()
                        yield _CachedFile(state.st_mtime, path, state.st_size, 512 * state.st_blocks)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Lets one process at a time look for room or complete a shard."""
        with open(self.folder / "lock", "ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _warn(self, problem: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            warning = f"Warning: the cache of shards in {self.folder} {to_single_line(problem)}"
            logging.getLogger(RUN_LOG).info(f"----- {warning}", extra={"warning": warning})


def _lock(path: Path, flags: int = 0) -> BinaryIO:
    """Opens a file for writing and locks it; raises BlockingIOError if another downloader has locked it."""
    file = os.fdopen(os.open(path, os.O_RDWR | os.O_CLOEXEC | flags, 0o600), "r+b")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
            raise FileNotFoundError
    except FileNotFoundError:  # its downloader has just removed it
        file.close()
        raise BlockingIOError from None
    except OSError:
        file.close()
        raise
    return file


def _remove(part: BinaryIO, path: Path) -> None:
    """Removes a locked file, unless it has been renamed, and then unlocks it."""
    with suppress(OSError):
        if os.path.samestat(os.fstat(part.fileno()), os.stat(path)):
            path.unlink()
    with suppress(OSError):  # it may fail to write its last bytes
        part.close()
