"""result.json in a run's folder: the figures of the end."""

import json
from pathlib import Path
from typing import Any

from utils.atomic_file import atomic_write

RESULT = "result.json"
MIN_CLASSES_FOR_TOP5 = 10  # with fewer, top-5 is always high


def write_result(folder: Path, result: dict[str, Any]) -> None:
    """Raises OSError; an older file is then unchanged."""
    atomic_write(folder / RESULT, json.dumps(result, indent=2) + "\n")
