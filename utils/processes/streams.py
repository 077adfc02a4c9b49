"""Keeps a program running if standard output or standard error is closed, or loses its terminal."""

import errno
import io
import os
import sys
from typing import Any


def repair_standard_streams() -> None:
    """Replaces closed streams; for the start of a program.

    A stream that is closed is replaced by the null device: otherwise the next file that is opened, such as a
    checkpoint, would receive its descriptor and all printed text. A terminal or a pipe that goes away later stops no
    run.
    """
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # receives the lowest free descriptor, which is this one
        if getattr(sys, name) is None:
            setattr(sys, name, open(descriptor, "w" if descriptor else "r", closefd=False))  # noqa: SIM115
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper) and stream is getattr(sys, f"__{name}__"):  # no test has replaced it
            setattr(sys, name, _tolerant_output(stream))


_LOST = (errno.EIO, errno.EPIPE, errno.ENOSPC)  # the terminal or the reader of a pipe has gone; a full disk


class _TolerantFile(io.FileIO):
    """Ignores the error of writing to a stream that is lost: the log files have the same lines."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if error.errno not in _LOST:
                raise
            return len(memoryview(data))


def _tolerant_output(stream: io.TextIOWrapper) -> io.TextIOWrapper:
    stream.flush()
    binary = io.BufferedWriter(_TolerantFile(stream.fileno(), "w", closefd=False))
    return io.TextIOWrapper(binary, stream.encoding, stream.errors, line_buffering=stream.line_buffering)
