"""The galleries of the worst mistakes and the highest losses, with their pictures and attention maps."""

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from engine.report.contents import SEVERAL, Evaluation
from engine.report.formats import percent
from engine.run.result import PICTURES
from utils.tables import to_float

_TITLES = {"most_confident": "Most confident mistakes", "highest_loss": "Highest losses"}
_MAX_SHOWN = 24  # of each kind
_MAX_FILE_BYTES = 32_000  # of a picture: all of them have less than 5 MB
_KINDS = {".jpg": ("jpeg", b"\xff\xd8\xff"), ".png": ("png", b"\x89PNG")}  # name and first bytes


def galleries_of(evaluation: Evaluation) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """The title and the samples of each kind, in the order of `mistakes.csv`; a sample is in the first gallery only."""
    shown: set[str] = set()
    for kind, title in _TITLES.items():
        rows = [row for row in evaluation.mistakes if row["kind"] == kind][:_MAX_SHOWN]
        if rows:
            yield title, [_mistake(evaluation, row) for row in rows if row["index"] not in shown]
        shown |= {row["index"] for row in rows}


def _mistake(evaluation: Evaluation, row: dict[str, str]) -> dict[str, Any]:
    """The values that the page shows. is_recognized: the highest losses may include samples that are recognized."""
    index, true, predicted = row["index"], row.get("true", ""), row.get("predicted", "")
    loss, true_probability = to_float(row.get("loss")), percent(to_float(row.get("true_probability")))
    stem = evaluation.folder / PICTURES / (index if index.isdecimal() else "none")
    return {
        "true": true,
        "predicted": predicted,
        "path": row.get("path") or f"sample {index}",
        "probability": percent(to_float(row.get("probability"))),
        "true_probability": true_probability,
        "loss": "" if loss is None else f"{loss:.2f}",
        "is_recognized": true == predicted and true_probability,  # '' if there are several true classes
        "is_wrong": predicted not in true.split(SEVERAL),
        "picture": data_uri(stem.with_suffix(".jpg")),
        "attention": data_uri(stem.with_name(f"{stem.name}-attention.jpg")),
    }


def data_uri(path: Path, max_bytes: int = _MAX_FILE_BYTES) -> str:
    """The picture; '' if there is no such file of at most `max_bytes`, or it is not what its name says."""
    try:
        data = path.read_bytes() if path.stat().st_size <= max_bytes else b""
    except OSError:
        return ""
    kind, first_bytes = _KINDS[path.suffix]
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}" if data.startswith(first_bytes) else ""
