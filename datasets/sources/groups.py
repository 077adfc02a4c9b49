"""DATA.GROUPS: what a split keeps together, such as the images of a patient; and the evidence of such groups in data
without it: columns, folders, names of files.
"""

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import combinations, islice
from pathlib import Path
from typing import Any

import numpy as np

from configs.schema import Data
from configs.schema.data import problem_of_expression, properties_of
from configs.yaml_io import format_value, shorten
from datasets.sources.class_names import list_names
from datasets.sources.listing import paths_in
from datasets.sources.path_words import of_level
from datasets.sources.question import words_of
from datasets.sources.rows import Rows
from datasets.sources.samples import ImageFiles, is_multi_hot
from datasets.sources.shared_arrays import PackedStrings, StringPacker, to_arrays, to_nfc
from datasets.sources.source import Wanted
from datasets.sources.tables.columns import find_layout, likely_columns
from datasets.sources.tables.files import Table, open_table
from datasets.sources.tables.joins import may_name, open_for, stem_of
from datasets.sources.tables.rows import table_rows
from utils.errors import UserError, did_you_mean, raise_problems
from utils.notes import Note

IDENTIFIER = re.compile(r"\d+|(?<![a-zA-Z])[a-zA-Z]$|(?<=[a-z])[A-Z]$")  # 10253, patient_3, site A, siteB
_COLUMN = re.compile(
    r"(patient|subject|individual|specimen|slide|visit|cam(era)?|site|station|location|deployment|"
    r"seq(uence)?(?![ _-]?n[ou])|event|plot|transect|lot|batch)s?([ _-]?(id|no|nr|number|name|code))?|"
    r"(participant|person|case|lesion|animal)[ _-]?(id|no|nr|number)",
    re.IGNORECASE,
)
_HOW_TO_FILL = "fill it in, with a name of its own for an image that is alone"
FEWEST = 5  # groups; fewer are categories
# Expressions of the cases in names of files: the first fields, fewest first; the text before the last number
_FIELD = r"[^/_.\s-]+"
_MARK = r"[_.\s-]+"
_IN_NAMES = (
    rf"({_FIELD})[^/]*$",
    rf"({_FIELD}{_MARK}{_FIELD})[^/]*$",
    *(rf"({_FIELD}(?:{_MARK}{_FIELD}){{1,{more}}})[^/]*$" for more in (2, 3, 4)),
    r"([^/]*\d[^/]*?)[^/\d]+\d+[^/\d]*$",
)
# Numbers that are no cases: dates with or without the time, WordNet ids
_NO_CASE = re.compile(
    r"(?<!\d)(?:(?:19|20)\d\d([-_.]?)(?:0[1-9]|1[0-2])\1(?:0[1-9]|[12]\d|3[01])"
    r"|(?:0[1-9]|[12]\d|3[01])([-_.])(?:0[1-9]|1[0-2])\2(?:19|20)\d\d)"
    r"(?:\D{1,4}\d\d(?:[-_.:]?\d\d){1,2})?|(?<![^\W_])n\d{8}(?!\d)"
)
_COPY = re.compile(
    r"(?<![a-z])(aug|flip|rot(?![b-z])|mirror|cop(y|ie)|rf(?![a-z])|noise|blur|bright|shear|zoom|mask)", re.IGNORECASE
)


def suggest_groups(listing: ImageFiles, data: Data, table: Table | None, is_cut: bool) -> list[Note]:
    """A note with the DATA.GROUPS for which there is evidence: a column of the table, folders, names of files.

    listing: the training images, before the split. is_cut: the run holds a part of them out, so that the note is a
    warning. The names of other data are not searched: their authors have split them.
    """
    if data.groups or properties_of(data.dataset).groups_by == "field":
        return []
    text = ""
    purpose = "to check the splits, and for figures of groups"
    if is_cut:
        purpose = "figures are too high if images of one are in both splits"
    if table:
        text = _cases_in_column(table, data, purpose)
    elif not data.labels:
        text = _cases_in_folders(listing, purpose) or _cases_beside(listing, data, purpose)
    if is_cut:
        text = text or _cases_in_names(listing)
    return [Note("warning" if is_cut else "screen", text, misleads=is_cut)] if text else []


