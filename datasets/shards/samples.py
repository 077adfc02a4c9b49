"""Samples in tar shards: where the bytes of an image come from, and whether they are those that were indexed."""

import os
import threading
import weakref
import zlib
from collections import OrderedDict, defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from functools import cached_property
from typing import Any, BinaryIO

import numpy as np

from datasets.decoding.bad_images import BadImage
from datasets.shards.shard import Shard
from datasets.shards.storage.cache import ShardCache
from datasets.shards.storage.read_ahead import ReadAhead
from datasets.shards.storage.store import ShardStore
from datasets.shards.storage.store_errors import RangesNotSupported
from datasets.sources.arrays.mapped_arrays import share_arrays
from datasets.sources.arrays.strings import strings_in
from datasets.sources.samples import EncodedImages, read_error
from utils.errors import UserError
from utils.files import open_regular_file
from utils.threads import DaemonPool

_FIX = "restore the shard"
_REQUESTS = 16  # of a worker at a time
_MAX_OPEN_FILES = 256  # of a worker; many systems allow a process 1024


class TarSamples(EncodedImages):
    """Images in the tar shards of a store: a local folder, a web server, S3 or GCS.

    Pickled, it is the paths of the arrays, the store and the cache: each process opens files and connections itself.

    arrays: of the samples of one split, in the order of `shards`, as in `Index`.
    cache: of remote shards; None: each image is read as a range of its shard.
    shards_in_use: shards that are read at a time; those of them that the cache lacks are downloaded.
    """

    def __init__(
        self,
        store: ShardStore,
        shards: Sequence[Shard],
        arrays: Mapping[str, np.ndarray],
        class_names: list[str],
        cache: ShardCache | None,
        shards_in_use: int,
    ) -> None:
        super().__init__(class_names)
        self.store, self.shards, self.cache, self.shards_in_use = store, list(shards), cache, shards_in_use
        self._arrays = share_arrays(arrays)
        self._labels = self._arrays

    @property
    def timeout_seconds(self) -> float:
        return self.store.timeout_seconds

    @timeout_seconds.setter
    def timeout_seconds(self, seconds: float) -> None:
        self.store = ShardStore(self.store.root, seconds)
        if self.cache:
            self.cache = ShardCache(self.cache.folder.parent, self.cache.max_bytes, self.store)

    def __getstate__(self) -> dict[str, Any]:
        of_this_process = ("_files", "_requests", "_announced", "_read_ahead")
        return {name: value for name, value in vars(self).items() if name not in of_this_process}

    @property
    def targets(self) -> np.ndarray:
        return self._labels["targets"]

    @targets.setter
    def targets(self, targets: np.ndarray) -> None:
        self._labels = share_arrays({"targets": targets})

    @property
    def shard_ends(self) -> np.ndarray:
        return self._arrays["ends"]

    def shard_of(self, indices: Sequence[int] | int) -> np.ndarray:
        """The position in `shards` of the samples at `indices`."""
        return np.searchsorted(self.shard_ends, indices, side="right")

    def name(self, index: int) -> str:
        shard = self.shards[int(self.shard_of(index))]
        return f"{self.store.url(shard.name)}/{strings_in(self._arrays, 'names')[index]}"

    def relative_name(self, index: int, folder: str) -> str:
        """As in its shard."""
        return strings_in(self._arrays, "names")[index]

    @cached_property
    def _files(self) -> "_OpenShards":
        return _OpenShards(self)

    @cached_property
    def _requests(self) -> DaemonPool:
        return DaemonPool(_REQUESTS)

    @cached_property
    def _announced(self) -> dict[int, tuple[Future[list[bytes]], int]]:
        """By sample: the request that reads it, and the position in its answer."""
        return {}

    def prefetch(self, indices: Sequence[int]) -> None:
        """Requests those that are not on this machine, all at once: one wait for a batch instead of one per image."""
        for request, _ in self._announced.values():
            request.cancel()  # of a batch that has failed
        self._announced.clear()
        if self.store.is_local:
            return
        by_shard = defaultdict(list)
        indices = list(dict.fromkeys(indices))  # with repeated augmentation, a batch has several crops of one
        for index, shard in zip(indices, self.shard_of(indices).tolist(), strict=True):
            by_shard[shard].append(index)
        for shard, wanted in by_shard.items():
            if self._files.get(shard):
                continue
            request = self._requests.submit(
                self.store.read_many, self.shards[shard].name, list(map(self._range, wanted))
            )
            self._announced |= {index: (request, position) for position, index in enumerate(wanted)}

    def follow(self, shards: Sequence[int]) -> None:
        if self.cache:
            self._read_ahead.follow([self.shards[shard] for shard in shards])

    @cached_property
    def _read_ahead(self) -> ReadAhead:
        ahead = ReadAhead(self.cache, self.shards_in_use)
        weakref.finalize(self, ahead.close)
        return ahead

    def _range(self, index: int) -> tuple[int, int]:
        return int(self._arrays["offsets"][index]), int(self._arrays["lengths"][index])

    def read_bytes(self, index: int) -> bytes:
        """The image.

        Raises:
            BadImage: it is not the one that was indexed, although its shard is.
            UserError: the shard cannot be read, or is not the one that was indexed.
        """
        number = int(self.shard_of(index))
        shard = self.shards[number]
        data = self._read(index, number)
        if not self._is_intact(index, data) and not self.store.is_local:
            self._forget(number)  # perhaps the copy in the cache is damaged, or the answer of the server was
            data = self._read(index, number)
        if self._is_intact(index, data):
            return data
        self.store.check_unchanged(shard)
        raise BadImage(self.name(index), "is damaged (its checksum does not match)", _FIX)

    def _is_intact(self, index: int, data: bytes) -> bool:
        return len(data) == self._arrays["lengths"][index] and zlib.crc32(data) == self._arrays["crcs"][index]

    def _read(self, index: int, shard: int) -> bytes:
        start, length = self._range(index)
        try:
            if announced := self._announced.get(index):
                request, position = announced
                return request.result()[position]
            file = self._files.get(shard)
            if file is None:
                return self.store.read(self.shards[shard].name, start, length)
        except RangesNotSupported:
            file = self._download(shard)
            if file is None:
                raise
        try:
            return os.pread(file.fileno(), length, start)
        except OSError as error:
            raise read_error(error, file.name, self.name(index), _FIX) from error

    def _download(self, shard: int) -> BinaryIO | None:
        """The file of a shard of a server that sends whole shards only; None without a cache, or without room."""
        if not (self.cache and self.cache.download(self.shards[shard], wait=True)):
            return None
        return self._files.get(shard)

    def _forget(self, shard: int) -> None:
        """Removes a shard from the cache, and what was read of it for this batch."""
        for index in list(self._announced):
            if self.shard_of(index) == shard:
                del self._announced[index]
        self._files.close(shard)
        if self.cache:
            self.cache.drop(self.shards[shard])


class _OpenShards:
    """The last used shards that are files on this machine. A file that was evicted from the cache remains readable."""

    def __init__(self, samples: TarSamples) -> None:
        self._samples, self._limit = samples, min(samples.shards_in_use, _MAX_OPEN_FILES)
        self._files: OrderedDict[int, BinaryIO] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, shard: int) -> BinaryIO | None:
        """None: the shard is remote, and not in the cache. Keep the reference while you read."""
        with self._lock:
            if shard in self._files:
                self._files.move_to_end(shard)
                return self._files[shard]
            file = self._open(self._samples.shards[shard])
            if file:
                self._files[shard] = file
                if len(self._files) > self._limit:
                    self._files.popitem(last=False)
            return file

    def close(self, shard: int) -> None:
        with self._lock:
            self._files.pop(shard, None)

    def _open(self, shard: Shard) -> BinaryIO | None:
        samples = self._samples
        if not samples.store.is_local:
            return samples.cache.descriptor(shard) if samples.cache else None
        path = samples.store.url(shard.name)
        try:
            return open_regular_file(path)
        except OSError as error:
            raise UserError(f"{path}: cannot be read ({error.strerror}); {_FIX}, then resume") from error
