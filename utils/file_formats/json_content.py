"""The content of a checkpoint as JSON and named tensors: no pickle, and every type comes back as it was.

JSON objects whose only key begins with `$` stand for types that JSON lacks: `$tensor` (its name, dtype and shape),
`$tuple`, and `$items` (a dict with keys that are not strings, such as an optimizer's state).
"""

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from utils.errors import UserError

if TYPE_CHECKING:  # imported late: scripts read a manifest before they need torch
    import torch

MAX_JSON_BYTES = 32 << 20
_MAX_DEPTH = 64
_MAX_DIMENSIONS = 16


class StoredTensor(NamedTuple):
    """A tensor that is still in a checkpoint folder: `name` there, `dtype` such as 'float32', `shape`."""

    folder: Path
    name: str
    dtype: str
    shape: tuple[int, ...]


def encode_content(content: Any) -> "tuple[str, dict[str, torch.Tensor]]":
    """The content as a JSON text, and its tensors by name: the keys on the way to them, joined by dots.

    Raises:
        ValueError: content of another type, two tensors with one name, or more than MAX_JSON_BYTES.
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
    """The content, with a `StoredTensor` in `folder` for each tensor.

    Raises:
        ValueError: `encode_content` did not write the text.
    """
    return _decode(parse_json(text), folder, 0)


def _decode(value: Any, folder: Path, depth: int) -> Any:
    if depth > _MAX_DEPTH:
        raise ValueError("too deep")
    if isinstance(value, list):
        return [_decode(part, folder, depth + 1) for part in value]
    if not isinstance(value, dict):
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{value} is not JSON")
        return value
    marks = [key for key in value if key.startswith("$")]
    if not marks:
        return {key: _decode(part, folder, depth + 1) for key, part in value.items()}
    parts = value[marks[0]]
    if len(value) > 1 or not isinstance(parts, list):
        raise ValueError("an unknown mark")
    if marks[0] == "$tuple":
        return tuple(_decode(part, folder, depth + 1) for part in parts)
    if marks[0] == "$items":
        return _decode_items(parts, folder, depth + 1)
    if marks[0] == "$tensor":
        return _decode_tensor(parts, folder)
    raise ValueError("an unknown mark")


def _decode_tensor(parts: list[Any], folder: Path) -> StoredTensor:
    name, dtype, shape = parts
    if not (isinstance(name, str) and isinstance(dtype, str) and isinstance(shape, list)):
        raise ValueError("a tensor without name, dtype or shape")
    if len(shape) > _MAX_DIMENSIONS or not all(type(size) is int and 0 <= size < 2**48 for size in shape):
        raise ValueError("a tensor of an impossible shape")
    return StoredTensor(folder, name, dtype, tuple(shape))


def _decode_items(pairs: list[Any], folder: Path, depth: int) -> dict[Any, Any]:
    items: dict[Any, Any] = {}
    for key, part in pairs:
        if not isinstance(key, str | int | float | bool | None) or key in items:
            raise ValueError("a key twice, or one that is no scalar")
        items[key] = _decode(part, folder, depth)
    return items


def parse_json(text: str | bytes) -> Any:
    """JSON without a key twice.

    Raises:
        ValueError: anything else, also a text that is nested too deep.
    """
    try:
        return json.loads(text, object_pairs_hook=_unique)
    except RecursionError:
        raise ValueError("too deep") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        raise ValueError("a key twice")
    return values


def refused(path: Any, error: BaseException) -> UserError:
    return UserError(f"{path}: is damaged or not a checkpoint of this project ({type(error).__name__}); use another")