def _cases_in_column(table: Table, data: Data, purpose: str) -> str:
    """Of columns by their names, and by values that recur, are more than a few categories, and of which each class has
    several. The fewest values are first, such as of a site with several sequences of images.
    """
    layout = find_layout(table, data)
    others = {layout.path, *layout.labels, layout.split}
    names = [name for name in table.header if _COLUMN.fullmatch(name) and name not in others]
    if not names:
        return ""
    in_classes = {name: Counter[tuple[str, str]]() for name in names}
    for _, cells in table:
        label = "" if data.multi_label else " ".join(layout.labels_in(cells))
        for name, pairs in in_classes.items():
            pairs[cells[name], label] += 1
    return _text_of_columns(table, in_classes, purpose)


def _cases_beside(listing: ImageFiles, data: Data, purpose: str) -> str:
    """Of columns of a table in or around class folders that names most images, as `_cases_in_column`."""
    targets = listing.arrays["targets"].tolist()
    for table in _tables_beside(listing, data):
        in_classes = dict[str, Counter[tuple[str, str]]]()
        for name in filter(_COLUMN.fullmatch, table.header):
            with suppress(UserError):  # it cannot be read, or an image has two groups
                groups = _groups_in_column(listing, table, data, name)
                if groups:
                    in_classes[name] = Counter(zip(groups, map(str, targets), strict=True))
        text = _text_of_columns(table, in_classes, purpose)
        if text:
            return text
    return ""


def _text_of_columns(table: Table, in_classes: Mapping[str, Counter[tuple[str, str]]], purpose: str) -> str:
    """in_classes: of each column, the images of each value in each class."""
    values = {name: {value for value, _ in pairs} - {""} for name, pairs in in_classes.items() if _are_groups(pairs)}
    sizes = {name: len(of) for name, of in values.items()}
    if not sizes:
        return ""
    found = sorted(sizes, key=sizes.__getitem__)
    number = in_classes[found[0]].total()
    gaps = {name: sum(count for (value, _), count in in_classes[name].items() if not value) for name in found}
    options = [
        f"-opts {words_of(groups=name)} ({sizes[name]:,} values, {number / sizes[name]:.3g} images a value)"
        for name in found
        if not gaps[name]
    ]
    if not options:
        name = found[0]
        text = f"{shorten(name)} has {sizes[name]:,} values, and none in {gaps[name]:,} of {number:,} images"
        options = [f"{text}: {_HOW_TO_FILL}, for DATA.GROUPS"]
    return f"{table.file}: {purpose}: {' or '.join(options)}"


def _are_groups(rows: Counter[tuple[str, str]]) -> bool:
    """Whether values recur, and each class has several; of less than half the rows, none. rows: of each value in each
    class.
    """
    named = Counter({(value, label): count for (value, label), count in rows.items() if value})
    values = {value for value, _ in named}
    classes = {label for _, label in rows}
    are_several = FEWEST <= len(values) < named.total() and len(named) >= 2 * len(classes)
    return are_several and 2 * named.total() >= rows.total()


def _cases_in_folders(listing: ImageFiles, purpose: str) -> str:
    """Of folders with numbers in the class folders: colon/{p01,p02}."""
    folders = [*listing.sizes]
    level = level_of_cases(listing.sizes, 0)
    if len(listing.class_names) < 2 or level < 0 or not all("/" in folder for folder in folders):
        return ""
    cases = {(folder.split("/")[level], folder.partition("/")[0]) for folder in folders}
    if len(dict(cases)) < min(len(cases), FEWEST):  # a few are in several classes, as magnifications
        return ""
    text = f"{len(cases)} folders with numbers in the class folders, such as {shorten(min(cases)[0])}"
    return f"{listing.root}: {text}; {purpose}: -opts {words_of(groups=of_level(level))}"


def level_of_cases(sizes: Mapping[str, int], of_labels: int, fewest: int = 2) -> int:
    """The level with most names, if all have numbers, as of patients; -1 without one. sizes: the images by folder."""
    best = (fewest, -1)
    for level, names in enumerate(map(set, zip(*(folder.split("/") for folder in sizes), strict=False))):
        if level != of_labels and all(map(IDENTIFIER.search, names)) and 2 * len(names) <= sum(sizes.values()):
            best = max(best, (len(names), level))
    return best[1]


