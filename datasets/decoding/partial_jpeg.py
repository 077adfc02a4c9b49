"""A part of a JPEG, decoded without most of the rest: libjpeg-turbo, as nvImageCodec has it for CPUs."""

import functools
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

Box = tuple[int, int, int, int]  # top, left, height, width in pixels

# As libjpeg does by itself; without it colours are 1.7 of 255 off.
_OPTIONS = ":fancy_upsampling=1"


def decode_part(data: bytes, box: Box) -> torch.Tensor | None:
    """The box of a colour JPEG as torch.uint8 (3, height, width), whatever its EXIF data say of turning.

    None where the library is not there, or refuses. Of a file that was cut off it may make up the rest.
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
    if image is None:
        return None
    return torch.from_numpy(np.asarray(image)).permute(2, 0, 1)


@functools.cache
def _codec(thread: int) -> tuple[Any, Any, Any] | None:
    """The library, a decoder, which two threads may not share, and how to decode; None where it is not installed."""
    with _silenced():
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
def _silenced() -> Iterator[None]:
    """While it is loaded, the library tells of parts for a GPU that it does not find; they are not needed."""
    os.environ.setdefault("PYNVIMGCODEC_VERBOSITY", "0")
    standard_error = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(standard_error, 2)
        os.close(standard_error)
        os.close(nowhere)
