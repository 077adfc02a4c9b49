"""Tables of images with several labels each (DATA.MULTI_LABEL).

Legend: N images, C classes.
"""

from collections.abc import Collection, Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np

from configs.reading.yaml_io import shorten
from datasets.sources.files.listing import Listing
from datasets.sources.files.rows import Rows, is_class_number, is_number, make_listing, table_rows

_SEPARATORS = "|;,"
_MAX_TARGET_BYTES = 10**10


def read_multi_label_table(file: Path, train_file: Path) -> Listing:
    """Reads a CSV file with the columns image_path and target: no, one or several names or whole numbers.

    The first of the separators | ; , that occurs in a target of `train_file` separates labels in both files; if none
    does, the first that occurs in `file`, else white space. Brackets around a target, and quotes around names in them,
    are ignored, as in "[0, 3]" and "['cat']". Names are sorted, and their positions are the labels; those in
    `train_file` count for both files. `targets` of the listing are multi-hot, int8 (N, C).

    Error messages: see `read_table`.

    Raises:
        UserError: a file cannot be read or lacks a column.
    """
    rows = table_rows(file)
    train_rows = rows if file == train_file else table_rows(train_file)
    separator = _find_separator(train_rows.target_ids) or _find_separator(rows.target_ids)
    names = dict.fromkeys(name for text in train_rows.target_ids for name in split_labels(text, separator))
    if is_numeric := is_number(next(iter(names), "0")):
        used = {name for text in rows.target_ids for name in split_labels(text, separator)}.union(names)
        label_of = {name: int(name) for name in used if is_class_number(name)}
        class_names = [str(label) for label in range(max(label_of.values(), default=0) + 1)]
        problem = "is not a class number; number the classes from 0"
    else:
        class_names = sorted(names)
        label_of = {name: label for label, name in enumerate(class_names)}
        problem = f"is not in {train_file}; correct it or add it there"
    listing = _to_listing(rows, label_of, class_names, separator, problem)
    if not names:
        listing.findings.append(f"{train_file}: no image has a label; fill in the column target")
    return replace(listing, has_class_names=not is_numeric)


def _find_separator(targets: Collection[str]) -> str | None:
    """Returns the separator of labels; None is white space."""
    return next((mark for mark in _SEPARATORS if any(mark in target for target in targets)), None)


def split_labels(target: str, separator: str | None) -> list[str]:
    """The labels of a target, each once, in order."""
    bare = target.strip()
    is_bracketed = bare[:1] in "[(" and bare[-1:] in "])" if bare else False
    parts = (bare[1:-1] if is_bracketed else bare).split(separator)
    names = (part.strip().strip("'\"") if is_bracketed else part.strip() for part in parts)
    return list(dict.fromkeys(filter(None, names)))


def _to_listing(
    rows: Rows, label_of: dict[str, int], class_names: list[str], separator: str | None, problem: str
) -> Listing:
    if not rows.target_ids and not rows.findings:
        rows.findings.append(f"{rows.file}: lists no images; add one line per image")
    target_ids, lines = np.frombuffer(rows.row_target_ids, np.int32), np.frombuffer(rows.lines, np.int32)
    labels_of_text, unknown = [], {}
    for text_id, text in enumerate(rows.target_ids):
        names = split_labels(text, separator)
        labels_of_text.append(sorted({label_of[name] for name in names if name in label_of}))
        if wrong := next((name for name in names if name not in label_of), None):
            unknown[text_id] = wrong
    for index in np.flatnonzero(np.isin(target_ids, list(unknown))):
        rows.add_finding(lines[index], f"label {shorten(unknown[target_ids[index]])} {problem}")
    if len(target_ids) * len(class_names) > _MAX_TARGET_BYTES:
        gigabytes = len(target_ids) * len(class_names) / 1e9
        rows.findings.append(
            f"{rows.file}: {len(target_ids)} images of {len(class_names)} classes need {gigabytes:.0f} GB for their "
            f"labels, more than {_MAX_TARGET_BYTES / 1e9:.0f}; check the highest label, or divide the data"
        )
        class_names = class_names[:1]
        labels_of_text = [[] for _ in labels_of_text]
    set_ids: dict[tuple[int, ...], int] = {}
    sets = np.array([set_ids.setdefault(tuple(labels), len(set_ids)) for labels in labels_of_text], dtype=np.int64)

    def conflict(first: int, index: int) -> str:
        return f"has other labels in line {lines[first]}; write all labels of an image in one line"

    targets = _multi_hot([labels_of_text[text_id] for text_id in target_ids], len(class_names))
    return make_listing(rows, class_names, targets, sets[target_ids], conflict)


def _multi_hot(labels: list[list[int]], num_classes: int) -> np.ndarray:
    """int8 (N, C), 1 for the labels of each image."""
    targets = np.zeros((len(labels), num_classes), dtype=np.int8)
    targets[np.repeat(np.arange(len(labels)), list(map(len, labels))), _flat(labels)] = 1
    return targets


def _flat(labels: Iterable[list[int]]) -> np.ndarray:
    return np.array([label for of_image in labels for label in of_image], dtype=np.int64)
