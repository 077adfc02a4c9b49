"""DATA.CORRECTIONS: a table of images whose labels a person has checked, such as an edited suspects.csv."""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from configs.schema import Data
from configs.yaml_io import find_name, shorten
from datasets.sources.class_names import list_names, new_names
from datasets.sources.rows import Rows
from datasets.sources.samples import ImageFiles
from datasets.sources.shared_arrays import to_nfc
from datasets.sources.source import Wanted
from datasets.sources.tables.files import Cells, open_columns
from utils.errors import UserError
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
            raise UserError(
                f"DATA.CORRECTIONS: {file}: has no column {name}; "
                f"give a table with the columns {PATH} and {CORRECTION}, such as suspects.csv of a run"
            )
    return {line: cells for line, cells in table if cells[CORRECTION]}


def places_of(cells: Cells, data_path: str) -> list[str]:
    """The files that a row may name: its path is absolute, or relative to the current folder or the data's.

    Of data that were moved or copied, it also names the file at the longest end of the path that there is, unless the
    old file is still there and of another size.
    """
    path = unescaped_cell(cells[PATH])
    folder = _folder_of(data_path)
    places = [place_of(path), place_of(os.path.join(folder, path))]
    old = next(filter(os.path.exists, places), None)
    ends = [os.path.join(folder, *Path(path).parts[start:]) for start in range(1, len(Path(path).parts))]
    new = next(filter(os.path.exists, ends), None)
    if not new or (old and (_is_in(old, folder) or os.path.getsize(old) != os.path.getsize(new))):
        return places
    return [*places, place_of(new)]


def _folder_of(data_path: str) -> str:
    return os.path.dirname(data_path) if os.path.isfile(data_path) else data_path


def _is_in(place: str, folder: str) -> bool:
    """Whether a file is in the folder, and exists."""
    return place.startswith(os.path.join(place_of(folder), "")) and os.path.exists(place)


def place_of(path: str) -> str:
    """An absolute path as paths are compared."""
    return to_nfc(os.path.abspath(path))


def correct(rows: Rows, wanted: Wanted) -> Rows:
    """Gives the images their right labels, and leaves out the images to drop; notes the numbers.

    The images stay in their splits. A warning counts the rows that name no image. Paths are as of `places_of`.
    Raises UserError: as `decided_rows`; a class that the data does not have; no row names an image of a training;
    no image of a split is left.
    """
    data = wanted.data
    if not data.corrections:
        return rows
    folder = data.image_root or data.data_path
    checked = [(cells, places_of(cells, folder)) for cells in decided_rows(data.corrections, data.encoding).values()]
    correction_of = dict[str, str]()
    for cells, places in checked:
        correction_of |= dict.fromkeys(places, unescaped_cell(cells[CORRECTION]))
    used = set[str]()
    splits = {}
    notes = []
    for split, samples in rows.splits.items():
        if type(samples) is not ImageFiles:
            raise UserError(f"DATA.CORRECTIONS needs images in files, but the data set is {data.dataset}; remove it")
        names = [place_of(samples.name(index)) for index in range(len(samples))]
        found = {index: correction_of[name] for index, name in enumerate(names) if name in correction_of}
        used.update(names[index] for index in found)
        splits[split] = samples
        if found:
            splits[split], numbers = _corrected(samples, found, data)
            notes.append(Note("screen", f"DATA.CORRECTIONS, {split}: {numbers}, of {len(found)} checked"))
        if not len(splits[split]):
            raise UserError(f"DATA.CORRECTIONS: {data.corrections}: drops all {split} images; keep some of them")
    corrected = replace(rows, splits=splits).noted(*notes)
    lost = []
    for cells, places in checked:
        is_of_data = any(_is_in(place, _folder_of(folder)) for place in places)  # perhaps of another split
        if used.isdisjoint(places) and not is_of_data:
            lost.append(cells[PATH])
    if checked and not used:
        problem = f"no row names an image of {', '.join(splits)}; write paths relative to {data.data_path}"
    elif lost:
        problem = f"{len(lost)} of {len(checked)} rows name no image of the data, such as {shorten(lost[0])}"
    else:
        return corrected
    text = f"DATA.CORRECTIONS: {data.corrections}: {problem}"
    if "train" in splits and not used:
        raise UserError(text)
    return corrected.noted(Note("warning", text))


def _corrected(samples: ImageFiles, found: Mapping[int, str], data: Data) -> tuple[ImageFiles, str]:
    """The images, and how many are other ones. found: the correction of some by their indices.

    Raises UserError: no such class.
    """
    names = samples.class_names
    targets = samples.targets.copy()
    if {KEEP, DROP} & {*names}:
        raise UserError(f"DATA.CORRECTIONS: {KEEP} or {DROP} is also the name of a class; rename it with DATA.RENAME")
    dropped = [index for index, text in found.items() if text == DROP]
    changed = {index: text for index, text in found.items() if text not in (KEEP, DROP)}
    for index, text in changed.items():
        (name,) = new_names([to_nfc(text)], data.rename)
        name = find_name(name, names)
        if name not in names:
            raise UserError(
                f"DATA.CORRECTIONS: {data.corrections}: {shorten(text)} is no class of the data; "
                f"write {KEEP}, {DROP}, or one of {list_names(names)}"
            )
        targets[index] = names.index(name)
    left = np.setdiff1d(np.arange(len(samples)), dropped)
    numbers = f"{len(dropped)} dropped, {len(changed)} of another class"
    return samples.with_arrays(targets=targets).select(left), numbers
