"""The SHA-256 of the content of each image, computed where its bytes are read, by any process of a rank."""

import os
import weakref
from contextlib import suppress
from hashlib import sha256

import numpy as np

_BYTES = 32  # of a SHA-256


class ImageHashes:
    """rows: uint8 (N, 32), zeros for an image that has not been read.

    They are in the file `path`, which has no name, as the one of an `ImageCache`: its processes map it.
    """

    def __init__(self, path: str, images: int) -> None:
        self.source = path, images
        self.rows = np.asarray(np.memmap(path, np.uint8, "r+", shape=(images, _BYTES)))

    def __reduce__(self) -> tuple[object, ...]:
        return ImageHashes, self.source

    def add(self, index: int, content: bytes) -> None:
        """The first content of an image counts: a later epoch reads it again."""
        if not self.rows[index].any():
            self.rows[index] = np.frombuffer(sha256(content).digest(), np.uint8)


def new_hashes(images: int) -> ImageHashes | None:
    """None if this system has no memory for them."""
    with suppress(AttributeError, OSError):
        file = os.memfd_create("ampvit-hashes")
        os.posix_fallocate(file, 0, _BYTES * images)
        hashes = ImageHashes(f"/proc/{os.getpid()}/fd/{file}", images)
        weakref.finalize(hashes, os.close, file)
        return hashes
    return None
