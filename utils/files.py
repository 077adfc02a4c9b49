"""Opening files that a user or a data set names, and temporary folders of this process."""

import errno
import io
import json
import os
import stat
import tempfile
from pathlib import Path
from typing import Any
from weakref import WeakSet

_temporary_folders = WeakSet["tempfile.TemporaryDirectory[str]"]()


def make_temporary_folder(prefix: str) -> "tempfile.TemporaryDirectory[str]":
    """A folder that its `cleanup` removes, or at the latest the exit of this process, except by SIGKILL."""
    folder = tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True)
    _temporary_folders.add(folder)
    return folder


def remove_temporary_folders() -> None:
    """Removes them; for use before `os._exit`, which runs no exit handlers."""
    for folder in list(_temporary_folders):
        folder.cleanup()


def absolute_file(path: str) -> str:
    """The absolute path if there is such a file or folder; another text, such as a name, is unchanged."""
    return os.path.abspath(path) if os.path.exists(path) else path


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; empty if the file is missing or damaged."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return values if isinstance(values, dict) else {}


def open_regular_file(path: Path | str) -> io.BufferedReader:
    """Opens a regular file for reading bytes. A pipe would block, and a device may have no end.

    Raises:
        OSError: it cannot be opened, or is a folder, pipe or device.
    """
    return os.fdopen(_open_regular(path)[0], "rb")


def read_regular_file(path: str, max_bytes: int) -> tuple[bytes, int]:
    """The content of a file, and its size; without content if the size is more than `max_bytes`.

    In a third of the time of a file object. Raises OSError as `open_regular_file`.
    """
    descriptor, size = _open_regular(path)
    try:
        data = os.read(descriptor, size) if size <= max_bytes else b""
        while len(data) < size <= max_bytes and (more := os.read(descriptor, size - len(data))):
            data += more  # a network disk may return a part
        return data, size
    finally:
        os.close(descriptor)


def _open_regular(path: Path | str) -> tuple[int, int]:
    """The descriptor and the size of a file."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return descriptor, status.st_size
