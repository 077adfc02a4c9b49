"""Samples with one file per image."""

import os
from dataclasses import replace

from configs.reading.yaml_io import shorten
from datasets.decoding.bad_images import BadImage
from datasets.sources.arrays.mapped_arrays import share_arrays
from datasets.sources.files.file_checks import check_files, check_some_files
from datasets.sources.files.listing import Listing
from datasets.sources.samples import MAX_FILE_BYTES, EncodedImages, read_error
from utils.files import open_regular_file

_FIX = "restore the file or remove it from the list"


class ImageFiles(EncodedImages):
    """The image files of a listing. All processes map one copy of the listing's arrays."""

    def __init__(self, listing: Listing) -> None:
        super().__init__(listing.class_names)
        self.listing = replace(listing, arrays=share_arrays(listing.arrays))
        self._labels = self.listing.arrays
        self.findings, self.notes = listing.findings, listing.notes
        self.has_class_names = listing.has_class_names

    def name(self, index: int) -> str:
        """The file's path: a str, because each Path interns its parts, which would add up to millions of strings."""
        return os.path.join(str(self.listing.root), self.listing.paths[index])

    def read_bytes(self, index: int) -> bytes:
        path = self.name(index)
        try:
            with open_regular_file(path) as file:
                size = os.fstat(file.fileno()).st_size
                if size > MAX_FILE_BYTES:
                    raise BadImage(path, f"cannot be read ({size / 1e6:.0f} MB is too large for an image)", _FIX)
                return file.read()
        except OSError as error:
            raise read_error(error, path, path, _FIX) from error

    def location(self, index: int) -> str:
        return self.listing.location(index)

    def check_files(self) -> list[str]:
        listing, problems = self.listing, check_files(self.listing)
        if problems.num_checked < len(self):
            self.notes.append(
                f"{listing.file}: checked that {problems.num_checked} of {len(self)} files exist; the others are "
                "checked when they are read"
            )
        missing = [self._not_a_file(index) for index in problems.missing]
        unreadable = [
            f"{self.name(index)}: this user may not read it; change its permissions" for index in problems.unreadable
        ]
        return missing + unreadable

    def check_some_files(self) -> list[str]:
        return [self._not_a_file(index) for index in check_some_files(self.listing)]

    def _not_a_file(self, index: int) -> str:
        listing = self.listing
        path = shorten(listing.paths[index])
        return f"{listing.location(index)}: {path} is not a file in {listing.root}; write paths relative to it"
