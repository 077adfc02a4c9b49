"""Files that arrive whole or not at all: written beside, synced, renamed, and carrying their own SHA-256.

The seal is the comment that a ZIP archive may end with; `torch.save` writes ZIP archives, so a sealed file is still an
ordinary one that `torch.load` reads.
"""

import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import torch

from utils.errors import UserError

_DIGEST_BYTES = 64
_NO_COMMENT = b"\0\0"
_SEAL_START = (len(b"sha256=") + _DIGEST_BYTES).to_bytes(2, "little") + b"sha256="
_CHUNK_BYTES = 1 << 22


class _Digester:
    """A file object for `torch.save` that hashes what passes and keeps the error that torch would hide."""

    def __init__(self, file: Any) -> None:
        self.file = file
        self.sha256 = hashlib.sha256()
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        self.sha256.update(data)
        try:
            return self.file.write(data)
        except OSError as error:
            self.error = error
            raise

    def flush(self) -> None:
        self.file.flush()


def atomic_save(path: Path, content: Any, previous: Path | None = None) -> None:
    """Writes `torch.save(content)` so that `path` is at any moment either the old file or the new one.

    The old one stays as `previous`, if that is given.

    Raises:
        UserError: it could not be written; the old file stays, and no part of the new one.
    """
    temporary = temporary_path(path)
    try:
        with open(temporary, "wb") as file:
            _write_sealed(file, content)
        if previous and path.exists():
            link_or_copy(path, previous)
        os.replace(temporary, path)
        fsync_folder(path.parent)
    except OSError as error:
        written = temporary.stat().st_size if temporary.exists() else 0
        temporary.unlink(missing_ok=True)
        raise UserError(
            f"{path}: cannot be saved: {error.strerror}, after {written:,} of about {tensor_bytes(content):,} bytes, "
            f"with {shutil.disk_usage(path.parent).free:,} free; what was saved before stays: make room and resume"
        ) from None


def temporary_path(path: Path) -> Path:
    return path.with_name(f".{path.name}.tmp")


def iter_tensors(content: Any) -> Iterator[torch.Tensor]:
    """In nested dicts, lists and tuples."""
    if isinstance(content, torch.Tensor):
        yield content
    elif isinstance(content, dict | list | tuple):
        for part in content.values() if isinstance(content, dict) else content:
            yield from iter_tensors(part)


def tensor_bytes(content: Any) -> int:
    """What its tensors take."""
    return sum(tensor.numel() * tensor.element_size() for tensor in iter_tensors(content))


def _write_sealed(file: BinaryIO, content: Any) -> None:
    digester = _Digester(file)
    try:
        torch.save(content, digester)
    except RuntimeError as error:
        raise (digester.error or error) from None
    file.seek(-len(_NO_COMMENT), os.SEEK_END)
    file.write(_SEAL_START + digester.sha256.hexdigest().encode())
    file.flush()
    os.fsync(file.fileno())


def link_or_copy(source: Path, target: Path) -> None:
    """The same content under a second name, without writing it again where the file system can link."""
    temporary = temporary_path(target)
    temporary.unlink(missing_ok=True)
    try:
        os.link(source, temporary)
    except OSError:
        shutil.copyfile(source, temporary)
    os.replace(temporary, target)
    fsync_folder(target.parent)


def fsync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def verify_checksum(path: Path, required: bool = False) -> None:
    """Compares a sealed file with its seal; a file without one passes unless a seal is `required`.

    Raises:
        UserError: the content is not what was written.
    """
    with open(path, "rb") as file:
        content_bytes = file.seek(0, os.SEEK_END) - len(_SEAL_START) - _DIGEST_BYTES
        file.seek(max(content_bytes, 0))
        seal = file.read()
        if not seal.startswith(_SEAL_START):
            if required:
                raise UserError(f"{path}: is damaged or none of our checkpoints (no checksum); take another")
            return
        file.seek(0)
        sha256 = hashlib.sha256()
        while content_bytes:
            chunk = file.read(min(content_bytes, _CHUNK_BYTES))
            sha256.update(chunk)
            content_bytes -= len(chunk)
        sha256.update(_NO_COMMENT)
    if sha256.hexdigest().encode() != seal[len(_SEAL_START) :]:
        raise UserError(f"{path}: is damaged (its checksum does not match); take another")
