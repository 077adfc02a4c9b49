"""Samples in tar shards, read from files of this machine, the cache or their source, and compared with the index.

The cache of remote shards on this host is shared by all processes of all runs. A shard is downloaded into a `.part`
file, which its downloader locks, and renamed when it is complete. Parts appear and disappear only under the lock of the
folder. Readers verify a checksum of each sample, so that they find a file that a power cut has damaged.
"""

import copy
import errno
import hashlib
import logging
import math
import os
import shutil
import time
import zlib
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any, BinaryIO, Self

import numpy as np

from datasets.decoding.decode import LazyImage, open_image
from datasets.decoding.images import BadImage
from datasets.loading.sampler import EvalSampler, Key, ShardWindows, TrainSampler
from datasets.shards.index import INDEX_NAME, Index, Shard
from datasets.shards.store import Range, RangesNotSupported, ShardStore, changed
from datasets.sources.samples import EncodedImages, read_error
from datasets.sources.shared_arrays import PackedStrings, StringPacker, strings_in
from utils.errors import Unavailable, UserError, error_from, to_single_line
from utils.files import file_state, locked, open_regular_file, own_file
from utils.notes import RUN_LOG
from utils.threads import DaemonPool, wait_for

_FIX = "restore the shard"
_REQUESTS = 16  # of a worker at a time
_MAX_OPEN_FILES = 256  # of a worker; many systems allow a process 1024

_FREE_BYTES = 1 << 30  # stay free on the disk of the cache: checkpoints may be on it
_COMPLETE = ".tar"
_PART = ".part"
_THREADS = 4
_RETRY_SECONDS = 5.0  # until a shard is tried again: another process may be downloading it, or there was no room
_PAUSE_SECONDS = 60.0  # after an error of the disk


