"""Torch's files before their tensors are read: the size of an archive, and the small entries of a checkpoint."""

import zipfile
from pathlib import Path
from typing import Any

from utils.errors import UserError, error_from
from utils.file_formats.checkpoint_folder import (
    CONTENT,
    MAX_JSON_BYTES,
    decode_content,
    is_checkpoint_folder,
    read_manifest,
    read_verified,
)

# An archive may unpack to 64 MB + 20 times its size: zeros compress more, trained weights much less.
_FREE_BYTES, _MAX_EXPANSION = 1 << 26, 20


def checked_archive_bytes(file: Path) -> int:
    """The size of a file in bytes; of a ZIP archive, the size after unpacking.

    Raises:
        UserError: a damaged archive, or one that unpacks to many times its size.
    """
    size = file.stat().st_size
    try:
        if not zipfile.is_zipfile(file):
            return size
        with zipfile.ZipFile(file) as archive:
            unpacked = sum(member.file_size for member in archive.infolist())
    except Exception as error:  # BadZipFile, UnicodeDecodeError, struct.error, ...
        raise error_from(error, f"{file}: is a damaged archive ({type(error).__name__}); give another file") from error
    if unpacked > _FREE_BYTES + _MAX_EXPANSION * size:
        raise UserError(
            f"{file}: would unpack from {size} to {unpacked} bytes, far more than weights do; give another file"
        )
    return unpacked


def read_entries(path: Path) -> dict[str, Any]:
    """The content of a checkpoint, a file or a folder, whose tensors stay on the disk; empty if it cannot be read.

    The tensors are not verified: for its position, its best evaluation and its options.
    """
    try:
        if is_checkpoint_folder(path):
            content = decode_content(read_verified(path / CONTENT, read_manifest(path)[CONTENT], MAX_JSON_BYTES), path)
        else:
            import torch  # imported late: -h needs none of it

            checked_archive_bytes(path)
            content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception:  # the libraries raise almost any type for a damaged file
        return {}
    return content if isinstance(content, dict) else {}
