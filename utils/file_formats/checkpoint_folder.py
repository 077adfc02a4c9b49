"""A folder of files as one checkpoint, which is replaced by renaming: its manifest, and its content without pickle.

The folder is complete if all files match the SHA-256 in the manifest, which is written last. The text of the manifest
is a function of its values, so that every flipped bit in it is detected.

The content is JSON and named tensors, and every type comes back as it was. JSON objects whose only key begins with `$`
stand for types that JSON lacks: `$tensor` (its name, dtype and shape), `$tuple`, and `$items` (a dict with keys that
are not strings, such as an optimizer's state).
"""

import hashlib
import json
import math
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
MAX_JSON_BYTES = 32 << 20  # of the content
_FORMAT = 1
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\.safetensors")
_MAX_MANIFEST_BYTES = 8 << 20
_MAX_DEPTH = 64
_MAX_DIMENSIONS = 16


class FileEntry(NamedTuple):
    """The size and the SHA-256 of a file."""

    bytes: int
    sha256: str


def is_checkpoint_folder(path: Path | str) -> bool:
    return Path(path).suffix == SHARDS and os.path.isdir(path)


def read_manifest(folder: Path) -> dict[str, FileEntry]:
    """The files of a folder. Their names and sizes are checked here, their contents by `read_verified`.

    Raises UserError: no manifest, or the folder has other files than it says.
    """
    try:
        text = _read_regular(folder / MANIFEST, _MAX_MANIFEST_BYTES).decode("ascii")
        content = parse_json(text)
        files = {name: FileEntry(**entry) for name, entry in content["files"].items()}
        if content["format"] != _FORMAT or text != _manifest_text(files):
            raise ValueError("not a manifest of this format")
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
                f"{folder}: is damaged: {name[:100]!r} is missing, has another size, or is not part of it; use another"
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
    discarded = _set_aside(previous or target) if target.exists() else None
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


@dataclass(frozen=True)
class StoredTensor:
    """A tensor that is still in a checkpoint folder: `name` there, `dtype` such as 'float32', `shape`."""

    folder: Path
    name: str
    dtype: str
    shape: tuple[int, ...]


def encode_content(content: Any) -> "tuple[str, dict[str, torch.Tensor]]":
    """The content as a JSON text, and its tensors by name: the keys on the way to them, joined by dots.

    Raises ValueError: content of another type, two tensors with one name, or more than MAX_JSON_BYTES.
    """
    tensors: dict[str, torch.Tensor] = {}
    text = json.dumps(_encode(content, "", tensors), allow_nan=False, separators=(",", ":"))
    if len(text) > MAX_JSON_BYTES:
        raise ValueError(f"{len(text):,} characters besides tensors; the limit is {MAX_JSON_BYTES:,}")
    return text, tensors


def _encode(value: Any, name: str, tensors: "dict[str, torch.Tensor]") -> Any:
    import torch

    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, torch.Tensor):
        if name in tensors:
            raise ValueError(f"two tensors are named {name}")
        tensors[name] = value
        return {"$tensor": [name, str(value.dtype).removeprefix("torch."), list(value.shape)]}
    if isinstance(value, list | tuple):
        parts = [_encode(part, _join(name, number), tensors) for number, part in enumerate(value)]
        return parts if isinstance(value, list) else {"$tuple": parts}
    if isinstance(value, dict):
        entries = {key: _encode(part, _join(name, key), tensors) for key, part in value.items()}
        if all(isinstance(key, str) for key in entries) and not any(key.startswith("$") for key in entries):
            return entries
        return {"$items": [[key, part] for key, part in entries.items()]}
    raise ValueError(f"{name}: {type(value).__name__} is not part of a checkpoint")


def _join(name: str, key: Any) -> str:
    return f"{name}.{key}" if name else str(key)


def decode_content(text: str | bytes, folder: Path) -> Any:
    """The content, with a `StoredTensor` in `folder` for each tensor; raises ValueError for other texts."""
    return _decode(parse_json(text), folder, 0)


def _decode(value: Any, folder: Path, depth: int) -> Any:
    if depth > _MAX_DEPTH:
        raise ValueError("too deep")
    if isinstance(value, list):
        return [_decode(part, folder, depth + 1) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value} is not JSON")
    if not isinstance(value, dict):
        return value
    if not any(key.startswith("$") for key in value):
        return {key: _decode(part, folder, depth + 1) for key, part in value.items()}
    match list(value.items()):
        case [("$tuple", list(parts))]:
            return tuple(_decode(part, folder, depth + 1) for part in parts)
        case [("$items", list(pairs))]:
            return _decode_items(pairs, folder, depth + 1)
        case [("$tensor", [str(name), str(dtype), list(shape)])]:
            if len(shape) > _MAX_DIMENSIONS or not all(type(size) is int and 0 <= size < 2**48 for size in shape):
                raise ValueError("a tensor of an impossible shape")
            return StoredTensor(folder, name, dtype, tuple(shape))
    raise ValueError("an unknown mark")


def _decode_items(pairs: list[Any], folder: Path, depth: int) -> dict[Any, Any]:
    items: dict[Any, Any] = {}
    for key, part in pairs:
        if not isinstance(key, str | int | float | bool | None) or key in items:
            raise ValueError("a key twice, or one that is no scalar")
        items[key] = _decode(part, folder, depth)
    return items


def parse_json(text: str | bytes) -> Any:
    """JSON without a key twice; raises ValueError for anything else, also a text that is nested too deep."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        values = dict(pairs)
        if len(values) < len(pairs):
            raise ValueError("a key twice")
        return values

    try:
        return json.loads(text, object_pairs_hook=unique)
    except RecursionError:
        raise ValueError("too deep") from None


def refused(path: Any, error: BaseException) -> UserError:
    return UserError(f"{path}: is damaged or not a checkpoint of this project ({type(error).__name__}); use another")
