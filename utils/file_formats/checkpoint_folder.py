"""A folder of files as one checkpoint, which is replaced by renaming: its manifest, and its content without pickle.

The folder is complete if all files match the SHA-256 in the manifest, which is written last. The text of the manifest
is a function of its values, so that every flipped bit in it is detected.

The content is JSON and named tensors, and every type comes back as it was. JSON objects whose only key begins with `$`
stand for types that JSON lacks: `$tensor` (its name, dtype and shape), `$tuple`, and `$items` (a dict with keys that
are not strings, such as an optimizer's state).
"""

import hashlib
import json
import os
import re
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from utils.errors import Unavailable, UserError, error_from
from utils.files import fsync_path, link_or_copy, open_regular_file, temporary_path

if TYPE_CHECKING:  # imported late: scripts read a manifest before they need torch
    import torch

SHARDS = ".shards"  # the suffix of these folders
MANIFEST, CONTENT = "manifest.json", "content.json"
_MAX_JSON_BYTES = 32 << 20  # of the manifest, and of the content
_FORMAT = 1
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\.safetensors")


class FileEntry(NamedTuple):
    """The size and the SHA-256 of a file."""

    bytes: int
    sha256: str


def is_checkpoint_folder(path: Path | str) -> bool:
    return Path(path).suffix == SHARDS and os.path.isdir(path)


def read_manifest(folder: Path) -> dict[str, FileEntry]:
    """The files of a folder. Their names and sizes are checked here, their contents by `verify_file`.

    Raises UserError: no manifest, or the folder has other files than it says.
    """
    try:
        with open_regular_file(folder / MANIFEST) as file:
            text = file.read(_MAX_JSON_BYTES).decode("ascii")
        content = json.loads(text)
        files = {name: FileEntry(**entry) for name, entry in content["files"].items()}
        if content["format"] != _FORMAT or text != _manifest_text(files) or files[CONTENT].bytes > _MAX_JSON_BYTES:
            raise ValueError("not a manifest of this format")
        found = {path.name: path.lstat() for path in folder.iterdir() if path.name != MANIFEST}
    except FileNotFoundError:
        raise Unavailable(f"{folder}: has no {MANIFEST}: it was not saved completely; use another") from None
    except OSError as error:
        raise error_from(error, f"{folder}: cannot be read: {error.strerror}; use another") from None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise refused(folder / MANIFEST, error) from None
    for name in sorted(files.keys() | found.keys()):
        is_valid = name in files and name in found and (name == CONTENT or _NAME.fullmatch(name))
        if not is_valid or not stat.S_ISREG(found[name].st_mode) or found[name].st_size != files[name].bytes:
            problem = f"{folder}: is damaged: {name[:100]!r} is missing, has another size, or is not part of it"
            raise UserError(f"{problem}; use another")
    return files


def verify_file(path: Path, entry: FileEntry) -> None:
    """Raises a UserError if the file does not have this SHA-256."""
    try:
        found = describe_file(path)
    except OSError as error:
        raise error_from(error, f"{path}: cannot be read: {error.strerror}; use another") from None
    if found != entry:
        raise UserError(f"{path}: is damaged (its checksum does not match); use another")


def read_content(folder: Path, files: dict[str, FileEntry] | None = None) -> dict[str, Any]:
    """All but the tensors, with a `StoredTensor` for each, verified. files: the manifest.

    Raises UserError: a damaged content or manifest.
    """
    path = folder / CONTENT
    verify_file(path, (files or read_manifest(folder))[CONTENT])
    try:
        content = _decode(json.loads(path.read_bytes()), folder)
        if not isinstance(content, dict):
            raise TypeError("no dict")
    except (ValueError, TypeError, RecursionError) as error:
        raise refused(path, error) from None
    return content


def read_entries(path: Path) -> dict[str, Any]:
    """The content of a checkpoint, a file or a folder, whose tensors stay on the disk; empty if it cannot be read.

    The tensors are not verified: for its position, its best evaluation and its options.
    """
    try:
        if is_checkpoint_folder(path):
            return read_content(path)
        import torch  # imported late: -h needs none of it

        from utils.file_formats.pickles import checked_archive_bytes

        checked_archive_bytes(path)
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception:  # the libraries raise almost any type for a damaged file
        return {}
    return content if isinstance(content, dict) else {}