def _cases_in_names(listing: ImageFiles) -> str:
    """Of the first expression whose text are cases in the names of files: P1001_1.jpg, P1001_2.jpg."""
    paths = [*map(to_nfc, islice(listing.places, 20_000))]
    targets = listing.arrays["targets"]
    classes = [0] * len(targets) if is_multi_hot(targets) else targets.tolist()
    undated = (_NO_CASE.sub(lambda match: re.sub(r"\d", "x", match[0]), path) for path in paths)
    stems = [os.path.splitext(path)[0] for path in undated]
    if 4 * sum(_COPY.search(os.path.basename(stem)) is not None for stem in stems) > len(stems):
        return ""
    for expression in _IN_NAMES:
        matches = [match for match in map(re.compile(expression).search, paths) if match]
        if len(matches) == len(paths) and _are_cases(stems, [match.span(1) for match in matches], classes):
            problem = f"figures are too high if {shorten(matches[0][1])} is a patient"
            fix = f"-opts {words_of(groups=expression)} keeps the images of each on one side"
            number = len({match[1] for match in matches})
            return f"{problem}: {fix} ({number:,} in {len(paths):,} names of files)"
    return ""


def _are_cases(stems: Sequence[str], spans: Sequence[tuple[int, int]], classes: Sequence[int]) -> bool:
    """Whether the texts in the spans are cases, unlike classes, single images, and numbers of a camera or of times."""
    cases = [stem[start:end] for stem, (start, end) in zip(stems, spans, strict=True)]
    rests = [stem[end:] for stem, (_, end) in zip(stems, spans, strict=True)]
    sizes = Counter(zip(classes, cases, strict=False))
    number = len(cases)
    have_numbers = 2 * sum(re.search(r"\d", case) is not None for case in cases) > number
    have_several = 2 * sum(size > 1 for size in sizes.values()) > len(sizes)
    in_classes = len({*cases}) >= FEWEST and len(sizes) >= 2 * len({label for label, _ in sizes})
    recur = 2 * sum(map(bool, rests)) > number and len({*rests}) < 0.9 * number
    return have_numbers and have_several and in_classes and recur


def group(rows: Rows, wanted: Wanted) -> Rows:
    """Gives each image its group (DATA.GROUPS): of tar shards the one in its .json.

    A training, and a part of data without a validation split, need the groups of train and val; groups of other splits
    count in the interval of an evaluation.
    Raises UserError: images without a group; the table of the groups cannot be read, or an image has two.
    """
    data = wanted.data
    if not data.groups:
        return rows
    are_needed = "train" in wanted.splits or (rows.uncut is not None and "all" not in wanted.splits)
    splits = {}
    notes = []
    for split, samples in rows.splits.items():
        splits[split] = samples
        groups = samples.groups
        try:
            if groups is None and isinstance(samples, ImageFiles):
                groups = _find_groups(samples, data, data.groups)
            if groups is not None:
                missing = np.flatnonzero(np.diff(groups.ends, prepend=0) == 0).tolist()
                if missing:
                    images = (
                        f"{len(missing)} of {len(groups)} images have no group, such as {samples.location(missing[0])}"
                    )
                    raise UserError(
                        f"DATA.GROUPS {format_value(data.groups)}: {images}; {_HOW_TO_FILL} (the column, the table "
                        "path,group or the .json), or correct the expression, which is searched in "
                        f"{shorten(samples.names_for_split[missing[0]])}"
                    )
                splits[split] = samples.with_arrays(**to_arrays(groups, "groups"))
                notes += _notes_on_mixed(groups, samples.targets)
        except UserError as error:  # DATA.GROUPS may be of the training
            if are_needed and split != "test":
                raise
            problem, _, _ = str(error).partition("; ")
            notes.append(Note("screen", f"no figures of groups: {problem}"))
            arrays = {name: values for name, values in samples.arrays.items() if not name.startswith("groups")}
            splits[split] = samples.changed(arrays=arrays)
    return replace(rows, splits=splits).noted(*dict.fromkeys(notes))


def _notes_on_mixed(groups: PackedStrings, targets: np.ndarray) -> list[Note]:
    """A line if the images of each group have several classes, so that there are no figures of groups."""
    if is_multi_hot(targets):
        return []
    sizes = Counter(group for group, _ in {*zip(groups, targets.tolist(), strict=True)})
    page = "docs/evaluation.md#groups-of-several-classes"
    text = f"no figures of groups, as each has images of several classes: {page}"
    return [Note("screen", text)] if min(sizes.values(), default=1) > 1 else []


