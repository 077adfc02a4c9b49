"""The interface of a data source: `Samples`, the images and labels of one split; and those with one file per image.

Names are Unicode text in the form NFC: macOS decomposes the names of files (NFD), and Linux keeps them as they are.
"""

import errno
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np

from configs.yaml_io import shorten
from datasets.decoding.decode import Decoding, LazyImage, open_image
from datasets.decoding.images import BadImage, UnreadableImage
from datasets.loading.hashes import ImageHashes, new_hashes
from datasets.loading.image_cache import ImageCache
from datasets.loading.sampler import EvalSampler, Key, ShardWindows, TrainSampler
from datasets.sources.shared_arrays import (
    Arrays,
    MappedArrays,
    PackedStrings,
    StringPacker,
    select_rows,
    share_arrays,
    strings_in,
    to_arrays,
)
from utils.errors import Finding, Unavailable, UserError
from utils.files import file_state, read_regular_file
from utils.notes import Note

UNKNOWN = -2  # the target of a class of which it is not known whether an image has it
_MAX_TARGET_BYTES = 10**10
MAX_FILE_BYTES = 400_000_000  # 64 million pixels of 16-bit color, and metadata
# The machine or a network disk fails temporarily; the image is not the cause.
_SYSTEM_ERRORS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO, errno.ESTALE, errno.ETIMEDOUT)
_FIX = "restore the file or remove it from the list"


