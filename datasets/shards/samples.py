"""Samples in tar shards, read from files of this machine, the cache or their source, and compared with the index."""

import copy
import math
import os
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, lru_cache, partial
from typing import Any, BinaryIO

import numpy as np

from datasets.decoding.decode import LazyImage, open_image
from datasets.decoding.images import BadImage
from datasets.loading.sampler import EvalSampler, Key, ShardWindows, TrainSampler
from datasets.shards.cache import ReadAhead, ShardCache
from datasets.shards.index import INDEX_NAME, Index, Shard
from datasets.shards.store import ShardStore
from datasets.shards.store_errors import RangesNotSupported, changed
from datasets.sources.samples import EncodedImages, read_error
from datasets.sources.shared_arrays import PackedStrings, share_arrays, strings_in
from utils.errors import error_from
from utils.files import open_regular_file
from utils.threads import DaemonPool

_FIX = "restore the shard"
_REQUESTS = 16  # of a worker at a time
_MAX_OPEN_FILES = 256  # of a worker; many systems allow a process 1024

Range = tuple[int, int]  # the first byte, the number of bytes
Read = Callable[[], bytes]


class ShardReader:
    """Reads ranges of shards. Each process that receives a pickled reader opens files and connections itself.

    cache: of remote shards; None: each range is read from its source. shards_in_use: that are read at a time.
    """

    def __init__(self, store: ShardStore, cache: ShardCache | None, shards_in_use: int) -> None:
        self.store, self.cache, self.shards_in_use = store, cache, shards_in_use
        open_shard = partial(_open_local, store) if store.is_local else cache and cache.open
        # An open file stays readable after the cache has removed it.
        self._open = open_shard and lru_cache(min(shards_in_use, _MAX_OPEN_FILES))(open_shard)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.store, self.cache, self.shards_in_use)

    @cached_property
    def _requests(self) -> DaemonPool:
        return DaemonPool(_REQUESTS)

    def start(self, shard: Shard, ranges: Sequence[Range]) -> list[Read]:
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
        raise error_from(error, f"{path}: cannot be read ({error.strerror}); {_FIX}, then resume") from error


class TarSamples(EncodedImages):
    """Images in the tar shards of a store. index: of the samples of one split. shuffled_shards: DATA.SHUFFLE_SHARDS."""

    def __init__(self, reader: ShardReader, index: Index, class_names: list[str], shuffled_shards: int) -> None:
        super().__init__(class_names)
        self.reader, self.shards = reader, index.shards
        self._labels = self._arrays = share_arrays(index.arrays)
        self.windows: ShardWindows = ShardWindows(index.arrays["ends"], shuffled_shards)

    def for_loader(
        self, sampler: TrainSampler | EvalSampler, timeout_seconds: float
    ) -> tuple["TarSamples", Iterable[list[Key]]]:
        samples = copy.copy(self)
        samples.reader = copy.deepcopy(self.reader)  # as in another process: with connections of its own
        samples.reader.store.timeout_seconds, cache = timeout_seconds, samples.reader.cache
        return samples, ReadAhead(cache, self.shards, self.windows, sampler) if cache else sampler

    def _shard_of(self, index: int) -> Shard:
        return self.shards[int(np.searchsorted(self._arrays["ends"], index, side="right"))]

    def checksums(self) -> np.ndarray:
        return self._arrays["crcs"]

    def name(self, index: int) -> str:
        return f"{self.reader.store.url(self._shard_of(index).name)}/{strings_in(self._arrays, 'names')[index]}"

    def relative_name(self, index: int, folder: str) -> str:
        """Returns the name of the image in its shard."""
        return strings_in(self._arrays, "names")[index]

    @property
    def groups(self) -> PackedStrings | None:
        return strings_in(self._arrays, "groups") if "groups" in self._arrays else None

    def open_all(self, indices: Sequence[int], channels: int) -> Iterator[LazyImage | BadImage]:
        """Opens samples as `Samples.open_all`; the images of one remote shard are read in one request."""
        by_shard = defaultdict(list)
        for index in dict.fromkeys(indices):  # with repeated augmentation, a batch has several crops of one
            by_shard[self._shard_of(index)].append(index)
        reads: dict[int, Read] = {}
        for shard, wanted in by_shard.items():
            reads |= zip(wanted, self.reader.start(shard, list(map(self._range, wanted))), strict=True)
        for index in indices:
            try:
                data = self._checked(index, reads[index])
                yield open_image(data, channels, partial(self.name, index), self.decoding)
            except BadImage as error:
                yield error

    def read_bytes(self, index: int) -> bytes:
        """Raises UserError: the shard cannot be read, or differs from the index; BadImage if only the image differs."""
        return self._checked(index, partial(self.reader.read, self._shard_of(index), self._range(index)))

    def _range(self, index: int) -> tuple[int, int]:
        return int(self._arrays["offsets"][index]), int(self._arrays["lengths"][index])

    def _checked(self, index: int, read: Read) -> bytes:
        shard, store = self._shard_of(index), self.reader.store
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
        return len(data) == self._arrays["lengths"][index] and zlib.crc32(data) == self._arrays["crcs"][index]
