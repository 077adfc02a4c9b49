"""A question about data with several answers. Each option that it prints is one of them, see `Answer`."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from shlex import quote
from typing import Any, NamedTuple

from configs.schema import Data
from datasets.sources.samples import Samples, label_pairs
from utils.errors import UserError

PLACEHOLDER = "VALUE"  # in an option, of a value that only a person knows


@dataclass(frozen=True, eq=False)
class Answer:
    """What a training with some options of DATA reads; it is read once, when it is first asked for.

    options: as a shell reads them, behind -opts; `data` lack the key of a `PLACEHOLDER`. note: on the options.
    """

    data: Data
    options: str = ""
    note: str = ""

    @property
    def path(self) -> str:
        return f"-data_path={quote(self.data.data_path)}"

    @cached_property
    def rows(self) -> Any:
        """The `Rows` of `read_alone`. Raises UserError."""
        from datasets.reading import read_alone  # late: it is above this module, which asks what it reads

        return read_alone(self.data)

    def tried(self) -> "Answer | None":
        """This answer, or the first one to the question in which it ends; None if it ends in another error."""
        try:
            _ = self.rows
        except UserError as error:
            question = error.__cause__ or error
            answers = question.answers if isinstance(question, Question) else []
            return answers[0].tried() if answers else None
        return self

    @property
    def is_read(self) -> bool:
        """Whether the data are read, without another question."""
        return self.tried() is self

    @cached_property
    def labels(self) -> dict[str, str]:
        """The label of each image by its absolute path: 'a | b' of several, '' of none."""
        found = dict[str, str]()
        for samples in self.rows.splits.values():
            of_images: list[list[str]] = [[] for _ in range(len(samples))]
            for index, label in zip(*label_pairs(samples.targets), strict=True):
                of_images[index].append(samples.class_names[label])
            found |= zip(_paths_of(samples), map(" | ".join, of_images), strict=True)
        return found

    @property
    def counts(self) -> dict[str, int]:
        """The images of each class in all splits."""
        return dict(zip(self.rows.class_names, self.rows.class_counts.tolist(), strict=True))

    @property
    def held_out(self) -> set[str]:
        """The absolute paths of the images that the data hold out, or perhaps hold out."""
        if PLACEHOLDER in self.options:
            return {*self.labels}
        own = {"test"} if self.rows.run_split else {"val", "test"}
        return {path for split in own & self.rows.splits.keys() for path in _paths_of(self.rows.splits[split])}


def _paths_of(samples: Samples) -> list[str]:
    return [os.path.abspath(samples.name(index)) for index in range(len(samples))]


class Way(NamedTuple):
    """A text of a question, and the answer whose options it has."""

    text: str
    answer: Answer | None = None


class Question(UserError):
    """An error that asks how data are read. ways: behind the problem."""

    def __init__(self, problem: str, ways: Sequence[Way] = ()) -> None:
        super().__init__(problem + "; or ".join(way.text for way in ways))
        self.answers = [way.answer for way in ways if way.answer]

    def __reduce__(self) -> tuple[Any, ...]:
        """Other processes get the text alone."""
        return UserError, self.args


def words_of(**changes: Any) -> str:
    """Options of DATA as a shell reads them."""
    words = []
    for key, value in changes.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        words.append(quote(f"DATA.{key.upper()}={text}"))
    return " ".join(words)


def with_columns(data: Data, changes: dict[str, Any], several: bool = False) -> Answer:
    """DATA.COLUMNS with these changes, and DATA.MULTI_LABEL, which unknown cells of a list of columns need.

    several: images have several labels.
    """
    columns = {**data.given_columns, **changes}
    if "cells" in changes:
        columns["cells"] = data.given_columns.get("cells", {}) | changes["cells"]
    found: dict[str, Any] = {"columns": columns} if columns else {}
    if (
        several
        or data.multi_label
        or (None in columns.get("cells", {}).values() and isinstance(columns.get("label"), list))
    ):
        found["multi_label"] = True
    return Answer(data.changed(**found), words_of(**found))


def on_all_rows(data: Data, note: str = ", also of test") -> Way:
    """The training on a table without its splits."""
    answer = replace(with_columns(data, {"split": None}), note=note)
    return Way(f"-opts {answer.options} trains on all rows{note}", answer)


def without_empty(data: Data, is_one_hot: bool) -> Answer:
    """The rows that have a label; with several labels, all rows."""
    return with_columns(data, {} if is_one_hot else {"cells": {"": None}}, several=is_one_hot)
