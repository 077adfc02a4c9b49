"""Opening what others have named."""

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO


def open_regular_file(path: Path | str) -> BinaryIO:
    """Opens a file for reading bytes; what is none (a pipe, a device) would be waited for, or never end.

    Raises:
        OSError: it cannot be opened, or is no file.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "is no file but a folder or a device", str(path))
    return os.fdopen(descriptor, "rb")
