"""Whether the program can run on this system. This module imports nothing that is missing on another one."""

import importlib.util
import os
import sys
import tempfile

_MIN_OPEN_FILES = 64  # torch's store waits for minutes where two ranks have fewer


def why_unusable() -> str | None:
    """The problem that would make a later import fail, such as torch's, and its remedy; None if there is none."""
    if sys.platform not in ("linux", "darwin"):
        return f"this system ({sys.platform}) is not supported; use Linux, macOS, or WSL 2 on Windows"
    try:
        os.getcwd()
    except OSError as error:
        return f"the current folder: {error.strerror}; change to one that exists"
    try:
        tempfile.gettempdir()
    except OSError as error:
        return f"TMPDIR: {error.strerror}; set it to a folder that can be written"
    import resource  # Windows lacks it

    if 0 <= (open_files := resource.getrlimit(resource.RLIMIT_NOFILE)[0]) < _MIN_OPEN_FILES:
        return (
            f"ulimit -n is {open_files}: too few open files; raise it to at least {_MIN_OPEN_FILES} (ulimit -n 65536)"
        )
    if importlib.util.find_spec("pydantic") is None:
        return "pydantic is not installed; pip install -r requirements.txt (docs/install.md)"
    return None
