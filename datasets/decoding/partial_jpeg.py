"""Decodes a part of a JPEG with libjpeg-turbo, through nvImageCodec's CPU backend."""

import functools
import os
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

_SOF0, _SOS = 0xFFC0, 0xFFDA  # start of a baseline frame, start of the pixels
# Tables, restart interval, comment, APP0 and APP2 to APP15. APP1 (EXIF, XMP) may rotate the image.
_SKIPPED = frozenset((0xFFC4, 0xFFDB, 0xFFDD, 0xFFFE, 0xFFE0, *range(0xFFE2, 0xFFF0)))


def baseline_size(data: bytes, channels: int) -> tuple[int, int] | None:
    """Height and width in pixels of a baseline JPEG that is gray or has `channels` of 8 bits, and no EXIF data.

    None for all other files, also damaged ones: Pillow recognizes or refuses them.
    """
    position, size = 2, None
    try:
        while data.startswith(b"\xff\xd8"):
            marker, length = struct.unpack_from(">HH", data, position)
            if marker == _SOS:
                return size
            if marker == _SOF0 and size is None:
                bits, height, width, components = struct.unpack_from(">BHHB", data, position + 4)
                is_known = bits == 8 and components in (1, channels) and length == 8 + 3 * components
                if not is_known or not height * width:
                    return None
                size = height, width
            elif marker not in _SKIPPED or length < 2:
                return None
            position += 2 + length
    except struct.error:
        pass  # truncated
    return None


Box = tuple[int, int, int, int]  # top, left, height, width in pixels

# libjpeg's own default; without it colors differ by 1.7 of 255.
_OPTIONS = ":fancy_upsampling=1"


def decode_part(data: bytes, box: Box) -> torch.Tensor | None:
    """Decodes a box of a JPEG to torch.uint8 (3, height, width); ignores the EXIF orientation.

    Returns None if nvImageCodec is not installed or cannot decode the file. The missing end of a truncated file may be
    filled with arbitrary pixels.
    """
    codec = _codec(threading.get_ident())
    if codec is None:
        return None
    library, decoder, parameters = codec
    top, left, height, width = box
    region = library.Region(top, left, top + height, left + width)
    try:
        image = decoder.decode(library.CodeStream(data).get_sub_code_stream(region=region), params=parameters)
    except RuntimeError:
        return None
    return None if image is None else torch.from_numpy(np.asarray(image)).permute(2, 0, 1)


@functools.cache
def _codec(thread: int) -> tuple[Any, Any, Any] | None:
    """The library, a decoder for one thread (threads cannot share one), and its parameters; None if not available."""
    with _stderr_suppressed():
        try:
            from nvidia import nvimgcodec as library

            backends = [library.Backend(library.BackendKind.CPU_ONLY)]
            decoder = library.Decoder(
                device_id=library.NVIMGCODEC_DEVICE_CPU_ONLY, max_num_cpu_threads=1, backends=backends, options=_OPTIONS
            )
            parameters = library.DecodeParams(apply_exif_orientation=False)
        except Exception:  # not installed, or not for this machine
            return None
    return library, decoder, parameters


@contextmanager
def _stderr_suppressed() -> Iterator[None]:
    """Hides warnings about missing GPU backends while the library is loaded: they are not needed."""
    os.environ.setdefault("PYNVIMGCODEC_VERBOSITY", "0")
    standard_error = os.dup(2)
    null_device = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(null_device, 2)
        yield
    finally:
        os.dup2(standard_error, 2)
        os.close(standard_error)
        os.close(null_device)
