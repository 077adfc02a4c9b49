"""The galleries of the worst mistakes and the highest losses, with their pictures and attention maps."""

import base64
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from PIL import Image

from engine.evaluation.file_names import PICTURES
from engine.report.contents import SEVERAL, Evaluation
from engine.report.formats import percent, visible
from utils.tables import to_float

_TITLES = {"most_confident": "Most confident mistakes", "highest_loss": "Highest losses"}
_MAX_SHOWN = 24  # of each kind
_MAX_FILE_BYTES = 500_000  # of a picture; a thumbnail has a few thousand


@dataclass(frozen=True)
class Picture:
    """A picture as a data URI. uri: the whole file. width, height: in pixels."""

    uri: str
    width: int
    height: int


@dataclass(frozen=True)
class Mistake:
    """A sample of a gallery.

    true, predicted: names of classes; several true ones are separated by ' | '.

    probability: of the predicted class. true_probability: of the true one; '' if there are several.
    """

    true: str
    predicted: str
    path: str
    probability: str
    true_probability: str
    loss: str
    picture: Picture | None
    attention: Picture | None

    @property
    def is_recognized(self) -> bool:
        """The highest losses may include samples that are recognized with a low probability."""
        return self.true == self.predicted and bool(self.true_probability)

    @property
    def is_wrong(self) -> bool:
        return self.predicted not in self.true.split(SEVERAL)

    @property
    def alt(self) -> str:
        return f"Image of class {visible(self.true)}, predicted as {visible(self.predicted)}"


@dataclass(frozen=True)
class Gallery:
    """repeated: number of samples that are left out, as the gallery before shows them."""

    title: str
    mistakes: list[Mistake]
    repeated: int


def galleries_of(evaluation: Evaluation) -> list[Gallery]:
    """The samples of each kind, in the order of `mistakes.csv`."""
    galleries: list[Gallery] = []
    shown: set[str] = set()
    for kind, title in _TITLES.items():
        rows = [row for row in evaluation.mistakes if row.get("kind") == kind][:_MAX_SHOWN]
        new = [row for row in rows if row.get("index", "") not in shown]
        shown |= {row.get("index", "") for row in new}
        if rows:
            mistakes = [_mistake(evaluation, row) for row in new]
            galleries.append(Gallery(title, mistakes, len(rows) - len(new)))
    return galleries


def _mistake(evaluation: Evaluation, row: dict[str, str]) -> Mistake:
    index = row.get("index", "")
    stem = evaluation.folder / PICTURES / (index if index.isdecimal() else "none")
    loss, true_probability = to_float(row.get("loss")), to_float(row.get("true_probability"))
    return Mistake(
        true=row.get("true", ""),
        predicted=row.get("predicted", ""),
        path=row.get("path") or f"sample {index}",
        probability=percent(to_float(row.get("probability"))),
        true_probability=percent(true_probability) if true_probability is not None else "",
        loss=f"{loss:.2f}" if loss is not None else "",
        picture=_read_picture(stem.with_suffix(".jpg")),
        attention=_read_picture(stem.with_name(f"{stem.name}-attention.jpg")),
    )


def _read_picture(path: Path) -> Picture | None:
    """The picture; None if there is no such file, or it is not a JPEG of at most 500 kB."""
    try:
        if path.stat().st_size > _MAX_FILE_BYTES:
            return None
        with Image.open(path, formats=["JPEG"]) as image:
            width, height = image.size
        data = base64.b64encode(path.read_bytes()).decode()
    except (OSError, ValueError, Image.DecompressionBombError):
        return None
    return Picture(f"data:image/jpeg;base64,{data}", width, height)


def without_last_pictures(galleries: list[Gallery], excess: int) -> tuple[list[Gallery], int]:
    """The galleries without the last pictures, whose data URIs have `excess` characters or more, and their number."""
    dropped, kept = 0, [replace(gallery, mistakes=list(gallery.mistakes)) for gallery in galleries]
    for mistakes in (gallery.mistakes for gallery in reversed(kept)):
        for position in reversed(range(len(mistakes))):
            for name in ("attention", "picture"):
                picture = getattr(mistakes[position], name)
                if excess > 0 and picture:
                    excess -= len(picture.uri)
                    dropped += 1
                    without: dict[str, Any] = {name: None}
                    mistakes[position] = replace(mistakes[position], **without)
    return kept, dropped
