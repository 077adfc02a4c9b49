"""Samples with one file per image: their listing, before they are read, and the files."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from configs.yaml_io import shorten
from datasets.decoding.images import BadImage, MissingImage
from datasets.sources.samples import EncodedImages, read_error
from datasets.sources.shared_arrays import PackedStrings, StringPacker, share_arrays, strings_in, to_arrays
from utils.errors import Finding
from utils.files import file_state, read_regular_file
from utils.notes import Note

_FIX = "restore the file or remove it from the list"
_FEW_FILES = 20


@dataclass
class Listing:
    """N image files: their paths relative to `root`, their labels, and the name of each class.

    `arrays` holds the paths as packed strings, `paths_crcs` uint32 (N,), `targets` int64 (N,), -1 for an invalid label,
    or int8 (N, classes) with several labels per image, and `lines` int32 (N,): the lines of `file` that name the
    images, if there is one. With DATA.GROUPS, the groups of the images are packed strings, too; of images to predict,
    the texts that name them in a list, in `column`, are the packed strings `listed`.

    `findings` are messages about errors, `notes` are for the log: one line of text each. `has_class_names` is
    False if the names are only the labels. `sizes`: the number of images in each folder, by its path relative to
    `root`, of class folders.
    """

    root: Path
    class_names: list[str]
    arrays: Mapping[str, np.ndarray]
    file: Path | None = None
    findings: list[Finding] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    has_class_names: bool = True
    column: str = "path"
    sizes: Mapping[str, int] = field(default_factory=dict)

    @property
    def paths(self) -> PackedStrings:
        return strings_in(self.arrays, "paths")

    @property
    def groups(self) -> PackedStrings | None:
        return strings_in(self.arrays, "groups") if "groups" in self.arrays else None

    def location(self, index: int) -> str:
        """A line of the list or, without a list, the image file."""
        return f"{self.file}:{self.arrays['lines'][index]}" if self.file else str(self.root / self.paths[index])

    def select(self, indices: np.ndarray) -> "Listing":
        """The listing of the images at `indices` (M,), sorted and unique, with all `findings` and `notes`."""
        per_image = self.arrays.keys() & {"targets", "paths_crcs", "lines"}
        columns = {name: self.arrays[name][indices] for name in per_image}
        columns |= to_arrays(self.groups.select(indices), "groups") if self.groups else {}
        return replace(self, arrays=to_arrays(self.paths.select(indices), "paths") | columns)


def is_broken_link(path: str | Path) -> bool:
    return os.path.islink(path) and not os.path.exists(path)


def listing_arrays(
    paths: StringPacker, targets: np.ndarray | None = None, lines: np.ndarray | None = None
) -> dict[str, np.ndarray]:
    """The `arrays` of a `Listing`; without `targets` each image has the label 0."""
    targets = np.zeros(len(paths), np.int64) if targets is None else targets
    columns = {"paths_crcs": paths.crcs(), "targets": targets} | ({} if lines is None else {"lines": lines})
    return to_arrays(paths.strings(), "paths") | columns


class ImageFiles(EncodedImages):
    """The image files of a listing. All processes map one copy of the listing's arrays."""

    def __init__(self, listing: Listing) -> None:
        super().__init__(listing.class_names)
        self.listing = replace(listing, arrays=share_arrays(listing.arrays), sizes={})
        self._labels = self.listing.arrays
        self.findings, self.notes = listing.findings, listing.notes
        self.has_class_names, self.column = listing.has_class_names, listing.column

    def name(self, index: int) -> str:
        """The file's path: a str, because each Path interns its parts, which would add up to millions of strings."""
        return os.path.join(str(self.listing.root), self.listing.paths[index])

    def listed_name(self, index: int) -> str:
        arrays = self.listing.arrays
        return strings_in(arrays, "listed")[index] if "listed" in arrays else super().listed_name(index)

    @property
    def groups(self) -> PackedStrings | None:
        return self.listing.groups

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
        return self.listing.location(index)

    def checksums(self) -> np.ndarray:
        """Of the relative paths in NFC, combined with the sizes of a few files; the order does not matter."""
        checksums = self.listing.arrays["paths_crcs"].copy()
        for index in self._few:
            checksums[index] ^= os.path.getsize(path) % 2**32 if os.path.isfile(path := self.name(index)) else 0
        return checksums

    def states(self) -> np.ndarray:
        return np.array([file_state(self.name(index)) for index in range(len(self))], np.uint64)

    @property
    def _few(self) -> list[int]:
        """Indices of the files whose paths have the smallest checksums, sorted."""
        return sorted(self.listing.arrays["paths_crcs"].argsort()[:_FEW_FILES].tolist())

    def find_missing_files(self) -> Sequence[Finding]:
        errors = [self.missing_image(index) for index in self._few]
        return [error for error in errors[:1] if error and all(errors)]

    def missing_image(self, index: int) -> MissingImage | None:
        """The error for an image that is not a file; None for a file."""
        if os.path.isfile(path := self.name(index)):
            return None
        if is_broken_link(path):
            reason = f"{shorten(self.listing.paths[index])} is a broken link, to {shorten(os.readlink(path))}"
            return MissingImage(self.location(index), reason, "restore its target, or remove the link")
        reason = f"{shorten(self.listing.paths[index])} is not a file in {self.listing.root}"
        fix = "correct the path, or set DATA.IMAGE_ROOT to the folder of these paths"
        return MissingImage(self.location(index), reason, fix if self.listing.file else "restore it")
