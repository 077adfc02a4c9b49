"""The headers of TIFF and BigTIFF files: which pages there are, and how the pixels of the first one are stored."""

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any, BinaryIO

import numpy as np
from PIL.ExifTags import Base
from PIL.TiffImagePlugin import ImageFileDirectory_v2

from utils.library_compat import read_tiff_places_of_8_bytes

_BIG = 43
_OVERVIEW_OR_MASK = 1 | 4  # bits of NewSubfileType

Page = Mapping[int, Any]  # its tags

read_tiff_places_of_8_bytes()


class TiffHeader:
    """The header of an opened file. head: its first bytes. page: the first one; empty if the file has none."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.head = file.read(16)
        self.page = next(self._pages(), {})

    def __getitem__(self, tag: str) -> set[int]:
        """The different values of a tag of the first page, such as one for each band; 1 if it is missing."""
        return {*np.ravel(self.page.get(Base[tag], 1)).tolist()}

    def has_more_pages(self) -> bool:
        """Tells whether there are pages after the first one that are no overviews or masks."""
        _, *others = self._pages()
        return not all(map(_is_part, others))

    def begins_with_preview(self) -> bool:
        """Tells whether the first page is a small copy of an image in a SubIFD, or on another page."""
        others = chain.from_iterable(map(self._pages, self.page.get(Base.SubIFDs, ())))
        if _is_part(self.page):
            others = chain(others, self._pages())
        width = self.page[Base.ImageWidth]
        return any(page[Base.ImageWidth] > width and not _is_part(page) for page in others)

    def _pages(self, place: int = 0) -> Iterator[Page]:
        """Each page from a place in the file, or from the first page."""
        seen = set()
        while place not in seen:
            page = ImageFileDirectory_v2(self.head if self.head[2] == _BIG else self.head[:8])
            place = place or page.next
            seen |= {0, place}
            self._file.seek(place)
            page.load(self._file)
            yield page
            place = page.next


def _is_part(page: Page) -> bool:
    """Tells whether a page is an overview or a mask of another one."""
    return bool(page.get(Base.NewSubfileType, 0) & _OVERVIEW_OR_MASK)
