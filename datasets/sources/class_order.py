"""The order of classes: by name as other programs number class folders, or as a list of names says."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unicodedata import normalize

from configs.yaml_io import shorten
from datasets.sources.shared_arrays import to_nfc
from utils.errors import UserError, error_from
from utils.files import open_regular_file

NATURAL, BYTES = "natural", "bytes"  # values of DATA.CLASSES; another value is a file
_MAX_BYTES = 10**8
CLASS_FILE = "a file with a class per line, in the order of the outputs"


def natural_key(name: str) -> list[int | str]:
    """The key by which timm sorts class folders: without case, digits as numbers."""
    parts = re.split(r"(\d{1,4000})", name.lower())  # int refuses more digits
    return [int(part) if part.isdecimal() else part for part in parts]


def sort_names(names: Sequence[str], order: str) -> list[str] | None:
    """The names in timm's order (natural) or in torchvision's (bytes).

    None if it is not unique: names have equal keys, or their Unicode form, which archives change, decides.
    """
    key: Any = natural_key if order == NATURAL else str
    by_form = [sorted(names, key=lambda name: key(normalize(form, name))) for form in ("NFC", "NFD")]
    is_unique = len({tuple(key(name)) for name in names}) == len(names)
    return by_form[0] if is_unique and by_form[0] == by_form[1] else None


def find_ambiguity(names: Sequence[str]) -> str | None:
    """The reason why another program may number these sorted class names otherwise, and the key that decides.

    None for names that all programs sort equally, and for names in an order of their own.
    """
    if list(names) != sorted(names):
        return None
    natural, by_bytes = (sort_names(names, order) for order in (NATURAL, BYTES))
    if natural is None or by_bytes is None:
        return f"the order of their names is not unique in all programs; set DATA.CLASSES to {CLASS_FILE}"
    for number, (one, other) in enumerate(zip(natural, by_bytes, strict=True)):
        if one != other:
            orders = f"class {number} is {shorten(one)} in timm's order, {shorten(other)} in torchvision's"
            return f"{orders}; set DATA.CLASSES to {NATURAL} (timm), {BYTES} (torchvision), or {CLASS_FILE}"
    return None


def ordered_classes(names: Sequence[str], order: str) -> list[str]:
    """The classes of DATA.CLASSES: `names` in an order, or the names in a file, as `read_class_list`.

    Raises:
        UserError: the order of these names is not unique; or as `read_class_list`.
    """
    if order not in (NATURAL, BYTES):
        return read_class_list(Path(order))
    if (ordered := sort_names(names, order)) is None:
        raise UserError(f"DATA.CLASSES {order}: the order of the names is not unique; set it to {CLASS_FILE}")
    return ordered


def read_class_list(file: Path) -> list[str]:
    """The names of classes in a file: one per line, or JSON as for `names_by_number`.

    Raises:
        UserError: the file cannot be read, or lacks the name of a class.
    """
    try:
        with open_regular_file(file) as opened:
            text = opened.read(_MAX_BYTES).decode("utf-8-sig")
        names = names_by_number(json.loads(text) if text.lstrip()[:1] in ("[", "{") else text.rstrip().splitlines())
    except OSError as error:
        raise error_from(error, f"DATA.CLASSES: {file}: cannot be read ({error.strerror}); check the path") from error
    except (ValueError, RecursionError):
        names = None
    if not names or sorted(names) != list(range(len(names))) or not all(name.strip() for name in names.values()):
        fix = "write one name per line in UTF-8, or a JSON list"
        raise UserError(f"DATA.CLASSES: {file}: is no list of the names of classes; {fix}")
    return [to_nfc(names[number].strip()) for number in range(len(names))]


def names_by_number(content: Any) -> dict[int, str] | None:
    """The names of numbered classes: of a list, of {number: name}, or of {name: number} with integers; else None."""
    if isinstance(content, list | tuple):
        content = dict(enumerate(content))
    if not isinstance(content, dict) or not content:
        return None
    if all(type(value) is int and isinstance(key, str) for key, value in content.items()):
        numbers = {value: key for key, value in content.items()}
        return numbers if len(numbers) == len(content) else None
    named = {key: name for key, name in content.items() if name is not None}
    names = {int(key): str(name) for key, name in named.items() if str(key).isdecimal() and isinstance(name, str | int)}
    return names if len(names) == len(named) else None