def cache_folder(cache_dir: str | None) -> Path:
    """Returns the folder of shards and indexes: DATA.CACHE_DIR; its default follows the XDG base directories."""
    return Path(cache_dir or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ampvit")


@dataclass
class ShardCache:
    """Shards of `store` in `folder`, at most `max_bytes` in all. Threads may share it, and it can be pickled."""

    folder: Path
    max_bytes: int
    store: ShardStore
    _resume_at: float = 0.0
    _has_warned: bool = False

    @property
    def _lock(self) -> Path:
        """Of a process that looks for room, or completes a shard."""
        return self.folder / "lock"

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
                with locked(self._lock) as has_locks:
                    if not has_locks:  # two downloads of a shard would write one file
                        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
                    for other in self.folder.glob(f"*{_PART}"):
                        with suppress(Unavailable), locked(other, 0.0):
                            other.unlink()  # its downloader was killed
                    if part.exists():
                        return False
                    if path.exists() or not self._make_room(shard.num_bytes, {self._path(other) for other in keep}):
                        return True
                    part_lock.enter_context(locked(part))
                    os.truncate(part, shard.num_bytes)  # others count it
                try:
                    with open(part, "r+b", opener=own_file) as file:
                        file.writelines(self.store.stream(shard))
                except BaseException:
                    with locked(self._lock):
                        os.unlink(part)
                    raise
                with locked(self._lock):
                    os.replace(part, path)
        except OSError as error:
            self._resume_at = time.monotonic() + _PAUSE_SECONDS
            self._warn(f"samples are read from their source: {error.strerror}")
        return True

    def _path(self, shard: Shard) -> Path:
        key = "\n".join([self.store.url(shard.name), str(shard.num_bytes), shard.version or ""])
        return self.folder / (hashlib.sha256(key.encode()).hexdigest()[:32] + _COMPLETE)

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
                f"samples are read from their source: no room for more shards ({max(0, max_bytes) / 1e9:.1f} GB); "
                "raise DATA.CACHE_GB, or free space"
            )
            return False
        for path in sorted(unused, key=lambda path: unused[path].st_mtime):
            if excess <= 0:
                break
            path.unlink(missing_ok=True)
            excess -= unused[path].st_size
        return True

    def _warn(self, problem: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            logging.getLogger(RUN_LOG).warning(f"{to_single_line(problem)} (the cache of shards in {self.folder})")


@dataclass
class ReadAhead:
    """The batches of a sampler. Before each one, threads begin to download its shards and the next ones into a cache.

    Batches never wait for a download. Errors are ignored: a reader of the shard reports them if it cannot read it
    either. The cache removes none of the coming shards to make room for another of them. With all shards in use, it
    fills up, and the other shards are read from their source.

    shards, windows: of `TarSamples`. _coming: shared with the threads. _downloads: the time from which a shard may be
    downloaded again.
    """

    cache: ShardCache
    shards: Sequence[Shard]
    windows: ShardWindows
    sampler: TrainSampler | EvalSampler
    _coming: list[Shard] = field(default_factory=list)
    _downloads: dict[Shard, Future[float]] = field(default_factory=dict)
    _pool: DaemonPool = field(default_factory=partial(DaemonPool, _THREADS))

    def __iter__(self) -> Iterator[list[Key]]:
        for number, keys in enumerate(self.sampler):
            coming = self.sampler.coming_shards(self.windows, number, keys[0])
            self.follow([self.shards[position] for position in coming])
            yield keys

    def follow(self, shards: list[Shard]) -> None:
        """Begins to download the first of `shards`, which are needed in this order."""
        self._coming[:] = shards
        wanted = shards[: 2 * self.windows.size]
        for shard in self._downloads.keys() - set(wanted):
            self._downloads.pop(shard).cancel()
        for shard in wanted:
            download = self._downloads.get(shard)
            if download is None or (download.done() and download.result() <= time.monotonic()):
                self._downloads[shard] = self._pool.submit(_download, self.cache, shard, self._coming)


def _download(cache: ShardCache, shard: Shard, keep: Collection[Shard]) -> float:
    with suppress(UserError):
        if cache.download(shard, list(keep)):
            return math.inf
    return time.monotonic() + _RETRY_SECONDS


@dataclass
class ShardReader:
    """Reads ranges of shards. Each process that receives a pickled reader opens files and connections itself.

    cache: of remote shards on this machine; without one, ranges are read from their source. shards_in_use: that are
    read at a time.
    """

    store: ShardStore
    cache: ShardCache | None
    shards_in_use: int

    def __post_init__(self) -> None:  # an open file stays readable after the cache has removed it
        self._open = lru_cache(min(self.shards_in_use, _MAX_OPEN_FILES))(self._open_file)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.store, self.cache, self.shards_in_use)

    @cached_property
    def _requests(self) -> DaemonPool:
        return DaemonPool(_REQUESTS)

    def start(self, shard: Shard, ranges: Sequence[Range]) -> list[Callable[[], bytes]]:
        """Starts to read ranges of a shard; each returned function waits for one, and raises as `read`.

        Remote ranges are requested all at once: one wait for a batch instead of one per image.
        """
        if self._file(shard):
            return [partial(self.read, shard, part) for part in ranges]
        request = self._requests.submit(self._request, shard, ranges)
        return [partial(lambda position: request.result()[position], position) for position in range(len(ranges))]

    def read(self, shard: Shard, part: Range) -> bytes:
        """Reads a range; raises OSError or UserError."""
        file = self._file(shard)
        return os.pread(file.fileno(), part[1], part[0]) if file else self._request(shard, [part])[0]

    def _request(self, shard: Shard, ranges: Sequence[Range]) -> list[bytes]:
        """Requests ranges of a remote shard. A server that sends whole files only needs the cache."""
        try:
            return self.store.read_many(shard.name, ranges)
        except RangesNotSupported:
            if self.cache and self.cache.download(shard, wait_seconds=math.inf) and (file := self._file(shard)):
                return [os.pread(file.fileno(), length, start) for start, length in ranges]
            raise

    def drop(self, shard: Shard) -> None:
        """Removes the copy of a remote shard on this machine."""
        self._open.cache_clear()
        if self.cache:
            self.cache.drop(shard)

    def _file(self, shard: Shard) -> BinaryIO | None:
        """The file of a shard on this machine, if there is one."""
        with suppress(OSError):
            return self._open(shard)
        return None

    def _open_file(self, shard: Shard) -> BinaryIO:
        """Raises UserError: a shard in a folder cannot be read; OSError: a remote one is not on this machine."""
        if self.cache:
            return self.cache.open(shard)
        if not self.store.is_local:
            raise FileNotFoundError
        path = self.store.url(shard.name)
        try:
            return open_regular_file(path)
        except OSError as error:
            raise error_from(error, f"{path}: cannot be read ({error.strerror}); {_FIX}, then resume") from error


