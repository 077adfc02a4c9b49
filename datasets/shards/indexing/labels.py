"""The label of a sample in a shard: a class number, the name of a class, or none."""

import json
import re
from collections.abc import Mapping
from typing import Any

from configs.reading.yaml_io import shorten
from datasets.sources.files.rows import LABEL_DIGITS

Label = int | str | None

MAX_LABEL_BYTES = 1 << 20  # of a file .cls or .json
LEFT_OUT = -1  # timm's mark of a sample that is not part of a selection of classes
_SURROGATE = re.compile("[\ud800-\udc7f\udd00-\udfff]")
_JSON_KEYS = ("label", "cls", "target", "class", "class_id", "class_name")


def find_label(files: Mapping[str, bytes], key: str, label_key: str) -> Label:
    """The first of these that exists.

    - With a `label_key`, its value in .json, and nothing else; `LEFT_OUT` if it is -1.
    - The number in .cls.
    - A number or a text in .json: alone, or as the value of label, cls, target, class, class_id or class_name.
    - The name of the folder of the image in the archive.

    Args:
        files: the contents of .cls and .json, of each at least the first `MAX_LABEL_BYTES` + 1 bytes.
        key: the path of the sample's files without their extension.

    Raises:
        ValueError: the label is no number from 0 with at most `LABEL_DIGITS` digits, and no name of a class.
    """
    value: Any = _parse_json(files["json"]) if "json" in files and (label_key or "cls" not in files) else None
    if label_key:
        label: Any = value.get(label_key) if isinstance(value, dict) else None
        if not _is_label(label):
            raise ValueError(f".json has no label {shorten(label_key)}")
        return LEFT_OUT if label == LEFT_OUT else _checked(label, ".json")
    if "cls" in files:
        text = files["cls"][:100].decode("latin-1").strip()
        is_number = text.isascii() and text.isdecimal() and len(text) <= LABEL_DIGITS and len(files["cls"]) <= 100
        return _checked(int(text) if is_number else text, ".cls", names=False)
    if isinstance(value, dict):
        value = next((value[name] for name in _JSON_KEYS if _is_label(value.get(name))), None)
    if _is_label(value):
        return _checked(value, ".json")
    folder = key.rpartition("/")[0].rpartition("/")[2]
    return None if folder in ("", ".") else _checked(folder, "folder")


def _parse_json(data: bytes) -> Any:
    if len(data) > MAX_LABEL_BYTES:
        raise ValueError(f".json has more than {MAX_LABEL_BYTES:,} bytes")
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        raise ValueError(".json is not valid JSON") from None


def _is_label(value: Any) -> bool:
    """Whole numbers may be written as 3.0, as by tools that store them in columns of floats."""
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return is_number or (isinstance(value, float) and value.is_integer()) or (isinstance(value, str) and value != "")


def _checked(value: int | float | str, place: str, names: bool = True) -> int | str:
    if isinstance(value, str) and names:
        if not is_class_name(value):
            raise ValueError(f"{place}: {shorten(value)} is not the name of a class, at most 255 characters")
        return value
    if isinstance(value, str) or not 0 <= value < 10**LABEL_DIGITS:
        raise ValueError(f"{place}: the label {shorten(value)} is not a whole number from 0 to {10**LABEL_DIGITS - 1}")
    return int(value)


def is_class_name(value: object) -> bool:
    """Tells whether a value from a JSON file is a short text. Of surrogates, only those for invalid UTF-8 are valid."""
    return isinstance(value, str) and len(value) <= 255 and not _SURROGATE.search(value)
