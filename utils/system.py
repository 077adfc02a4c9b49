"""Whether the program can run on this system. This module imports nothing that is missing on another one."""

import importlib.util
import os
import sys
import tempfile


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
    if importlib.util.find_spec("pydantic") is None:
        return "pydantic is not installed; pip install -r requirements.txt (docs/install.md)"
    return None