class TarSamples(EncodedImages):
    """Images in the tar shards of a store. index: of the samples of one split. shuffled_shards: DATA.SHUFFLE_SHARDS."""

    def __init__(self, reader: ShardReader, index: Index, class_names: list[str], shuffled_shards: int) -> None:
        super().__init__(class_names)
        self.reader = reader
        self._shuffled_shards = shuffled_shards
        self._take(index)

    def _take(self, index: Index) -> None:
        self.shards = index.shards
        self.arrays = index.arrays
        self.windows: ShardWindows = ShardWindows(index.arrays["ends"], self._shuffled_shards)
        self._index = replace(index, arrays={})  # `arrays` has them

    def select(self, indices: np.ndarray) -> Self:
        part = self.changed()
        part._take(replace(self._index, arrays=self.arrays).select(indices))
        return part

    def for_loader(
        self, sampler: TrainSampler | EvalSampler, timeout_seconds: float
    ) -> tuple["TarSamples", Iterable[list[Key]]]:
        samples = copy.copy(self)
        samples.reader = copy.deepcopy(self.reader)  # as in another process: with connections of its own
        samples.reader.store.timeout_seconds = timeout_seconds
        cache = samples.reader.cache
        return samples, ReadAhead(cache, self.shards, self.windows, sampler) if cache else sampler

    def _shard_of(self, index: int) -> Shard:
        return self.shards[int(np.searchsorted(self.arrays["ends"], index, side="right"))]

    def checksums(self) -> np.ndarray:
        return self.arrays["crcs"]

    def states(self) -> np.ndarray:
        """The shards' states, combined with the checksums in the index, which may be older than the shards."""
        store = self.reader.store
        if store.is_local:
            of_shards = [file_state(store.url(shard.name)) for shard in self.shards]
        else:
            of_shards = [zlib.crc32(repr(shard[:3]).encode()) << 32 for shard in self.shards]
        counts = np.diff(self.arrays["ends"], prepend=0)
        return np.repeat(np.array(of_shards, np.uint64), counts) ^ self.checksums()

    def name(self, index: int) -> str:
        return f"{self.reader.store.url(self._shard_of(index).name)}/{strings_in(self.arrays, 'names')[index]}"

    @property
    def paths(self) -> PackedStrings:
        """Such as 'train-0001.tar/cat/1.jpg': the names are unique in a shard only."""
        counts = np.diff(self.arrays["ends"], prepend=0)
        shards = np.repeat(np.array([shard.name for shard in self.shards], object), counts)
        names = strings_in(self.arrays, "names")
        return StringPacker(f"{shard}/{name}" for shard, name in zip(shards, names, strict=True)).strings()

    def relative_name(self, index: int, folder: str) -> str:
        """Returns the name of the image in its shard."""
        return strings_in(self.arrays, "names")[index]

    @property
    def groups(self) -> PackedStrings | None:
        return super().groups if self._index.group_key else None

    def open_all(self, indices: Sequence[int], channels: int) -> Iterator[LazyImage | BadImage]:
        """Opens samples as `Samples.open_all`; the images of one remote shard are read in one request."""
        by_shard = defaultdict(list)
        for index in dict.fromkeys(indices):  # with repeated augmentation, a batch has several crops of one
            by_shard[self._shard_of(index)].append(index)
        reads: dict[int, Callable[[], bytes]] = {}
        for shard, wanted in by_shard.items():
            reads |= zip(wanted, self.reader.start(shard, list(map(self._range, wanted))), strict=True)
        for index in indices:
            try:
                data = self._checked(index, reads[index])
                self.note_content(index, data)
                yield open_image(data, channels, partial(self.name, index), self.decoding)
            except BadImage as error:
                yield error

    def read_bytes(self, index: int) -> bytes:
        """Raises UserError: the shard cannot be read, or differs from the index; BadImage if only the image differs."""
        return self._checked(index, partial(self.reader.read, self._shard_of(index), self._range(index)))

    def _range(self, index: int) -> Range:
        return int(self.arrays["offsets"][index]), int(self.arrays["lengths"][index])

    def _checked(self, index: int, read: Callable[[], bytes]) -> bytes:
        shard = self._shard_of(index)
        store = self.reader.store
        try:
            data = read()
            if not self._is_intact(index, data):  # perhaps the copy in the cache is damaged, or an answer of the server
                self.reader.drop(shard)
                data = self.reader.read(shard, self._range(index))
        except OSError as error:
            raise read_error(error, store.url(shard.name), self.name(index), _FIX) from error
        if self._is_intact(index, data):
            return data
        store.check_unchanged(shard)
        or_else = f"; or, if it is newer than {INDEX_NAME}, {changed(store.root).fix}" if shard.is_assumed else ""
        raise BadImage(self.name(index), "is damaged (its checksum does not match)", _FIX + or_else)

    def _is_intact(self, index: int, data: bytes) -> bool:
        return len(data) == self.arrays["lengths"][index] and zlib.crc32(data) == self.arrays["crcs"][index]
