"""Opening files that a user or a data set names."""

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO


def open_regular_file(path: Path | str) -> BinaryIO:
    """Opens a regular file for reading bytes. A pipe would block, and a device may have no end.

    Raises:
        OSError: it cannot be opened, or is a folder, pipe or device.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return os.fdopen(descriptor, "rb")
