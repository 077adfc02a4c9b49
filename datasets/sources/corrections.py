"""DATA.CORRECTIONS: a table of images whose labels a person has checked, such as an edited suspects.csv."""

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from unicodedata import normalize

import numpy as np

from configs.schema import Data
from configs.yaml_io import find_name, shorten
from datasets.sources.class_names import list_names, new_names
from datasets.sources.samples import ImageFiles, Samples
from datasets.sources.shared_arrays import to_nfc
from datasets.sources.tables.files import Cells, open_columns
from utils.errors import UserError, did_you_mean
from utils.notes import Note
from utils.tables import unescaped_cell

PATH, CORRECTION = "path", "correction"  # columns
KEEP, DROP = "keep", "drop"  # corrections; another one is the name of the right class


def decided_rows(file: str | None, encoding: str | None) -> dict[int, Cells]:
    """The rows with a correction by their lines, as they are in the file; none without a file.

    Raises UserError: the table cannot be read, or lacks a column.
    """
    if not file:
        return {}
    table = open_columns(Path(file), encoding)
    for name in (PATH, CORRECTION):
        if name not in table.header:
            fix = f"give a table with the columns {PATH} and {CORRECTION}, such as suspects.csv of a run"
            raise UserError(f"DATA.CORRECTIONS: {file}: has no column {name}; {fix}")
    return {line: cells for line, cells in table if cells[CORRECTION]}


def places_of(cells: Cells, data_path: str, renames: Mapping[str, str] | None) -> list[str]:
    """The files that a row may name: its path is absolute, or relative to the current folder or the data's.

    Of data that were copied or moved, it also names the file at the same end of the path, the longest that there is,
    unless the old file is still there and of another size. In place of a folder that is gone, it also names the one
    that DATA.RENAME gives.
    """
    path = unescaped_cell(cells[PATH])
    of_data = os.path.dirname(data_path) if os.path.isfile(data_path) else data_path
    parts = Path(path).parts
    ends = [os.path.join(of_data, *parts[start:]) for start in range(1, len(parts))]
    copy = next(filter(os.path.exists, ends), path)
    places = [place_of(path), place_of(os.path.join(of_data, path))]
    if not os.path.exists(path) or os.path.getsize(path) == os.path.getsize(copy):
        places.append(place_of(copy))
    for (old, new), place in product((renames or {}).items(), places[:]):
        folder, is_in_old, file = place.rpartition(f"/{old}/")
        if is_in_old and not any(os.path.exists(f"{folder}/{normalize(form, old)}") for form in ("NFC", "NFD")):
            places.append(f"{folder}/{new}/{file}")
    return places


def place_of(path: str) -> str:
    """An absolute path as paths are compared."""
    return to_nfc(os.path.abspath(path))


def correct(splits: dict[str, Samples], data: Data) -> None:
    """Replaces the samples of each split: with the right labels, and without the images to drop; notes the numbers.

    The images stay in their splits. Paths are as of `places_of`.
    Raises UserError: as `decided_rows`; a class that the data does not have; no row names an image of a training;
    no image of a split is left.
    """
    if not data.corrections:
        return
    rows = decided_rows(data.corrections, data.encoding)
    line_of: dict[str, int] = {}
    for line, cells in rows.items():
        line_of |= dict.fromkeys(places_of(cells, data.image_root or data.data_path, data.rename), line)
    used = set[int]()
    for split, samples in splits.items():
        if type(samples) is not ImageFiles:
            raise UserError(f"DATA.CORRECTIONS needs images in files, but the data set is {data.dataset}; remove it")
        lines = [line_of.get(place_of(samples.name(index))) for index in range(len(samples))]
        found = {index: unescaped_cell(rows[line][CORRECTION]) for index, line in enumerate(lines) if line}
        splits[split] = _corrected(samples, found, data, split)
        if not len(splits[split]):
            raise UserError(f"DATA.CORRECTIONS: {data.corrections}: drops all {split} images; keep some of them")
        used.update(filter(None, lines))
        folder = os.path.join(place_of(str(samples.root)), "")
    trains = "train" in splits
    if not trains or (data.fraction < 1 and not data.only_classes):  # other images of the data are not here
        used |= _lines_of_files(line_of, "" if used else folder)  # paths of a table may lead out of it
    note = _note_on_unused([cells[PATH] for line, cells in rows.items() if line not in used], len(rows), data)
    if note and trains and not used:
        raise UserError(f"{note.text}; write paths relative to {data.data_path}, or absolute ones")
    if note:
        next(iter(splits.values())).notes.append(note)


def _lines_of_files(line_of: Mapping[str, int], folder: str) -> set[int]:
    """The lines of files in the folder that exist."""
    return {line for place, line in line_of.items() if place.startswith(folder) and os.path.exists(place)}


def _note_on_unused(paths: Sequence[str], number: int, data: Data) -> Note | None:
    """A warning of the rows, of so many, that name no image."""
    if not paths:
        return None
    text = f"DATA.CORRECTIONS: {data.corrections}: {len(paths)} of {number} rows name no image of the data"
    return Note("warning", f"{text}, such as {shorten(paths[0])}")


def _corrected(samples: ImageFiles, found: Mapping[int, str], data: Data, split: str) -> ImageFiles:
    """found: the correction of some images by their indices. Raises UserError: no such class."""
    names = samples.class_names
    targets = samples.targets.copy()
    if {KEEP, DROP} & {*names}:
        raise UserError(f"DATA.CORRECTIONS: {KEEP} or {DROP} is also the name of a class; rename it with DATA.RENAME")
    counts = Counter[str]()
    for index, text in found.items():
        kind = text if text in (KEEP, DROP) else "other class"
        counts[kind] += 1
        if kind != "other class":
            continue
        (name,) = new_names([to_nfc(text)], data.rename)
        name = find_name(name, names)
        if name not in names:
            hint = did_you_mean(text, names) or f"; write {KEEP}, {DROP}, or one of {list_names(names)}"
            raise UserError(f"DATA.CORRECTIONS: {data.corrections}: {shorten(text)} is no class of the data{hint}")
        targets[index] = names.index(name)
    dropped = [index for index, text in found.items() if text == DROP]
    left = np.setdiff1d(np.arange(len(samples)), dropped)
    corrected = samples.select(left)
    corrected.targets = targets[left]
    if counts:
        numbers = ", ".join(f"{number} {kind}" for kind, number in sorted(counts.items()))
        corrected.notes.append(Note("screen", f"DATA.CORRECTIONS, {split}: {numbers}"))
    return corrected