def describe_file(path: Path) -> FileEntry:
    with open_regular_file(path) as file:
        sha256 = hashlib.file_digest(file, "sha256")
        return FileEntry(file.tell(), sha256.hexdigest())


def write_synced(path: Path, content: str) -> FileEntry:
    """Writes a file and syncs it to the disk."""
    path.write_text(content, "ascii")
    fsync_path(path)
    return describe_file(path)


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
    discarded = _moved_aside(previous or target) if target.exists() else None
    if previous and target.exists():
        os.rename(target, previous)
    os.rename(new, target)
    fsync_path(target.parent)
    if discarded:  # it takes long: only when the new one has its name
        shutil.rmtree(discarded, ignore_errors=True)


def discard_folder(folder: Path) -> None:
    """Removes a folder; a kill leaves no part of it under its name."""
    if discarded := _moved_aside(folder):
        shutil.rmtree(discarded, ignore_errors=True)


def _moved_aside(folder: Path) -> Path | None:
    aside = temporary_path(folder.with_name(f"{folder.name}.old"))
    shutil.rmtree(aside, ignore_errors=True)
    return folder.rename(aside) if folder.exists() else None


@dataclass(frozen=True)
class StoredTensor:
    """A tensor that is still in a checkpoint folder: `name` there, `dtype` such as 'float32', `shape`."""

    folder: Path
    name: str
    dtype: str
    shape: tuple[int, ...]


def encode_content(content: dict[str, Any]) -> "tuple[str, dict[str, torch.Tensor]]":
    """The content as a JSON text, and its tensors by name: the keys on the way to them, joined by dots.

    Raises ValueError or TypeError: content of another type, or too much of it.
    """
    import torch

    tensors: dict[str, torch.Tensor] = {}

    def encode(value: Any, name: str) -> Any:
        if isinstance(value, torch.Tensor):
            tensors[name] = value
            return {"$tensor": [name, str(value.dtype).removeprefix("torch."), list(value.shape)]}
        if isinstance(value, list | tuple):
            parts = [encode(part, f"{name}.{number}") for number, part in enumerate(value)]
            return parts if isinstance(value, list) else {"$tuple": parts}
        if isinstance(value, dict):
            entries = {key: encode(part, f"{name}.{key}" if name else str(key)) for key, part in value.items()}
            is_object = all(isinstance(key, str) and not key.startswith("$") for key in entries)
            return entries if is_object else {"$items": [[key, part] for key, part in entries.items()]}
        return value

    text = json.dumps(encode(content, ""), allow_nan=False, separators=(",", ":"))
    if len(text) > _MAX_JSON_BYTES:
        raise ValueError(f"{len(text):,} characters besides tensors; the limit is {_MAX_JSON_BYTES:,}")
    return text, tensors


def _decode(value: Any, folder: Path) -> Any:
    """The value that `encode_content` has encoded; raises ValueError or TypeError for other JSON."""
    if isinstance(value, list):
        return [_decode(part, folder) for part in value]
    if not isinstance(value, dict):
        return value
    match list(value.items()):
        case [("$tuple", list(parts))]:
            return tuple(_decode(part, folder) for part in parts)
        case [("$items", list(pairs))]:
            return {key: _decode(part, folder) for key, part in pairs}
        case [("$tensor", [str(name), str(dtype), list(shape)])]:
            if not all(type(size) is int and size >= 0 for size in shape):
                raise ValueError("a tensor of an impossible shape")
            return StoredTensor(folder, name, dtype, tuple(shape))
    if any(key.startswith("$") for key in value):
        raise ValueError("an unknown mark")
    return {key: _decode(part, folder) for key, part in value.items()}


def refused(path: Path, error: BaseException) -> UserError:
    return UserError(f"{path}: is damaged or not a checkpoint of this project ({type(error).__name__}); use another")