def spread(number: int, most: int) -> range:
    """At most `most` indices of `number`, evenly spread."""
    return range(0, number, max(1, -(-number // most)))


def check_target_bytes(place: object, num_images: int, num_classes: int) -> None:
    """Raises UserError if multi-hot targets take more than 10 GB."""
    num_bytes = num_images * num_classes
    if num_bytes > _MAX_TARGET_BYTES:
        raise UserError(
            f"{place}: the labels of {num_images} images of {num_classes} classes need {num_bytes / 1e9:.0f} GB, more "
            f"than {_MAX_TARGET_BYTES / 1e9:.0f}; check the highest label, or divide the data"
        )


def is_multi_hot(targets: Any) -> bool:
    """Whether each sample has several labels: targets (N, C) of 1, 0 and `UNKNOWN`, an array or a tensor; else (N,)."""
    return len(targets.shape) == 2


def label_pairs(targets: np.ndarray) -> tuple[np.ndarray, ...]:
    """The image and the label of each label of `Samples.targets`: int64 (L,) and int64 (L,)."""
    return (np.arange(len(targets)), targets) if targets.ndim == 1 else np.nonzero(targets > 0)


def has_label(targets: np.ndarray, label: int) -> np.ndarray:
    """Which samples have the label, bool (N,). targets: as of `Samples`."""
    has: np.ndarray = targets == label if targets.ndim == 1 else targets[:, label] > 0
    return has


class Samples:
    """The images and labels of one split.

    `arrays` has what is known of each image; `targets` are int64 (N,), labels: indices of `class_names`, or with
    DATA.MULTI_LABEL int8 (N, classes), 1 for each label of an image, `UNKNOWN` or else 0, with at least as many columns
    as `class_names`. `has_class_names` is False if these names are only the labels themselves, as in a list.
    `in_memory` is True if `open` never waits for a disk. `windows`: of samples in shards, see `ShardWindows`.
    `hashes`: of the content that has been read. `column`: the name of the column of `listed_name`. `decoding`: of
    files. `findings` are messages about errors of the reader, which prevent the use of the samples; `notes` are for the
    log: one line of text each.
    """

    in_memory = False
    has_class_names = True
    column = "path"
    decoding = Decoding()
    windows: ShardWindows | None = None
    hashes: ImageHashes | None = None

    def __init__(self, class_names: list[str]) -> None:
        self.class_names = class_names
        self.arrays: Arrays = {}
        self.findings: list[Finding] = []
        self.notes: list[Note] = []

    def __getstate__(self) -> dict[str, Any]:
        """The processes that receive the samples map one copy of the arrays."""
        if not isinstance(self.arrays, MappedArrays):
            self.arrays = share_arrays(self.arrays)
        return self.__dict__

    def changed(self, **values: Any) -> Self:
        """The samples with other attributes."""
        other = object.__new__(type(self))
        vars(other).update({**vars(self), **values})
        return other

    def with_arrays(self, **arrays: np.ndarray) -> Self:
        """The samples with other or further arrays, such as `targets`."""
        return self.changed(arrays={**self.arrays, **arrays})

    @property
    def targets(self) -> np.ndarray:
        return self.arrays["targets"]

    @property
    def groups(self) -> PackedStrings | None:
        """The name of the group of each image, with DATA.GROUPS."""
        return strings_in(self.arrays, "groups") if "groups" in self.arrays else None

    @property
    def paths(self) -> PackedStrings:
        """The name of each image without the folder of the data: the same on another machine."""
        return StringPacker(self.name(index) for index in range(len(self))).strings()

    @property
    def names_for_split(self) -> PackedStrings:
        """The name of each image by which data without a validation split are split."""
        return self.paths

    def __len__(self) -> int:
        return len(self.targets)

    def with_classes(self, labels: np.ndarray, class_names: list[str]) -> Self:
        """The samples with `labels[label]` in place of each label: int64 (classes,), indices of the new `class_names`.

        `labels` is -1 for a class without images.
        """
        if self.targets.ndim == 1:
            targets = labels[self.targets]
        else:
            targets = np.zeros((len(self), len(class_names)), dtype=self.targets.dtype)
            for old in np.flatnonzero(labels[: self.targets.shape[1]] >= 0).tolist():
                merged = targets[:, labels[old]]  # several old ones may be: one label is enough, else one unknown
                own = self.targets[:, old]
                targets[:, labels[old]] = np.where((merged > 0) | (own > 0), 1, np.minimum(merged, own))
        return self.with_arrays(targets=targets).changed(class_names=class_names, has_class_names=True)

    def with_columns(self, num_classes: int) -> Self:
        """With targets (N, `num_classes`), if they are (N, classes). Columns beyond them stay if one has a label."""
        targets = self.targets
        missing = num_classes - targets.shape[1]
        if missing > 0:
            return self.with_arrays(targets=np.pad(targets, ((0, 0), (0, missing))))
        if (targets[:, num_classes:] > 0).any():
            return self
        return self.with_arrays(targets=np.ascontiguousarray(targets[:, :num_classes]))

    def select(self, indices: np.ndarray) -> Self:
        """The samples at `indices`, (M,), sorted and unique, with the findings and notes of all."""
        return self.changed(arrays=select_rows(self.arrays, indices))

    def class_counts(self, num_classes: int) -> np.ndarray:
        """The samples with each label, int64 (num_classes,); with DATA.MULTI_LABEL a sample may count several times."""
        return np.bincount(label_pairs(self.targets)[1], minlength=num_classes)

    def for_loader(
        self, sampler: TrainSampler | EvalSampler, timeout_seconds: float
    ) -> tuple["Samples", Iterable[list[Key]]]:
        """Returns the samples as a loader reads them, and its batches, which may be read ahead.

        timeout_seconds: the limit of a wait for a server.
        """
        return self, sampler

    def open_all(self, indices: Sequence[int], channels: int) -> Iterator[LazyImage | BadImage]:
        """Opens the samples at `indices`, in this order; yields a BadImage in place of an unusable image."""
        for index in indices:
            try:
                yield self.open(index, channels)
            except BadImage as error:
                yield error

    def open(self, index: int, channels: int) -> LazyImage:
        """An image with 1 or 3 channels; raises BadImage, now or when its pixels are decoded, if it is unusable."""
        raise NotImplementedError

    def hash_content(self) -> None:
        """From now on, the images that the processes of this rank read are hashed."""
        self.hashes = new_hashes(len(self))

    def note_content(self, index: int, content: bytes) -> None:
        """Hashes the content that was read, unless these samples are a part of the samples of `hashes`."""
        if self.hashes and len(self.hashes.rows) == len(self):
            self.hashes.add(index, content)

    def name(self, index: int) -> str:
        """The image's name in tables and error messages, such as its path."""
        return f"image {index}"

    def listed_name(self, index: int) -> str:
        """The text that names the image in the user's list or table, and in the files of a prediction."""
        return self.name(index).removeprefix("./")

    def location(self, index: int) -> str:
        """Names the line of a list or the file in which a user finds the sample."""
        return self.name(index)

    def checksums(self) -> np.ndarray:
        """A CRC-32 of each image; of an image file, which is not opened, of its relative path: uint32 (N,)."""
        return np.zeros(len(self), np.uint32)

    def states(self) -> np.ndarray:
        """A number of each image that changes with it, uint64 (N,); of a file, which is not opened, its `file_state`.

        For data that are kept on this host; `checksums` compares hosts.
        """
        return self.checksums().astype(np.uint64)

    def find_missing_files(self) -> Sequence[Finding]:
        """An error if this host has none of the files; a few of them are looked for."""
        return []


class EncodedImages(Samples):
    """Images that are stored encoded, such as JPEG files.

    cache: their decoded images, from `cache_start` on.
    """

    cache: ImageCache | None = None
    cache_start = 0

    @property
    def max_file_bytes(self) -> int:
        return max(MAX_FILE_BYTES, 8 * self.decoding.max_pixels)

    def read_bytes(self, index: int) -> bytes:
        """The encoded image; raises BadImage if it cannot be read."""
        raise NotImplementedError

    def relative_name(self, index: int, folder: str) -> str:
        """Returns the image's path, relative to `folder` if the image is in this folder of the data set."""
        return self.name(index).removeprefix(os.path.join(folder, ""))

    def open(self, index: int, channels: int) -> LazyImage:
        cached = self.cache.find(self.cache_start + index) if self.cache else None
        if cached:
            return cached
        data = self.read_bytes(index)
        self.note_content(index, data)
        image = open_image(data, channels, partial(self.name, index), self.decoding)
        if self.cache:
            self.cache.keep(self.cache_start + index, image)
        return image


def read_error(error: OSError, path: str, name: str, fix: str) -> UserError:
    """Returns the error for an image `name` in the file `path`; a BadImage unless the system fails."""
    if error.errno in _SYSTEM_ERRORS:
        return Unavailable(f"{path}: cannot be read ({error.strerror}); check the machine and its disks, then resume")
    return UnreadableImage(name, f"cannot be read ({error.strerror})", fix)


def is_broken_link(path: str | Path) -> bool:
    return os.path.islink(path) and not os.path.exists(path)


def listing_arrays(paths: StringPacker, **columns: np.ndarray) -> dict[str, np.ndarray]:
    """The `arrays` of `ImageFiles`. paths: the names of the images. columns: `targets`, without which each image has
    the label 0, and `lines`.
    """
    defaults = {"paths_crcs": paths.crcs(), "targets": np.zeros(len(paths), np.int64)}
    return to_arrays(paths.strings(), "paths") | defaults | columns


@dataclass(eq=False)
class ImageFiles(EncodedImages):
    """N image files: their paths relative to `root`, their labels, and the name of each class.

    `arrays` holds the paths, which are their names, as packed strings, `places`, if a table names them by other paths,
    `paths_crcs` uint32 (N,), `targets`, -1 for an invalid label, and `lines` int32 (N,): the lines of `file` that name
    the images, if there is one. With DATA.GROUPS, the groups of the images are packed strings, too; of images to
    predict, the texts that name them in a list, in `column`, are the packed strings `listed`. `sizes`: the number of
    images in each folder, by its path relative to `root`, of class folders.
    """

    root: Path
    class_names: list[str]
    arrays: Arrays
    file: Path | None = None
    findings: list[Finding] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    has_class_names: bool = True
    column: str = "path"
    sizes: Mapping[str, int] = field(default_factory=dict)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "sizes": {}}  # of reading: workers need no text for each of many folders

    @property
    def paths(self) -> PackedStrings:
        return strings_in(self.arrays, "paths")

    @property
    def places(self) -> PackedStrings:
        """The path of each file in `root`."""
        return strings_in(self.arrays, "places" if "places" in self.arrays else "paths")

    def select(self, indices: np.ndarray) -> Self:
        return super().select(indices).changed(cache=None)

    def name(self, index: int) -> str:
        """The file's path: a str, because each Path interns its parts, which would add up to millions of strings."""
        return os.path.join(str(self.root), self.places[index])

    def listed_name(self, index: int) -> str:
        return strings_in(self.arrays, "listed")[index] if "listed" in self.arrays else super().listed_name(index)

    def read_bytes(self, index: int) -> bytes:
        path = self.name(index)
        try:
            data, size = read_regular_file(path, self.max_file_bytes)
        except OSError as error:
            raise read_error(error, path, path, _FIX) from error
        if size > self.max_file_bytes:
            raise BadImage(path, f"cannot be read ({size / 1e6:.0f} MB is too large for an image)", _FIX)
        return data

    def location(self, index: int) -> str:
        """A line of the list or, without a list, the image file."""
        return f"{self.file}:{self.arrays['lines'][index]}" if self.file else self.name(index)

    def checksums(self) -> np.ndarray:
        """Of the relative paths in NFC, combined with the sizes of a few files; the order does not matter."""
        checksums = self.arrays["paths_crcs"].copy()
        for index in self._few:
            with suppress(OSError):
                checksums[index] ^= os.path.getsize(self.name(index)) % 2**32
        return checksums

    def states(self) -> np.ndarray:
        return np.array([file_state(self.name(index)) for index in range(len(self))], np.uint64)

    @property
    def _few(self) -> list[int]:
        """Indices of the files whose paths have the smallest checksums, sorted."""
        return sorted(self.arrays["paths_crcs"].argsort()[:20].tolist())

    def find_missing_files(self) -> Sequence[Finding]:
        few = self._few
        if not few or any(os.path.isfile(self.name(index)) for index in few):
            return []
        path = shorten(self.places[few[0]])
        fix = "restore it"
        if self.file:
            fix = "correct the path, or set DATA.IMAGE_ROOT to the folder of these paths"
        counted = min(len(self), 100_000)
        missing = sum(not os.path.isfile(self.name(index)) for index in range(counted))
        text = f"{path} is not a file in {self.root} ({missing:,} of {counted:,} are none)"
        return [Unavailable(f"{self.location(few[0])}: {text}; {fix}")]
