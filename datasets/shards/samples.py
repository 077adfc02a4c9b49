"""Samples in tar shards: their places and labels. The bytes of each image are compared with the index."""

import copy
import zlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import numpy as np

from datasets.decoding.bad_images import BadImage
from datasets.decoding.decode import LazyImage, open_image
from datasets.shards.indexing.index import INDEX_NAME
from datasets.shards.reader import FIX, Read, ShardReader
from datasets.shards.shard import Shard
from datasets.shards.storage.store_errors import changed
from datasets.sources.arrays.mapped_arrays import share_arrays
from datasets.sources.arrays.strings import strings_in
from datasets.sources.samples import EncodedImages, read_error


class TarSamples(EncodedImages):
    """Images in the tar shards of a store: a local folder, a web server, S3 or GCS.

    arrays: of the samples of one split, in the order of `shards`, as in `Index`.
    """

    def __init__(
        self, reader: ShardReader, shards: Sequence[Shard], arrays: Mapping[str, np.ndarray], class_names: list[str]
    ) -> None:
        super().__init__(class_names)
        self.reader, self.shards = reader, list(shards)
        self._arrays = share_arrays(arrays)
        self._labels = self._arrays

    def with_timeout(self, seconds: float) -> "TarSamples":
        samples = copy.copy(self)
        samples.reader = self.reader.with_timeout(seconds)
        return samples

    @property
    def shard_ends(self) -> np.ndarray:
        return self._arrays["ends"]

    def _shard_of(self, index: int) -> Shard:
        return self.shards[int(np.searchsorted(self.shard_ends, index, side="right"))]

    def checksums(self) -> np.ndarray:
        return self._arrays["crcs"]

    def name(self, index: int) -> str:
        return f"{self.reader.store.url(self._shard_of(index).name)}/{strings_in(self._arrays, 'names')[index]}"

    def relative_name(self, index: int, folder: str) -> str:
        """Returns the name of the image in its shard."""
        return strings_in(self._arrays, "names")[index]

    def follow(self, shards: Sequence[int]) -> None:
        self.reader.follow([self.shards[shard] for shard in shards])

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
                yield open_image(data, channels, partial(self.name, index), self.grey_range)
            except BadImage as error:
                yield error

    def read_bytes(self, index: int) -> bytes:
        """Reads an encoded image.

        Raises:
            BadImage: the image differs from the index, although its shard does not.
            UserError: the shard cannot be read, or differs from the index.
        """
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
            raise read_error(error, store.url(shard.name), self.name(index), FIX) from error
        if self._is_intact(index, data):
            return data
        store.check_unchanged(shard)
        or_else = f"; or, if it is newer than {INDEX_NAME}, {changed(store.root).fix}" if shard.is_assumed else ""
        raise BadImage(self.name(index), "is damaged (its checksum does not match)", FIX + or_else)

    def _is_intact(self, index: int, data: bytes) -> bool:
        return len(data) == self._arrays["lengths"][index] and zlib.crc32(data) == self._arrays["crcs"][index]
