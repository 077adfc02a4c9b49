"""Names of classes: their order, also of other programs, and the labels that follow from them."""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any
from unicodedata import normalize

import numpy as np

from configs.schema.data import properties_of
from configs.yaml_io import shorten
from datasets.sources.samples import Samples
from datasets.sources.shared_arrays import to_nfc
from utils.errors import UserError, error_from
from utils.files import open_regular_file

# values of DATA.CLASSES; another value is a file
NATURAL = "natural"
BYTES = "bytes"
CLASS_FILE = "a file with a class per line, in the order of the outputs"
_MAX_NAMES = 20  # in an error message


def list_names(names: Sequence[str], most: int = _MAX_NAMES) -> str:
    """'cat', 'dog' and others, at most `most`, and the number of the remaining ones."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(shorten(name) for name in names[:most]) + more


def sort_names(names: Sequence[str], order: str) -> list[str]:
    """The names in timm's order (natural: without case, digits as numbers), in torchvision's (bytes), or as in a file.

    Raises UserError: the order is not unique: names have equal keys, or their Unicode form, which archives change,
    decides; or as `read_class_list`.
    """

    def key(name: str) -> Any:
        if order != NATURAL:
            return name
        parts = re.split(r"(\d{1,4000})", name.lower())  # int refuses more digits
        return [int(part) if part.isdecimal() else part for part in parts]

    if order not in (NATURAL, BYTES):
        return read_class_list(Path(order))
    of_nfc, of_nfd = (sorted(names, key=lambda name: key(normalize(form, name))) for form in ("NFC", "NFD"))
    if of_nfc != of_nfd or any(key(name) == key(after) for name, after in pairwise(of_nfc)):
        raise UserError(
            "the order of class names is not unique (case, zeros or the Unicode form of accents decide); "
            f"set DATA.CLASSES to {CLASS_FILE}"
        )
    return of_nfc


def find_ambiguity(names: Sequence[str]) -> str | None:
    """The reason why another program may number these sorted class names otherwise, and the key that decides.

    None for names that all programs sort equally, and for names in an order of their own.
    """
    if list(names) != sorted(names):
        return None
    try:
        natural, by_bytes = (sort_names(names, order) for order in (NATURAL, BYTES))
    except UserError as not_unique:
        return str(not_unique)
    if natural == by_bytes:
        return None
    fix = f"set DATA.CLASSES to {NATURAL} (timm), {BYTES} (torchvision), or {CLASS_FILE}"
    return f"timm and torchvision number these class names differently; {fix}"


def read_class_list(file: Path) -> list[str]:
    """The names of classes in a file: one per line, or JSON as for `names_by_number`.

    Raises UserError: the file cannot be read, or lacks the name of a class.
    """
    try:
        with open_regular_file(file) as opened:
            text = opened.read(10**8).decode("utf-8-sig")
        is_json = text.lstrip().startswith(("[", "{"))
        numbered = names_by_number(json.loads(text) if is_json else text.rstrip().splitlines())
    except OSError as error:
        raise error_from(error, f"DATA.CLASSES: {file}: cannot be read ({error.strerror}); check the path") from error
    except (ValueError, RecursionError):
        numbered = {}
    names = [to_nfc(numbered.get(number, "").strip()) for number in range(len(numbered))]
    if not all(names) or not names:
        raise UserError(
            f"DATA.CLASSES: {file}: is no list of the names of classes; "
            "write one name per line in UTF-8, or a JSON list"
        )
    matches = [re.match(r"(\d{1,9})[\s,:;.)]+\S", name) for name in names]  # of lines as '3 cat', unlike '3'
    numbers = [int(match[1]) for match in matches if match]
    if len(numbers) == len(names) and numbers != sorted(numbers) and max(numbers) <= len(names):
        raise UserError(f"DATA.CLASSES: {file}: its numbers are in another order than its lines; sort the lines")
    return names


def names_by_number(content: Any) -> dict[int, str]:
    """The names of numbered classes: of a list, of {number: name}, or of {name: number}; else none."""
    if isinstance(content, list | tuple):
        content = dict(enumerate(content))
    if not isinstance(content, dict):
        return {}
    pairs = [*content.items()]
    if _are_names_of_numbers(pairs):
        pairs = [(number, name) for name, number in pairs]
    named = [(key, name) for key, name in pairs if name is not None]
    names = {int(key): str(name) for key, name in named if str(key).isdecimal() and isinstance(name, str | int)}
    return names if len(names) == len(named) else {}


def _are_names_of_numbers(pairs: Sequence[tuple[Any, Any]]) -> bool:
    """Whether the second ones are the numbers; where both may be, a text is a name."""
    if not all(type(name) is str and type(number) in (int, str) for name, number in pairs):
        return False
    are_numbers = all(re.fullmatch("[0-9]{1,9}", str(number)) for _, number in pairs)
    return are_numbers and not all(isinstance(number, str) and name.isdecimal() for name, number in pairs)


def positions(names: Iterable[str]) -> dict[str, int]:
    return {name: place for place, name in enumerate(names)}


def map_labels(names: Sequence[str], known: Sequence[str], source: str) -> np.ndarray:
    """The position in `known` of each of `names`, int64 (classes,); -1 for a name that is not in it.

    Raises UserError: `known`, the names of `source`, has a name twice, and its order is not the one of `names`.
    """
    if list(names) == list(known):
        return np.arange(len(known))
    numbers = Counter(known)
    if twice := [name for name in names if numbers[name] > 1]:
        raise UserError(f"{source}: {list_names(twice)}: the name of several classes; rename the classes of the data")
    position = positions(known)
    return np.array([position.get(name, -1) for name in names], dtype=np.int64)


def rename_classes(names: Sequence[str], renames: Mapping[str, str] | None) -> list[str]:
    """The names of the classes of weights after DATA.RENAME; only the first of merged classes has the new name.

    Of classes that are merged with one of this name, the latter has it.
    """
    renamed = list(names)
    known = set(names)
    for label, new in enumerate(new_names(names, renames)):
        if new not in known:
            known.add(new)
            renamed[label] = new
    return renamed


def merged_outputs(names: Sequence[str], renames: Mapping[str, str] | None) -> dict[int, list[int]]:
    """The outputs of weights that DATA.RENAME merges, by the label that `rename_classes` gives their class."""
    renamed = rename_classes(names, renames)
    label_of = {name: label for label, name in reversed([*enumerate(renamed)])}  # of equal names, the first
    outputs = defaultdict(list)
    for label, new in enumerate(new_names(names, renames)):
        outputs[label_of[new]].append(label)
    return {label: of_class for label, of_class in outputs.items() if len(of_class) > 1}


def new_names(names: Sequence[str], renames: Mapping[str, str] | None) -> list[str]:
    """The names after DATA.RENAME, equal ones of merged classes."""
    return [(renames or {}).get(name, name) for name in names]


def names_of_labels(samples: Samples, num_classes: int) -> list[str]:
    """A name to show for each label of a model: its class name, or the label itself if the data has no name for it.

    Equal names have their label behind them.
    """
    named = samples.class_names if samples.has_class_names else []
    names = [*named[:num_classes], *map(str, range(len(named), num_classes))]
    numbers = Counter(names)
    return [name if numbers[name] == 1 else f"{name} ({label})" for label, name in enumerate(names)]


def number_of_classes(dataset: str, splits: Sequence[Samples]) -> int:
    """The value of MODEL.NUM_CLASSES: null for these splits of a data set: the number of its classes.

    Labels of ImageNet's lists are numbers, and a list of a part of ImageNet does not contain all of them: as in
    PaddleViT, the number is 1000.
    """
    properties = properties_of(dataset)
    found = max((len(samples.class_names) for samples in splits), default=0)
    has_numbers = properties.synsets or not all(samples.has_class_names for samples in splits)
    return properties.num_classes or found if has_numbers else found
