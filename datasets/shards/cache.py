"""The cache of remote shards on this host, shared by all processes of all runs.

A shard is downloaded into a `.part` file, which its downloader locks, and renamed when it is complete. Parts appear and
disappear only under the lock of the folder. Readers verify a checksum of each sample, so that they find a file that a
power cut has damaged.
"""

import hashlib
import logging
import math
import os
import shutil
import time
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import BinaryIO

import numpy as np

from datasets.batch import PADDING
from datasets.loading.sampler import EvalSampler, Key, ShardWindows, TrainSampler
from datasets.shards.index import Shard
from datasets.shards.store import ShardStore
from utils.errors import Unavailable, UserError, to_single_line
from utils.files import open_regular_file, own_file
from utils.locks import locked
from utils.status import RUN_LOG
from utils.threads import DaemonPool, wait_for

_FREE_BYTES = 1 << 30  # stay free on the disk of the cache: checkpoints may be on it
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

    def download(self, shard: Shard, keep: Collection[Shard] = (), wait_seconds: float = 0.0) -> bool:
        """Downloads a shard that is not in the cache; returns whether it is in the cache now.

        It removes the least recently used shards, but none of `keep`. Returns False if there is no room, the disk
        fails, or another process still downloads the shard after `wait_seconds`. Raises the errors of the store.
        """
        wait_for(lambda: self._try_download(shard, keep), wait_seconds)
        return self._path(shard).exists()

    def _try_download(self, shard: Shard, keep: Collection[Shard]) -> bool:
        """Returns False if another process downloads the shard; else True, even after an error."""
        if time.monotonic() < self._resume_at:
            return True
        path = self._path(shard)
        part = path.with_suffix(_PART)
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            with ExitStack() as part_lock:
                with locked(self._lock):
                    for other in self.folder.glob(f"*{_PART}"):
                        with suppress(Unavailable), locked(other, 0.0):
                            other.unlink()  # its downloader was killed
                    if part.exists():
                        return False
                    if path.exists() or not self._make_room(shard.num_bytes, {self._path(other) for other in keep}):
                        return True
                    part_lock.enter_context(locked(part))
                    os.truncate(part, shard.num_bytes)  # others count it
                self._fill(part, shard)
        except OSError as error:
            self._resume_at = time.monotonic() + _PAUSE_SECONDS
            self._warn(f"{error.strerror}; samples are read from their source")
        return True

    def _path(self, shard: Shard) -> Path:
        key = "\n".join([self.store.url(shard.name), str(shard.num_bytes), shard.version or ""])
        return self.folder / (hashlib.sha256(key.encode()).hexdigest()[:32] + _COMPLETE)

    def _fill(self, part: Path, shard: Shard) -> None:
        """Downloads a shard into its part, and renames the part; removes it after an error."""
        is_complete = False
        try:
            with open(part, "r+b", opener=own_file) as file:
                file.writelines(self.store.stream(shard))
            is_complete = True
        finally:
            with locked(self._lock):
                os.replace(part, self._path(shard)) if is_complete else os.unlink(part)

    def _make_room(self, num_bytes: int, keep: Collection[Path]) -> bool:
        """Removes the least recently used files that are not in `keep`, none if that is not enough."""
        files = {path: path.stat() for path in self.folder.iterdir() if path.suffix in (_COMPLETE, _PART)}
        free_bytes = shutil.disk_usage(self.folder).free - _FREE_BYTES
        on_disk = sum(512 * state.st_blocks for state in files.values())  # a part has its full size at once
        max_bytes = min(self.max_bytes, on_disk + free_bytes)
        excess = sum(state.st_size for state in files.values()) + num_bytes - max_bytes
        unused = {path: state for path, state in files.items() if path.suffix == _COMPLETE and path not in keep}
        if excess > sum(state.st_size for state in unused.values()):
            effect = "some samples are read from their source; raise DATA.CACHE_GB, or free space"
            self._warn(f"no room for more shards ({max(0, max_bytes) / 1e9:.1f} GB); {effect}")
            return False
        for path in sorted(unused, key=lambda path: unused[path].st_mtime):
            if excess > 0:
                path.unlink(missing_ok=True)
                excess -= unused[path].st_size
        return True

    def _warn(self, problem: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            warning = f"Warning: the cache of shards in {self.folder}: {to_single_line(problem)}"
            logging.getLogger(RUN_LOG).info(f"----- {warning}", extra={"warning": warning})


class ReadAhead:
    """The batches of a sampler. Before each one, threads begin to download its shards and the next ones into a cache.

    Batches never wait for a download. Errors are ignored: a reader of the shard reports them if it cannot read it
    either. The cache removes none of the coming shards to make room for another of them. With all shards in use, it
    fills up, and the other shards are read from their source.

    shards, windows: of `TarSamples`.
    """

    def __init__(
        self, cache: ShardCache, shards: Sequence[Shard], windows: ShardWindows, sampler: TrainSampler | EvalSampler
    ) -> None:
        self._cache, self._shards, self._windows, self._sampler = cache, shards, windows, sampler
        self._coming: list[Shard] = []  # shared with the threads
        self._downloads: dict[Shard, Future[float]] = {}  # the time from which a shard may be downloaded again
        self._pool = DaemonPool(_THREADS)

    def __iter__(self) -> Iterator[list[Key]]:
        for number, keys in enumerate(self._sampler):
            self.follow([self._shards[position] for position in self._positions(number, keys)])
            yield keys

    def _positions(self, number: int, keys: list[Key]) -> Sequence[int]:
        """The shards of the batch `number` and of the next ones, in the order of their use."""
        (epoch, index, _), ends = keys[0], self._windows.ends
        shard = int(np.searchsorted(ends, index, side="right"))
        if isinstance(self._sampler, EvalSampler):
            return range(shard if index != PADDING else len(ends), len(ends))
        if self._sampler.windows:
            return self._sampler.windows.shards_from(self._sampler.seed, epoch, shard, self._sampler.num_epochs)
        return np.roll(range(len(ends)), -number).tolist()  # all are in use, one after the other first

    def follow(self, shards: list[Shard]) -> None:
        """Begins to download the first of `shards`, which are needed in this order."""
        self._coming[:], wanted = shards, shards[: 2 * self._windows.size]
        for shard in self._downloads.keys() - set(wanted):
            self._downloads.pop(shard).cancel()
        for shard in wanted:
            download = self._downloads.get(shard)
            if download is None or (download.done() and download.result() <= time.monotonic()):
                self._downloads[shard] = self._pool.submit(_download, self._cache, shard, self._coming)


def _download(cache: ShardCache, shard: Shard, keep: Collection[Shard]) -> float:
    with suppress(UserError):
        if cache.download(shard, list(keep)):
            return math.inf
    return time.monotonic() + _RETRY_SECONDS
