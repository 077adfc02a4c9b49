"""The headers of JPEGs, their damage, and the messages of their decoders."""

import functools
import io
import os
import re
import struct
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import NamedTuple

import numpy as np
from PIL import Image

_BASELINE = 0xFFC0
_FRAMES = (0xFFC0, 0xFFC1, 0xFFC2)  # start of a frame: baseline, extended, progressive
_ANY_FRAMES = frozenset(range(0xFFC0, 0xFFD0)) - {0xFFC4, 0xFFC8, 0xFFCC}  # of these, tables and an extension
_JPEG_LS = 0xFFF7
# start of the pixels, restart interval, EXIF or XMP
_SOS = 0xFFDA
_DRI = 0xFFDD
_APP1 = 0xFFE1
_SKIPPED = frozenset((0xFFC4, 0xFFDB, 0xFFFE, *range(0xFFE0, 0xFFF0)))  # tables, comment, APP0 to APP15


class JpegHeader(NamedTuple):
    """start: the position of the compressed pixels. restarts: the number of restart markers among them."""

    start: int
    height: int
    width: int
    components: int
    is_baseline: bool
    restarts: int
    has_app1: bool


def read_header(data: bytes) -> JpegHeader | None:
    """The header of a JPEG of 8 bits; None for all other files, also damaged ones: a decoder describes the problem."""
    position = 2
    frame = None
    sampling = b""
    interval = 0
    has_app1 = False
    with suppress(struct.error):  # truncated
        while data.startswith(b"\xff\xd8"):
            marker, length = struct.unpack_from(">HH", data, position)
            if marker == _SOS and frame:
                kind, height, width, components = frame
                restarts = (_num_blocks(height, width, sampling) - 1) // interval if interval else 0
                start = position + 2 + length
                return JpegHeader(start, height, width, components, kind == _BASELINE, restarts, has_app1)
            if marker in _FRAMES and not frame:
                bits, height, width, components = struct.unpack_from(">BHHB", data, position + 4)
                sampling = data[position + 11 : position + 2 + length : 3]
                if (bits, length) != (8, 8 + 3 * components) or components not in (1, 3, 4) or not height * width:
                    return None
                frame = marker, height, width, components
            elif marker == _DRI:
                (interval,) = struct.unpack_from(">H", data, position + 4)
            elif marker == _APP1:
                has_app1 = True
            elif marker not in _SKIPPED or length < 2:
                return None
            position += 2 + length
    return None


def unread_property(data: bytes) -> str | None:
    """The property of a JPEG that no decoder here reads, by its first frame; None for other files."""
    position = 2
    with suppress(struct.error):  # truncated
        while True:
            marker, length, bits = struct.unpack_from(">HHB", data, position)
            if marker == _JPEG_LS:
                return "is JPEG-LS"
            if marker in _ANY_FRAMES:
                return f"is a JPEG of {bits} bits per channel" if 8 < bits <= 16 else None
            if marker == _SOS:
                return None
            position += 2 + length
    return None


def _num_blocks(height: int, width: int, sampling: bytes) -> int:
    """The number of minimum coded units. sampling: the factors of each component, horizontal << 4 | vertical."""
    rows = max(one & 15 for one in sampling)
    columns = max(one >> 4 for one in sampling)
    if len(sampling) == 1:  # its blocks are not interleaved
        rows = columns = 1
    return -(-height // (8 * rows or 8)) * -(-width // (8 * columns or 8))


_END = b"\xff\xd9"
_ANY_MARKER = re.compile(rb"\xff+[\x01-\xfe]")
_FILLER = 8 * bytes(range(1, 128))  # of several blocks
_MANY = 64  # zero bytes, at the end of a file


def is_cut_short(data: bytes, image: Image.Image) -> bool:
    """Tells whether a part of the compressed pixels is missing, in whose place libjpeg leaves gray, or is zeros.

    If the image has such gray, bytes are inserted at the ends of the compressed pixels. The decoder skips them if these
    are complete, and takes them for pixels if not.

    image: the decoded image.
    """
    header = read_header(data)
    pixels = np.asarray(image)
    ends_gray = bool(_is_gray(pixels[-1, -1]).all())
    if header is None:  # damaged, too
        return ends_gray
    if (end := data.find(_END, header.start)) < 0:
        return data.endswith(bytes(_MANY))  # of a download that was not finished
    if not (ends_gray or header.restarts):
        return False
    compressed = data[header.start : end].rstrip(b"\xff")
    markers = [marker[0] for marker in re.findall(rb"\xff([\x01-\xfe])", compressed)]
    is_one_scan = header.is_baseline and _SOS & 255 not in markers
    expected = [0xD0 + number % 8 for number in range(header.restarts)]
    compared = markers if ends_gray else markers[: len(expected)]
    if is_one_scan and compared != expected:
        return True
    if not ends_gray:
        return False
    filled = _ANY_MARKER.sub(lambda marker: _FILLER + marker[0], compressed) + _FILLER + _END
    with Image.open(io.BytesIO(data[: header.start] + filled), formats=("JPEG",)) as other:
        changed = np.asarray(other) != pixels
    return bool(changed.any() and _is_gray(pixels[changed]).mean() > 0.25)  # not the last bits of a block alone


def _is_gray(values: np.ndarray) -> np.ndarray:
    return (values >= 127) & (values <= 129)


class _StandardError:
    """Descriptor 2 of this process: a pipe while threads decode images."""

    def __init__(self, process: int) -> None:
        """process: its id; a forked process needs a pipe of its own."""
        self._lock = threading.Lock()
        self._listeners = dict[int, list[str]]()
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)  # a write to a full pipe fails: libraries ignore that
        self._original = -1

    @contextmanager
    def captured(self) -> Iterator[list[str]]:
        """The lines that are written until the end of the block, by any thread."""
        lines = list[str]()
        with self._lock:
            if not self._listeners:
                self._original = os.dup(2)
                os.dup2(self._writer, 2)
            self._listeners[id(lines)] = lines
        try:
            yield lines
        finally:
            with self._lock:
                with suppress(BlockingIOError):  # nothing was written
                    found = os.read(self._reader, 1 << 16).decode(errors="replace").splitlines()
                    for listener in self._listeners.values():
                        listener += found
                del self._listeners[id(lines)]
                if not self._listeners:
                    os.dup2(self._original, 2)
                    os.close(self._original)


_standard_error = functools.cache(_StandardError)


def captured_stderr() -> AbstractContextManager[list[str]]:
    """Collects the lines that libraries write to stderr, which name no file: of all threads that decode. Takes 4 us."""
    return _standard_error(os.getpid()).captured()
