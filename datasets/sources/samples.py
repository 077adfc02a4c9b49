"""The interface of a data source: `Samples`, the images and labels of one split."""

import errno

import numpy as np

from datasets.decoding.bad_images import BadImage
from datasets.decoding.decode import LazyImage, open_image
from datasets.decoding.grey import GreyRange
from utils.errors import UserError

MAX_FILE_BYTES = 400_000_000  # 64 million pixels of 16-bit color
# The machine or a network disk fails temporarily; the image is not the cause.
_SYSTEM_ERRORS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO, errno.ESTALE, errno.ETIMEDOUT)


class Samples:
    """The images and labels of one split.

    `targets` int64 (N,) are labels, indices of `class_names`. `has_class_names` is False if these names are only the
    labels themselves, as in a list. `in_memory` is True if `open` never waits for a disk.
    `findings` are mistakes that must be corrected before the samples are used, `notes` are for the log: one line of
    text each.
    """

    in_memory = False
    has_class_names = True
    targets: np.ndarray

    def __init__(self, class_names: list[str]) -> None:
        self.class_names = class_names
        self.findings: list[str] = []
        self.notes: list[str] = []

    def __len__(self) -> int:
        return len(self.targets)

    def number_classes(self, labels: np.ndarray, class_names: list[str]) -> None:
        """Replaces each label by `labels[label]`, int64 (classes,), an index of the new `class_names`."""
        self.targets, self.class_names = labels[self.targets], class_names

    def open(self, index: int, channels: int) -> LazyImage:
        """An image with 1 or 3 channels; raises BadImage, now or when its pixels are decoded, if it is unusable."""
        raise NotImplementedError

    def location(self, index: int) -> str:
        """Where a user finds the sample: a line of a list or a file."""
        return f"image {index}"

    def check_files(self) -> list[str]:
        """Findings about missing and unreadable files, without reading any; adds a note if not all are checked."""
        return []


class EncodedImages(Samples):
    """Images that are stored encoded, such as JPEG files. `grey_range` is that of `open_image`."""

    grey_range: GreyRange | None = None

    def read_bytes(self, index: int) -> bytes:
        """The encoded image; raises BadImage if it cannot be read."""
        raise NotImplementedError

    def name(self, index: int) -> str:
        """The image's name in error messages."""
        raise NotImplementedError

    def open(self, index: int, channels: int) -> LazyImage:
        return open_image(self.read_bytes(index), channels, self.name(index), self.grey_range)


def read_error(error: OSError, path: str, name: str, fix: str) -> UserError:
    """The error for an image `name` in the file `path` that cannot be read; a BadImage unless the system fails."""
    if error.errno in _SYSTEM_ERRORS:
        return UserError(f"{path}: cannot be read ({error.strerror}); check the machine and its disks, then resume")
    return BadImage(name, f"cannot be read ({error.strerror})", fix)