def _find_groups(listing: ImageFiles, data: Data, given: str) -> PackedStrings:
    """The group of each image, '' without one. given: DATA.GROUPS."""
    place = f"{listing.root}, which has no table"
    columns = list[str]()
    if listing.file and properties_of(data.dataset).groups_by == "column":
        table = open_for(listing.file, data)
        place = str(table.file)
        columns = table.header
        if given in columns:
            changes = {**data.given_columns, "label": given, "cells": {}}
            return _groups_in(listing, table, data.image_root, changes, data)
    elif not (listing.file or "(" in given):
        tables = [*_tables_beside(listing, data)]
        groups = _groups_beside(listing, data, tables, given)
        if groups:
            return groups
        columns = [name for table in tables for name in table.header]
        if tables:
            place = list_names([str(table.file) for table in tables], 3)
    if "(" in given:
        if problem := problem_of_expression(given):
            raise UserError(f"DATA.GROUPS {problem}")
        matches = map(re.compile(given).search, map(to_nfc, listing.places))
        return StringPacker("/".join(filter(None, match.groups())) if match else "" for match in matches).strings()
    file = next((path for path in (Path(given), Path(data.data_path, given)) if os.path.isfile(path)), None)
    if file:
        return _groups_of_file(listing, file, data)
    known = f"one of {list_names(columns)}, " if columns else ""
    fix = f"; give {known}a table path,group or an expression (part) of the paths in {listing.root}"
    raise UserError(f"DATA.GROUPS {given} is unknown in {place}{did_you_mean(given, columns) or fix}")


def _groups_of_file(listing: ImageFiles, file: Path, data: Data) -> PackedStrings:
    """The groups in a table path,group."""
    table = open_table(file, data.encoding)
    if "group" not in table.header:
        raise UserError(
            f"{file}:1: has no column group; it has {list_names(table.header)}; call its columns path and group"
        )
    return _groups_in(listing, table, data.data_path, {"path": "path", "label": "group"}, data)


def _groups_beside(listing: ImageFiles, data: Data, tables: Sequence[Table], column: str) -> PackedStrings | None:
    """The groups by the table that has a column, and names most images."""
    found = [_groups_in_column(listing, table, data, column) for table in tables if column in table.header]
    return max(filter(None, found), key=lambda groups: np.count_nonzero(np.diff(groups.ends, prepend=0)), default=None)


def _tables_beside(listing: ImageFiles, data: Data) -> Iterator[Table]:
    """The tables in class folders, and those around them that name images."""
    around = Path(os.path.abspath(data.data_path)).parent
    stems = set[str]()
    for folder in dict.fromkeys((Path(data.data_path), listing.root, around)):
        for file in paths_in(folder, "*.[ct]sv"):
            if folder == around:
                stems = stems or {*map(stem_of, listing.paths)}
                if not may_name(file, stems):
                    continue
            with suppress(UserError):  # another encoding, or no table
                yield open_for(file, data)


def _groups_in_column(listing: ImageFiles, table: Table, data: Data, column: str) -> PackedStrings | None:
    """The groups in a column of a table beside class folders; None if no column has names of images."""
    found, _ = likely_columns(table, names=[column])
    if not found:
        return None
    return _groups_in(listing, table, None, {"path": found[0]["path"], "label": column}, data)


def _groups_in(
    listing: ImageFiles, table: Table, root: str | None, columns: Mapping[Any, Any], data: Data
) -> PackedStrings:
    """The group of each image in a table with these columns; '' without one. root: as DATA.IMAGE_ROOT.

    Raises UserError: the table cannot be read, or an image has two groups.
    """
    changes = {"image_root": root, "labels": None, "columns": {**columns, "split": None}}
    changed = data.changed(**changes)
    rows = table_rows(table, changed)
    group_of = dict[str, str]()
    names = list(map("".join, rows.target_ids))
    for path, line, target_id in zip(rows.files, rows.lines, rows.row_target_ids, strict=True):
        if group_of.setdefault(path, names[target_id]) != names[target_id]:
            rows.add_finding(line, f"{shorten(path)} has the group {shorten(group_of[path])} in another line")
    raise_problems(table.file, rows.findings)
    folder = os.path.relpath(listing.root, rows.root)
    names_of_groups = (group_of.get(os.path.normpath(os.path.join(folder, path)), "") for path in listing.places)
    return StringPacker(names_of_groups).strings()


def warn_of_shared_groups(rows: Rows, wanted: Wanted) -> Rows:
    """Notes the groups of training, validation and test images that are in two of these."""
    if "train" not in rows.splits:
        return rows
    groups = {split: set(map(to_nfc, samples.groups or ())) - {""} for split, samples in rows.splits.items()}
    for one, other in combinations(groups, 2):
        shared = sorted(groups[one] & groups[other])
        if shared:
            text = f"{len(shared)} group(s) are in both, such as {shorten(shared[0])}"
            text = f"the figures of {other} are not independent of {one}: {text}; leave their images out of one of them"
            rows = rows.noted(Note("warning", text, misleads=True))
    return rows
