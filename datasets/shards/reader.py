"""Reads bytes of the shards of a data set, from files of this machine, the cache or their source."""

import os
import weakref
from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache, partial
from typing import Any, BinaryIO

from datasets.shards.shard import Shard
from datasets.shards.storage.cache import ReadAhead, ShardCache
from datasets.shards.storage.store import ShardStore
from datasets.shards.storage.store_errors import RangesNotSupported
from utils.errors import error_from
from utils.files import open_regular_file
from utils.threads import DaemonPool

FIX = "restore the shard"
_REQUESTS = 16  # of a worker at a time
_MAX_OPEN_FILES = 256  # of a worker; many systems allow a process 1024

Range = tuple[int, int]  # the first byte, the number of bytes
Read = Callable[[], bytes]


class ShardReader:
    """Reads ranges of shards. Each process that receives a pickled reader opens files and connections itself.

    cache: of remote shards; None: each range is read from its source.
    shards_in_use: shards that are read at a time; `follow` downloads those that the cache lacks.
    """

    def __init__(self, store: ShardStore, cache: ShardCache | None, shards_in_use: int) -> None:
        self.store, self.cache, self.shards_in_use = store, cache, shards_in_use
        open_shard = partial(_open_local, store) if store.is_local else cache and cache.open
        # An open file stays readable after the cache has removed it.
        self._open = open_shard and lru_cache(min(shards_in_use, _MAX_OPEN_FILES))(open_shard)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.store, self.cache, self.shards_in_use)

    def with_timeout(self, seconds: float) -> "ShardReader":
        """Returns a reader of the same shards that waits up to `seconds` for a server."""
        store = ShardStore(self.store.root, seconds)
        cache = ShardCache(self.cache.folder.parent, self.cache.max_bytes, store) if self.cache else None
        return ShardReader(store, cache, self.shards_in_use)

    @cached_property
    def _requests(self) -> DaemonPool:
        return DaemonPool(_REQUESTS)

    @cached_property
    def _read_ahead(self) -> ReadAhead:
        assert self.cache
        ahead = ReadAhead(self.cache, self.shards_in_use)
        weakref.finalize(self, ahead.pool.close)
        return ahead

    def follow(self, shards: Sequence[Shard]) -> None:
        """Downloads `shards`, which are needed now and later, in this order, into the cache."""
        if self.cache:
            self._read_ahead.follow(shards)

    def start(self, shard: Shard, ranges: Sequence[Range]) -> list[Read]:
        """Starts to read ranges of a shard; each returned function waits for one, and raises as `read`.

        Remote ranges are requested all at once: one wait for a batch instead of one per image.
        """
        if self._file(shard):
            return [partial(self.read, shard, part) for part in ranges]
        request = self._requests.submit(self.store.read_many, shard.name, ranges)

        def result(position: int) -> bytes:
            try:
                return request.result()[position]
            except RangesNotSupported:
                return self.read(shard, ranges[position])

        return [partial(result, position) for position in range(len(ranges))]

    def read(self, shard: Shard, part: Range) -> bytes:
        """Reads a range; raises OSError or UserError. A server that sends whole files only needs the cache."""
        file = self._file(shard)
        if file is None:
            try:
                return self.store.read_many(shard.name, [part])[0]
            except RangesNotSupported:
                if not (self.cache and self.cache.download(shard, wait=True) and (file := self._file(shard))):
                    raise
        return os.pread(file.fileno(), part[1], part[0])

    def drop(self, shard: Shard) -> None:
        """Removes the copy of a remote shard on this machine."""
        if self.cache and self._open:
            self._open.cache_clear()
            self.cache.drop(shard)

    def _file(self, shard: Shard) -> BinaryIO | None:
        """Opens a shard that is a file on this machine, or in the cache; None if there is no such file."""
        try:
            return self._open(shard) if self._open else None
        except OSError:  # not in the cache
            return None


def _open_local(store: ShardStore, shard: Shard) -> BinaryIO:
    path = store.url(shard.name)
    try:
        return open_regular_file(path)
    except OSError as error:
        raise error_from(error, f"{path}: cannot be read ({error.strerror}); {FIX}, then resume") from error
