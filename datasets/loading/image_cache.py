"""Decoded images in memory that all processes of a host share: with DATA.CACHE, a run decodes each file once.

The memory is a file without a name (memfd), which lasts as long as a process has it open, also after SIGKILL, and is
not limited by the size of /dev/shm. Workers and other ranks open it through /proc. It grows with each image, by calls
that fail if memory is full; a write to mapped memory would end the process (SIGBUS).

A cached image has the pixels of the file, bit for bit. A file that is not decoded without a warning is decoded again at
each use.
"""

import fcntl
import math
import mmap
import os
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Lock

import numpy as np
import torch
from torch import Tensor

from datasets.decoding.decode import LazyImage
from utils.system import available_bytes

SHARE = 0.5  # of the free host memory: the rest is for the optimizer, the workers, and other programs
_CHECKED_BYTES = 2**26  # of images between two looks at the free memory
_END = 0  # in the table; the images follow
_HEAD_BYTES = 8
_ALIGNMENT = 64


class ImageCache:
    """The images of several splits, N in all, with C channels, in the file `path`, which has the name `name`.

    The file begins with a table, int64 (1 + N,): the bytes in use after it, and the place of each image in the file, 0
    for an image that is not in it. An image is int32 (2,), height and width, and uint8 (H, W, C).
    Raises OSError, ValueError: the file cannot be opened.
    """

    def __init__(self, path: str, name: str, images: int, channels: int) -> None:
        if os.readlink(path) != f"/memfd:{name} (deleted)":  # of another host, or another container
            raise FileNotFoundError(path)
        self.source = path, name, images, channels
        self._channels = channels
        self._file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._file)
        self._memory = mmap.mmap(self._file, 0)
        self._table = np.frombuffer(self._memory, np.int64, 1 + images)
        self._start = _aligned(self._table.nbytes)
        self._threads = Lock()  # fcntl's lock excludes other processes

    def __reduce__(self) -> tuple[object, ...]:
        return open_cache, self.source

    def find(self, index: int) -> LazyImage | None:
        """The image at `index` of all, if it is cached."""
        place = int(self._table[1 + index])
        return LazyImage(self._pixels(place)) if place else None

    def keep(self, index: int, image: LazyImage) -> None:
        """Caches an image that is decoded without a warning, as long as there is room."""
        if self._table[_END] >= len(self._memory):
            return
        pixels = image.pixels
        if not image.warning:
            self._add(index, pixels)

    def _pixels(self, place: int) -> Tensor:
        height, width = np.frombuffer(self._memory, np.int32, 2, place).tolist()
        shape = height, width, self._channels
        size = math.prod(shape)
        flat = torch.frombuffer(self._memory, dtype=torch.uint8, count=size, offset=place + _HEAD_BYTES)
        return flat.view(shape).permute(2, 0, 1)

    def _add(self, index: int, pixels: Tensor) -> None:
        """Keeps an image if there is room. Of two processes that add it at the same time, the last one counts."""
        size = _aligned(_HEAD_BYTES + pixels.numel())
        with self._locked():
            start = self._start + int(self._table[_END])
            self._table[_END] += size
        end = start + size
        is_scarce = start // _CHECKED_BYTES != end // _CHECKED_BYTES and end > limit_bytes(used=end)
        values = pixels.permute(1, 2, 0).contiguous().numpy()
        head = np.array(values.shape[:2], np.int32)
        written = 0
        if end <= len(self._memory) and not is_scarce:
            with suppress(OSError):
                written = os.pwritev(self._file, [head.data, values.data], start)
        if written < head.nbytes + values.nbytes:
            self._table[_END] = len(self._memory)  # no more images are added
            return
        with self._locked():  # the image is visible to other processors before its place
            self._table[1 + index] = start

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """The lock of a process that is killed is released."""
        with self._threads:
            fcntl.lockf(self._file, fcntl.LOCK_EX)
            try:
                yield
            finally:  # a signal may end this process later, after a collective with the ranks that wait for the lock
                fcntl.lockf(self._file, fcntl.LOCK_UN)


def open_cache(path: str, name: str, images: int, channels: int) -> ImageCache | None:
    """The cache of another process; None if it is of another host, or this system does not give it."""
    with suppress(OSError, ValueError):
        return ImageCache(path, name, images, channels)
    return None


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def limit_bytes(used: int = 0) -> float:
    """The bytes that a cache may have, of which some are in use."""
    return SHARE * (available_bytes() + used)
