"""The cache of remote shards on this host, shared by all processes of all runs.

A shard is downloaded into a `.part` file, which its downloader locks, and renamed when it is complete. Parts appear and
disappear only under the lock of the folder. Readers verify a checksum of each sample, so that they find a file that a
power cut has damaged.
"""

import hashlib
import logging
import os
import shutil
import time
from collections.abc import Collection, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import BinaryIO

from datasets.shards.shard import Shard
from datasets.shards.storage.store import ShardStore
from utils.errors import Unavailable, UserError, to_single_line
from utils.files import open_regular_file
from utils.locks import locked
from utils.status import RUN_LOG
from utils.threads import DaemonPool

_FREE_BYTES = 1 << 30  # stay free on the disk of the cache: checkpoints may be on it
_POLL_SECONDS = 0.2
_COMPLETE, _PART = ".tar", ".part"
_THREADS = 4
_RETRY_SECONDS = 5.0  # until a shard is tried again: another process may be downloading it, or there was no room
_PAUSE_SECONDS = 60.0  # after an error of the disk


def cache_folder(cache_dir: str | None) -> Path:
    """Returns the folder of shards and indexes: DATA.CACHE_DIR; its default follows the XDG base directories."""
    return Path(cache_dir or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ampvit")


class ShardCache:
    """Shards of `store` in `folder`/shards, at most `max_bytes` in all. Threads may share it, and it can be pickled."""

    def __init__(self, folder: Path, max_bytes: int, store: ShardStore) -> None:
        self.folder, self.max_bytes, self.store = folder / "shards", max_bytes, store
        self._lock = self.folder / "lock"  # of a process that looks for room, or completes a shard
        self._resume_at = 0.0
        self._has_warned = False

    def open(self, shard: Shard) -> BinaryIO:
        """Opens a shard; raises OSError if it is not in the cache. It stays readable if the cache removes it."""
        file = open_regular_file(self._path(shard))
        with suppress(OSError):
            os.utime(file.fileno())  # the time of its last use
        return file

    def drop(self, shard: Shard) -> None:
        """Removes a damaged file."""
        with suppress(OSError):
            self._path(shard).unlink()

    def download(self, shard: Shard, keep: Collection[Shard] = (), wait: bool = False) -> bool:
        """Downloads a shard that is not in the cache; returns whether it is in the cache now.

        It removes the least recently used shards, but none of `keep`. Returns False if there is no room, the disk
        fails, or another process downloads the shard; with `wait` it waits for this process.

        Raises:
            StoreError: the shard cannot be read from its source.
        """
        while time.monotonic() >= self._resume_at:
            try:
                self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
                with ExitStack() as part_lock:
                    with locked(self._lock):
                        if self._path(shard).exists():
                            return True
                        part = self._reserve(shard, {self._path(other) for other in keep}, part_lock)
                    if part:
                        self._fill(part, shard)
                return part is not None
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

    def _reserve(self, shard: Shard, keep: Collection[Path], part_lock: ExitStack) -> BinaryIO | None:
        """Creates and locks a part as large as the shard, so that others count it; returns None if there is no room.

        Raises BlockingIOError if another process downloads the shard.
        """
        path = self._path(shard).with_suffix(_PART)
        for part in self.folder.glob(f"*{_PART}"):
            with suppress(Unavailable), locked(part, 0.0):
                part.unlink()  # its downloader was killed
        if path.exists():
            raise BlockingIOError
        if not self._make_room(shard.num_bytes, keep):
            return None
        part_lock.enter_context(locked(path))
        reserved = open(path, "r+b")  # noqa: SIM115 - `_fill` closes it
        os.ftruncate(reserved.fileno(), shard.num_bytes)
        return reserved

    def _fill(self, part: BinaryIO, shard: Shard) -> None:
        """Downloads a shard into its part, and renames the part; removes it after an error."""
        with part:
            try:
                for chunk in self.store.stream(shard):
                    part.write(chunk)
                part.flush()
                with locked(self._lock):
                    os.replace(part.name, self._path(shard))
            except BaseException:
                with locked(self._lock):
                    os.unlink(part.name)
                raise

    def _make_room(self, num_bytes: int, keep: Collection[Path]) -> bool:
        """Removes the least recently used files that are not in `keep`, none if that is not enough."""
        files = {path: path.stat() for path in self.folder.iterdir() if path.suffix in (_COMPLETE, _PART)}
        free_bytes = shutil.disk_usage(self.folder).free - _FREE_BYTES
        on_disk = sum(512 * state.st_blocks for state in files.values())  # a part has its full size at once
        max_bytes = min(self.max_bytes, on_disk + free_bytes)
        excess = sum(state.st_size for state in files.values()) + num_bytes - max_bytes
        unused = {path: state for path, state in files.items() if path.suffix == _COMPLETE and path not in keep}
        if excess > sum(state.st_size for state in unused.values()):
            self._warn(
                f"no room for more shards ({max(0, max_bytes) / 1e9:.1f} GB); some samples are read from "
                "their source; raise DATA.CACHE_GB, or free space"
            )
            return False
        for path, state in sorted(unused.items(), key=lambda item: item[1].st_mtime):
            if excess <= 0:
                break
            path.unlink(missing_ok=True)
            excess -= state.st_size
        return True

    def _warn(self, problem: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            warning = f"Warning: the cache of shards in {self.folder}: {to_single_line(problem)}"
            logging.getLogger(RUN_LOG).info(f"----- {warning}", extra={"warning": warning})


class ReadAhead:
    """Downloads the first `ahead` shards of a list into a cache, in threads. It never waits for a download or raises.

    Errors are ignored: a reader of the shard reports them if it cannot read it either.
    """

    def __init__(self, cache: ShardCache, ahead: int) -> None:
        self.cache, self.ahead = cache, ahead
        self._shards: Sequence[Shard] = ()
        self._downloads: dict[Shard, Future[float]] = {}  # the time from which a shard may be downloaded again
        self.pool = DaemonPool(_THREADS)

    def follow(self, shards: Sequence[Shard]) -> None:
        """Starts to download `shards`, which are needed now and later, in this order. Call it before each batch.

        The cache removes none of these shards to make room for another of them. With all shards in use, it fills up,
        and the other shards are read from their source.
        """
        self._shards, wanted = shards, shards[: self.ahead]
        for shard in self._downloads.keys() - set(wanted):
            self._downloads.pop(shard).cancel()
        for shard in wanted:
            download = self._downloads.get(shard)
            if download is None or (download.done() and download.result() <= time.monotonic()):
                self._downloads[shard] = self.pool.submit(self._download, shard)

    def _download(self, shard: Shard) -> float:
        try:
            is_cached = self.cache.download(shard, self._shards)
        except UserError:
            is_cached = False
        return float("inf") if is_cached else time.monotonic() + _RETRY_SECONDS
