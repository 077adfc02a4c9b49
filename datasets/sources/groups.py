"""DATA.GROUPS: the group of each image, such as its patient; a split keeps the images of a group together.

Legend: N images, G groups.
"""

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from configs.data_sets import properties_of
from configs.schema import Data
from configs.yaml_io import shorten
from datasets.sources.files.image_files import Listing
from datasets.sources.files.rows import table_rows
from datasets.sources.files.tables import Table
from datasets.sources.shared_arrays import PackedStrings, StringPacker, to_arrays, to_nfc
from utils.errors import UserError, combine_findings


def with_groups(listing: Listing, data: Data) -> Listing:
    """The listing with the group of each image: a column of its table, or what DATA.GROUPS says of its path.

    Raises:
        UserError: images without a group; the table of the groups cannot be read, or an image has two.
    """
    assert data.groups
    if properties_of(data.dataset).groups_by == "column":
        assert listing.file
        if data.groups not in (header := Table(listing.file, data.encoding).header):
            raise UserError(f"{listing.file}:1: has no column {shorten(data.groups)} (DATA.GROUPS): {header}")
        columns = {**(data.columns or {}), "label": data.groups}
        names, fix = _in_table(listing, listing.file, str(listing.root), columns, data), "fill in the column"
    elif "(" in data.groups:
        matches = map(re.compile(data.groups).search, map(to_nfc, listing.paths))
        names = ("/".join(filter(None, match.groups())) if match else "" for match in matches)
        fix = "the expression must match each path relative to the class folders"
    else:
        names = _in_table(listing, Path(data.groups), data.data_path, {"path": "path", "label": "group"}, data)
        fix = "add lines path,group, with paths relative to DATA_PATH"
    groups = StringPacker(names).strings()
    check_groups(groups, data, listing.location, fix)
    return replace(listing, arrays={**listing.arrays, **to_arrays(groups, "groups")})


def check_groups(
    groups: PackedStrings, data: Data, location: Callable[[int], str], fix: str = "add the key to its .json"
) -> None:
    """Raises UserError for images without a group."""
    if missing := np.flatnonzero(np.diff(groups.ends, prepend=0) == 0).tolist():
        images = f"{len(missing)} of {len(groups)} images have no group, such as {location(missing[0])}"
        raise UserError(f"DATA.GROUPS {shorten(data.groups)}: {images}; {fix}")


def _in_table(listing: Listing, file: Path, root: str, columns: dict[Any, Any], data: Data) -> Iterator[str]:
    """The cells of a column for the paths of a listing; empty without one."""
    changes = {"image_root": root, "columns": {**columns, "split": None}}
    rows, group_of = table_rows(Table(file, data.encoding), data.model_copy(update=changes)), dict[str, str]()
    names = list(rows.target_ids)
    for path, line, target_id in zip(rows.paths.strings(), rows.lines, rows.row_target_ids, strict=True):
        if group_of.setdefault(path, names[target_id]) != names[target_id]:
            rows.add_finding(line, f"{shorten(path)} has the group {shorten(group_of[path])} in another line")
    if rows.findings:
        raise combine_findings(f"{file}: {len(rows.findings)} problems", rows.findings)
    folder = os.path.relpath(listing.root, root)
    return (group_of.get(os.path.normpath(os.path.join(folder, path)), "") for path in listing.paths)


def most_frequent(classes: np.ndarray, group_of: np.ndarray) -> np.ndarray:
    """The most frequent class of each group, the smallest of equally frequent ones: int64 (G,).

    classes: int64 (N,), at least -1. group_of: positions of the groups, int64 (N,).
    """
    width = int(classes.max()) + 2
    pairs, counts = np.unique(group_of * width + classes + 1, return_counts=True)
    by_count = pairs[np.lexsort((pairs, -counts, pairs // width))]
    first = np.unique(by_count // width, return_index=True)[1]
    return by_count[first] % width - 1


def describe_groups(
    groups: PackedStrings, group_of: np.ndarray, classes: np.ndarray, is_val: np.ndarray, folds: int | None
) -> list[str]:
    """Lines for the log: groups held out and class shares; a group larger than a fold, classes in few groups.

    group_of: as of `most_frequent`. classes: int64 (N,). is_val: bool (N,).
    """
    sizes, width = np.bincount(group_of), int(classes.max()) + 2
    held_out, number = np.bincount(classes[is_val] + 1, minlength=width), len(classes)
    deviation = 100 * np.abs(held_out / max(is_val.sum(), 1) - np.bincount(classes + 1) / number).max()
    notes = [
        f"groups: {len(np.unique(group_of[is_val]))} of {len(sizes)} are held out, {is_val.sum()} of {number} images; "
        f"the share of a class deviates by up to {deviation:.1f} points (DATA.GROUPS)"
    ]
    if folds and sizes.max() > number / folds:
        name = shorten(groups[int(np.argmax(group_of == sizes.argmax()))])
        notes.append(f"Warning: the group {name} has {sizes.max()} of {number} images, more than one of {folds} folds")
    groups_of_class = np.bincount(np.unique(group_of * width + classes + 1) % width)
    if few := int(((groups_of_class > 0) & (groups_of_class < (folds or 2))).sum()):
        parts = "folds" if folds else "training and validation"
        notes.append(f"Warning: {few} class(es) are in fewer than {folds or 2} groups, and missing in some {parts}")
    return notes
