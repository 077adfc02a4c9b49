"""The pictures of mistakes as data URIs."""

import base64
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

_MAX_FILE_BYTES = 500_000  # a thumbnail has a few thousand


@dataclass(frozen=True)
class Picture:
    """uri: the whole file. width, height: in pixels."""

    uri: str
    width: int
    height: int


def read_picture(path: Path) -> Picture | None:
    """None if there is no such file, or it is not a JPEG of at most 500 kB."""
    try:
        if path.stat().st_size > _MAX_FILE_BYTES:
            return None
        with Image.open(path, formats=["JPEG"]) as image:
            width, height = image.size
        data = base64.b64encode(path.read_bytes()).decode()
    except (OSError, ValueError, Image.DecompressionBombError):
        return None
    return Picture(f"data:image/jpeg;base64,{data}", width, height)
