"""A folder of files as one checkpoint: complete if all files match the SHA-256 in its manifest, replaced by renaming.

The manifest is written last. Its text is a function of its values, so that every flipped bit in it is detected.
"""

import hashlib
import json
import os
import re
import shutil
import stat
from pathlib import Path
from typing import NamedTuple

from utils.errors import Unavailable, UserError, error_from
from utils.file_formats.json_content import parse_json, refused
from utils.files import fsync_path, link_or_copy, open_regular_file, temporary_path

SHARDS = ".shards"  # the suffix of these folders
MANIFEST, CONTENT = "manifest.json", "content.json"
_FORMAT = 1
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\.safetensors")
_MAX_NAME_CHARS = 256
_MAX_MANIFEST_BYTES = 8 << 20


class FileEntry(NamedTuple):
    """The size and the SHA-256 of a file."""

    bytes: int
    sha256: str


def is_checkpoint_folder(path: Path | str) -> bool:
    return Path(path).suffix == SHARDS and os.path.isdir(path)


def read_manifest(folder: Path) -> dict[str, FileEntry]:
    """The files of a folder. Their names and sizes are checked here, their contents by `read_verified`.

    Raises:
        UserError: no manifest, or the folder has other files than it says.
    """
    try:
        text = _read_regular(folder / MANIFEST, _MAX_MANIFEST_BYTES).decode("ascii")
        content = parse_json(text)
        files = {name: FileEntry(**entry) for name, entry in content["files"].items()}
        if content["format"] != _FORMAT or text != _manifest_text(files):
            raise ValueError("not a manifest of this format")
        if not all(type(entry.bytes) is int and len(name) < _MAX_NAME_CHARS for name, entry in files.items()):
            raise ValueError("an impossible name or size")
        found = {path.name: path.lstat() for path in folder.iterdir() if path.name != MANIFEST}
    except FileNotFoundError:
        raise Unavailable(f"{folder}: has no {MANIFEST}: it was not saved completely; use another") from None
    except OSError as error:
        raise error_from(error, f"{folder}: cannot be read: {error.strerror}; use another") from None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise refused(folder / MANIFEST, error) from None
    for name in sorted({CONTENT} | files.keys() | found.keys()):
        is_valid = name in files and name in found and (name == CONTENT or _NAME.fullmatch(name))
        if not is_valid or not stat.S_ISREG(found[name].st_mode) or found[name].st_size != files[name].bytes:
            raise UserError(
                f"{folder}: is damaged: {name!r} is missing, has another size, or is not part of it; use another"
            )
    return files


def verify_file(path: Path, entry: FileEntry) -> None:
    """Raises a UserError if the file does not have this SHA-256."""
    try:
        found = describe_file(path)
    except OSError as error:
        raise error_from(error, f"{path}: cannot be read: {error.strerror}; use another") from None
    if found != entry:
        raise UserError(f"{path}: is damaged (its checksum does not match); use another")


def read_verified(path: Path, entry: FileEntry, max_bytes: int) -> bytes:
    """The content of a small file; raises a UserError if it has another SHA-256 or is larger than `max_bytes`."""
    try:
        content = _read_regular(path, max_bytes)
    except (OSError, ValueError) as error:
        raise refused(path, error) from None
    if FileEntry(len(content), hashlib.sha256(content).hexdigest()) != entry:
        raise UserError(f"{path}: is damaged (its checksum does not match); use another")
    return content


def _read_regular(path: Path, max_bytes: int) -> bytes:
    with open_regular_file(path) as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise ValueError("too large")
    return content


def describe_file(path: Path) -> FileEntry:
    with open_regular_file(path) as file:
        sha256 = hashlib.file_digest(file, "sha256")
        return FileEntry(file.tell(), sha256.hexdigest())


def write_synced(path: Path, content: str) -> FileEntry:
    """Writes a file and syncs it to the disk."""
    data = content.encode("ascii")
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return FileEntry(len(data), hashlib.sha256(data).hexdigest())


def write_manifest(folder: Path, files: dict[str, FileEntry]) -> None:
    """Completes the folder: all other files must be written and synced."""
    write_synced(folder / MANIFEST, _manifest_text(files))
    fsync_path(folder)


def _manifest_text(files: dict[str, FileEntry]) -> str:
    entries = {name: files[name]._asdict() for name in sorted(files)}
    return json.dumps({"format": _FORMAT, "files": entries}, indent=1) + "\n"


def link_folder(source: Path, target: Path) -> None:
    """`target` becomes a folder of hard links to the files of `source`, or of copies."""
    temporary = temporary_path(target)
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    for path in sorted(source.iterdir()):
        link_or_copy(path, temporary / path.name)
    replace_folder(temporary, target)


def replace_folder(new: Path, target: Path, previous: Path | None = None) -> None:
    """Renames `new` to `target`. The old folder is kept as `previous`, if given: one of the two is always complete."""
    discarded = None
    if target.exists():
        discarded = _set_aside(previous or target)
    if previous and target.exists():
        os.rename(target, previous)
    os.rename(new, target)
    fsync_path(target.parent)
    if discarded:
        shutil.rmtree(discarded, ignore_errors=True)


def discard_folder(folder: Path) -> None:
    """Removes a folder; a kill leaves no part of it under its name."""
    if discarded := _set_aside(folder):
        shutil.rmtree(discarded, ignore_errors=True)


def _set_aside(folder: Path) -> Path | None:
    if not folder.exists():
        return None
    aside = temporary_path(folder.with_name(f"{folder.name}.old"))
    shutil.rmtree(aside, ignore_errors=True)
    os.rename(folder, aside)
    return aside
