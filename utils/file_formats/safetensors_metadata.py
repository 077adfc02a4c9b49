"""The metadata of a .safetensors file: names and texts in its header."""

from pathlib import Path

from safetensors import safe_open


def read_metadata(path: Path | str) -> dict[str, str]:
    """The metadata, without reading a tensor; empty if the file has none, or is damaged or of another format."""
    try:
        with safe_open(path, framework="numpy") as file:
            return file.metadata() or {}
    except Exception:  # the library raises almost any type for a damaged file
        return {}
