"""The meaning of a cell in a column of labels: 0, 1, or unknown (DATA.COLUMNS: cells, threshold)."""

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np

from configs.schema import Data
from configs.yaml_io import shorten
from datasets.sources.question import Question, Way, with_columns
from datasets.sources.samples import UNKNOWN

UNKNOWN_MARK = "\1"  # before the name of an unknown label, among the labels of an image
UNREAD = -1  # the meaning of another cell
_WORDS = {"no": 0, "yes": 1}
_VALUES = {"0": 0, "1": 1, "false": 0, "true": 1, **_WORDS}
# The beginning of an object, and a number for each class: 1 of its labels, 0 of the others
NO_LABELS = re.compile(r"\{|[\[( ]*([01](\.0*)?[\s,;|]+){2,}[01](\.0*)?[\]) ]*$")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?")
_GAP = re.compile(r"|-1|2|nan|n/?a|null|none|unknown|\?")  # beside 0 and 1
_MOST = 6  # texts in an advice
Columns = dict[str, Any]  # DATA.COLUMNS, or some of its keys


class CellValues(dict[str, int | None]):
    """0, 1, None for unknown, or `UNREAD` by the text of a cell: by DATA.COLUMNS, else of 0, false, no and of 1, true,
    yes.
    """

    def __init__(self, columns: Columns) -> None:
        self._named = {_plain(text): value for text, value in columns.get("cells", {}).items()}
        self._threshold = columns.get("threshold")

    def __missing__(self, text: str) -> int | None:
        plain = _plain(text)
        if plain in self._named:
            value = self._named[plain]
        elif self._threshold is not None and _NUMBER.fullmatch(plain) and not (plain == "-1" and self._threshold > 0):
            value = int(float(plain) >= self._threshold)
        else:
            value = _VALUES.get(plain, UNREAD)
        self[text] = value
        return value

    def is_none(self, label: str) -> bool:
        """Whether DATA.COLUMNS says 0 of a text in a column of labels, which makes the label none."""
        return bool(self._named) and self._named.get(_plain(label)) == 0

    @property
    def words(self) -> list[str]:
        """The texts yes and no that were read."""
        return sorted(text for text in self if text.lower() in _WORDS.keys() - self._named.keys())


def _plain(text: str) -> str:
    """The text of a cell in lower case; '-1' of '-1.0', '0.5' of '0,5'."""
    return re.sub(r"(?<=\d)\.0*$", "", text.lower().replace(",", "."))


def multi_hot(targets: Collection[Iterable[str]], label_of: Mapping[str, int], num_classes: int) -> np.ndarray:
    """int8 (targets, C): 1 for each label, `UNKNOWN` for one after `UNKNOWN_MARK`; another label has no column."""
    found = np.zeros((len(targets), num_classes + 1), np.int8)
    for row, labels in zip(found, targets, strict=True):
        for label in labels:
            name = label.removeprefix(UNKNOWN_MARK)
            row[label_of.get(name, -1)] = 1 if name == label else UNKNOWN
    return found[:, :-1]


def are_cells(values: Iterable[str]) -> bool:
    """Whether these are all texts of a column of 0 and 1."""
    return all(_plain(value) in _VALUES for value in values)


def may_be_cells(values: Iterable[str]) -> bool:
    """Whether a column may be of labels: it has 0 or 1, and other texts are gaps, or numbers between 0 and 1."""
    plain = set(map(_plain, values))
    unread = plain - _VALUES.keys()
    return len(unread) < len(plain) and all(map(_may_be_cell, unread))


def _may_be_cell(text: str) -> bool:
    if _NUMBER.fullmatch(text) and 0 <= float(text) <= 1:
        return True
    return _GAP.fullmatch(text) is not None


def ways_on(seen: Iterable[str], given: Columns) -> list[Columns]:
    """The keys of DATA.COLUMNS that give unread cells a meaning: each by its text, and numbers by a threshold.

    seen: the texts of all cells. If none is 0, it is -1 (CelebA), else an empty one. given: DATA.COLUMNS.
    """
    values = CellValues(given)
    others = dict[str, int | None].fromkeys(_plain(text) for text in seen if values[text] == UNREAD)
    zero = "-1" if "-1" in others else ""
    if zero in others and 0 not in values.values():
        others[zero] = 0
    ways = list[Columns]()
    if len(others) <= _MOST:
        ways.append({"cells": {**others}} if others else {})
    numbers = [text for text in others if _NUMBER.fullmatch(text) and float(text) >= 0]
    for text in numbers:
        del others[text]
    if numbers and len(others) <= _MOST:
        threshold = max(1.0, *map(float, numbers)) / 2
        ways.append({"cells": others, "threshold": threshold} if others else {"threshold": threshold})
    return ways


def refuse_unread(place: str, number: int, unread: Mapping[str, int], seen: Iterable[str], data: Data) -> Question:
    """The question about cells that are neither 0 nor 1, and the ways on.

    number: of all cells. unread: numbers by text. seen: as of `ways_on`.
    """
    count = sum(unread.values())
    shown = ", ".join(f"{shorten(text)} ({times})" for text, times in [*unread.items()][:_MOST])
    if len(unread) > _MOST:
        shown += f" and {len(unread) - _MOST} more"
    problem = f"{place}: {count} of {number} cells of the columns of labels are not 0 or 1: {shown}"
    answers = [with_columns(data, way) for way in ways_on(seen, data.given_columns)]
    if not answers:
        return Question(f"{problem}; name columns of 0 and 1 in DATA.COLUMNS")
    ways = [Way(f"-opts {answer.options}", answer) for answer in answers]
    return Question(f"{problem}; say if a cell is 0, 1 or null (unknown), or from which number on it is 1: ", ways)
