"""Decoded images in memory that all processes of a host share: with DATA.CACHE, a run decodes each file once.

The memory is a file without a name (memfd), which lasts as long as a process has it open, also after SIGKILL, and is
not limited by the size of /dev/shm. Workers and other ranks open it through /proc. It grows with each image, by calls
that fail if memory is full; a write to mapped memory would end the process (SIGBUS).

A cached image has the pixels of the file, bit for bit. A file that is not decoded as a whole without a warning is
decoded again at each use: a crop of it may be intact.
"""

import fcntl
import math
import mmap
import os
import secrets
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from threading import Lock

import numpy as np
import torch

from configs.schema import Data
from configs.schema.data import AUTO
from datasets.decoding.decode import LazyImage, open_with_pillow
from datasets.decoding.images import BadImage
from datasets.sources.samples import ImageFiles, Samples
from utils.distributed import ProcessContext, gather_objects
from utils.notes import Note
from utils.system import available_bytes

_SHARE = 0.5  # of the free host memory: the rest is for the optimizer, the workers, and other programs
_SAMPLED = 128  # images of a split, whose headers give the size of all
_CHECKED_BYTES = 2**26  # of images between two looks at the free memory
_END = 0  # in the table; the images follow
_REFUSED = -1
_HEAD_BYTES, _ALIGNMENT = 8, 64


class ImageCache:
    """The images of several splits, N in all, with C channels, in the file `path`, which has the name `name`.

    The file begins with a table, int64 (1 + N,): the bytes in use after it, and the place of each image in the file; 0:
    not decoded yet, -1: not decoded without a warning. An image is int32 (2,), height and width, and uint8 (H, W, C).
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

    def open(self, index: int, decode: Callable[[], LazyImage]) -> LazyImage:
        """The image at `index` of all. decode: opens its file; its errors are raised."""
        place = int(self._table[1 + index])
        if place > 0:
            return LazyImage(self._pixels(place))
        image = decode()
        if place == _REFUSED or self._table[_END] >= len(self._memory):
            return image
        with suppress(BadImage):
            pixels = image.pixels
            if not image.warning:
                self._add(index, pixels)
                return LazyImage(pixels)
        self._table[1 + index] = _REFUSED
        return decode()  # without the warning

    def _pixels(self, place: int) -> torch.Tensor:
        height, width = np.frombuffer(self._memory, np.int32, 2, place).tolist()
        shape = height, width, self._channels
        size = math.prod(shape)
        flat = torch.frombuffer(self._memory, dtype=torch.uint8, count=size, offset=place + _HEAD_BYTES)
        return flat.view(shape).permute(2, 0, 1)

    def _add(self, index: int, pixels: torch.Tensor) -> None:
        """Keeps an image if there is room. Of two processes that add it at the same time, the last one counts."""
        size = _aligned(_HEAD_BYTES + pixels.numel())
        with self._locked():
            start = self._start + int(self._table[_END])
            self._table[_END] += size
        end = start + size
        is_scarce = start // _CHECKED_BYTES != end // _CHECKED_BYTES and end > _limit(used=end)
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


def cache_images(splits: Sequence[Samples], data: Data, reads: int, context: ProcessContext) -> Note | None:
    """Gives the splits of image files one cache per host, if DATA.CACHE asks for it; a line for the log.

    Every rank must call it. splits: the first one is the training's. reads: the training images of the run: with auto,
    a run that reads no image twice has no cache.
    """
    files = [one for one in splits if isinstance(one, ImageFiles) and one.windows is None]
    is_due = data.cache is True or (data.cache == AUTO and reads > len(splits[0]))
    if not (files and is_due):
        return None
    cache, text = None, ""
    if context.local_rank == 0:
        cache, text = _make_cache(files, data)
    sources = gather_objects(cache and cache.source, context)
    for source in sources:
        if source and not cache:
            cache = open_cache(*source)
    start = 0
    for samples in files:
        samples.cache, samples.cache_start = cache, start
        start += len(samples)
    return Note("log", f"DATA.CACHE {str(data.cache).lower()}: {text}")


def _make_cache(files: Sequence[ImageFiles], data: Data) -> tuple[ImageCache | None, str]:
    """A cache for as many images as fit, with auto for all of them or none; and a text for the log."""
    needed = sum(_estimate_bytes(one, data.image_channels) for one in files)
    limit = int(_limit())
    sizes = f"about {needed / 1e9:.3g} GB, and {limit / 1e9:.3g} GB are {_SHARE:.0%} of the free host memory"
    if needed > limit and data.cache == AUTO:
        return None, f"images are not kept in memory: they need {sizes}"
    images = sum(map(len, files))
    name = f"ampvit-{secrets.token_hex(8)}"
    try:
        file = os.memfd_create(name)
        os.ftruncate(file, limit)
        os.posix_fallocate(file, 0, 8 * (1 + images))
        cache = ImageCache(f"/proc/{os.getpid()}/fd/{file}", name, images, data.image_channels)
    except (AttributeError, OSError, ValueError) as error:
        return None, f"images are not kept in memory: this system has no memory for it ({error})"
    weakref.finalize(cache, os.close, file)
    return cache, f"decoded images are kept in memory: {sizes}"


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _limit(used: int = 0) -> float:
    """The bytes that a cache may have, of which some are in use."""
    return _SHARE * (available_bytes() + used)


def _estimate_bytes(samples: ImageFiles, channels: int) -> float:
    """The decoded images of a split, from the headers of a few; infinite if none can be read."""
    pixels = list[int]()
    for index in range(0, len(samples), -(-len(samples) // _SAMPLED)):
        with suppress(Exception):  # Pillow raises many types on damaged files; reading them reports them
            pixels.append(math.prod(open_with_pillow(samples.read_bytes(index), str).size))
    return len(samples) * channels * sum(pixels) / len(pixels) if pixels else math.inf
