"""The version of the program, and options that other versions wrote."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from utils.errors import UserError

VERSION = "0.3.0.dev0"  # as in pyproject.toml
WRITTEN_BY = "VERSION"  # the key beside the options of a run: the version that wrote them; no option


def refuse_newer(options: Mapping[str, Any], source: str | Path) -> None:
    """Raises UserError if a newer version wrote these options: a key may have another meaning there."""
    version = options.get(WRITTEN_BY)
    if _release(version) > _release(VERSION):
        raise UserError(f"{source}: was written by version {version}, newer than this one, {VERSION}; use that version")


def _release(version: Any) -> list[int]:
    return [int(number) for number in re.findall(r"\d{1,9}", str(version))[:3]]
