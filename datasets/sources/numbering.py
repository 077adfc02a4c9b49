"""Stages that name and number the classes of the rows: by DATA.RENAME, ONLY_CLASSES, CLASSES, and a checkpoint."""

import json
import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence, Set

import numpy as np

from configs.yaml_io import find_name, shorten
from datasets.sources.class_names import list_names, map_labels, new_names, sort_names
from datasets.sources.rows import Rows
from datasets.sources.samples import Samples
from datasets.sources.source import Wanted
from utils.errors import UserError, did_you_mean
from utils.notes import Note

_LACKING = re.compile(r"(?i:nan|null|<na>|n/a)|-1(\.0)?|NA|None")  # as programs write a label that lacks


def check_names(rows: Rows, wanted: Wanted) -> Rows:
    """Finds classes with one name, of which one is not in NFC; adds warnings about names that differ only in case, and
    names as of a lacking label.
    """
    spellings = defaultdict(set)
    for name in rows.class_names:
        spellings[name.casefold()].add(name)
    variants = [list_names(sorted(names)) for names in spellings.values() if len(names) > 1]
    twice = [name for name, count in Counter(rows.class_names).items() if count > 1]
    place = f"{wanted.data.data_path}: two classes are named"
    findings = [f"{place} {shorten(name)}, in two Unicode forms; merge them" for name in twice]
    notes = [Note("warning", f"classes {names} differ only in case") for names in variants]
    lacking = [*filter(_LACKING.fullmatch, rows.class_names)]
    if lacking and not (wanted.data.rename or wanted.data.only_classes):
        text = f"{list_names(lacking)} is a class; if it is no label, remove its images or rows"
        notes.append(Note("warning", f"{text}: {wanted.data.data_path}"))
    return rows.noted(*notes).found(*findings)


def name_numbers(rows: Rows, wanted: Wanted) -> Rows:
    """Gives labels that are numbers the names that DATA.CLASSES lists.

    For DATA.RENAME and ONLY_CLASSES, they have these names, the names of a checkpoint, or else the numbers as names.
    """
    listed = wanted.listed_classes
    renames = wanted.data.rename or {}
    asked = {*renames, *(wanted.data.only_classes or ())} - {*renames.values()}
    is_asked = renames or wanted.data.only_classes
    if rows.has_class_names or not (is_asked or (listed and not wanted.class_names)):
        return rows
    of_checkpoint = wanted.of_weights if wanted.class_names else []
    known = next((names for names in (listed, of_checkpoint) if names and asked <= {*names}), listed)
    names = [*known, *rows.class_names[len(known) :]]
    return rows.named(np.arange(len(names)), names)


def rename(rows: Rows, wanted: Wanted) -> Rows:
    """Gives the classes their names of DATA.RENAME.

    Raises UserError: an old name is no class, unless all classes have their new names already.
    """
    renames = wanted.data.rename
    if not renames:
        return rows
    names = {*rows.class_names}
    new = {*renames.values()}
    known = new if names <= new else wanted.class_names
    check_renames(renames, names.union(wanted.of_weights), known, wanted.data.data_path)
    renamed = new_names(rows.class_names, renames)
    merged = list(dict.fromkeys(renamed))
    return rows.named(map_labels(renamed, merged, "DATA.RENAME"), merged)


def check_renames(renames: Mapping[str, str], names: Set[str], renamed: Collection[str], place: object) -> None:
    """Raises UserError for an old name that is not in `names` and whose new name is not in `renamed`."""
    for old, new in renames.items():
        if old not in names and new not in renamed:
            raise UserError(
                f"DATA.RENAME: {place} has no class {shorten(old)}{did_you_mean(old, names) or '; correct it'}"
            )


def take_classes(rows: Rows, wanted: Wanted) -> Rows:
    """The images of DATA.ONLY_CLASSES, which become the classes, in the order of the data; the others are noted.

    Raises UserError: the data lack one of the classes or images of them, or have several labels per image.
    """
    if not wanted.data.only_classes:
        return rows
    names = rows.class_names
    if wanted.data.multi_label:
        raise UserError("DATA.ONLY_CLASSES: needs one label per image; remove it")
    present = {*names}
    given = new_names(wanted.data.only_classes, wanted.data.rename)
    asked = {name if name in present else find_name(name, names) for name in given}
    for name in sorted(asked - present):
        raise UserError(f"DATA.ONLY_CLASSES: the data have no class {shorten(name)}{did_you_mean(name, names)}")
    kept = [name for name in names if name in asked]
    labels = map_labels(names, kept, "DATA.ONLY_CLASSES")

    def take(split: str, samples: Samples) -> Samples:
        part = samples.select(np.flatnonzero(labels[samples.targets] >= 0))
        if not len(part):
            raise UserError(f"DATA.ONLY_CLASSES: a split has no image of {list_names(kept)}; name other classes")
        return part

    taken = rows.each(take).named(labels, kept)
    others = np.flatnonzero(labels < 0).tolist()
    if not others:
        return taken
    counts = rows.class_counts
    left_out = list_names([f"{names[label]} ({counts[label]} images)" for label in others], 5)
    return taken.noted(Note("screen", f"left out: {left_out}, DATA.ONLY_CLASSES"))


def number_classes(rows: Rows, wanted: Wanted) -> Rows:
    """Gives the images the labels of a checkpoint's classes, else of DATA.CLASSES, by name.

    Samples without class names keep their labels. Findings: see `_check_classes`. Raises UserError: as `map_labels`.
    """
    data = wanted.data
    known = wanted.class_names
    source = "the checkpoint"
    if not known and data.classes:
        source = f"DATA.CLASSES {data.classes}"
        known = [*dict.fromkeys(new_names(sort_names(rows.class_names, data.classes), data.rename))]
        if data.only_classes:
            names = {*rows.class_names}
            known = [name for name in known if name in names]
    if not known:
        return rows
    if not rows.has_class_names:
        return rows.noted(Note("log", "the data has no class names; its labels are used as they are"))
    labels = map_labels(rows.class_names, known, source)
    rows = _check_classes(rows, labels, known, source, wanted)
    if rows.findings or np.array_equal(labels, np.arange(len(known))):
        return rows
    return rows.named(labels, [*known])


def _check_classes(rows: Rows, labels: np.ndarray, known: Sequence[str], source: str, wanted: Wanted) -> Rows:
    """Finds a class with images that is not `known`; in a training with a checkpoint, any such class, and a known one
    that the data lack. labels: the place of each class in `known`, else -1. source: of `known`.
    """
    data = wanted.data
    names = rows.class_names
    missing = sorted({*known}.difference(names))
    others = [names[label] for label in np.flatnonzero(labels < 0).tolist()]
    needs_all = bool(wanted.class_names) and wanted.trains and not wanted.predicts
    unknown = others
    start = "to train with it, start from the weights: python main_single_gpu.py -cfg=RUN/config.yaml"
    fix = f"{start} -pretrained=RUN/best.pth -data_path={shlex.quote(data.data_path)} -opts MODEL.NUM_CLASSES=null"
    if not needs_all:
        unknown = [names[label] for label in np.flatnonzero((rows.class_counts > 0) & (labels < 0)).tolist()]
        fix = "rename or remove it"
    advice = ""
    if others and missing and not (needs_all or data.rename):  # DATA.RENAME cannot change in a run
        renames = "{OLD NAME: NEW NAME, ...}"
        if len(others) == len(missing) == 1:  # of several, each pair would be a guess
            renames = json.dumps({missing[0]: others[0]}, ensure_ascii=False)
        advice = f"; if classes have new names: -opts {shlex.quote(f'DATA.RENAME={renames}')}"
    if unknown:
        text = f"{list_names(unknown)}: not a class of {source} ({source} has {list_names(known)})"
        rows = rows.found(f"{data.data_path}: {text}; {fix}{advice}")
    elif advice:
        rows = rows.noted(Note("warning", f"not evaluated: {list_names(others)}{advice}"))
    if needs_all and missing:
        text = f"{list_names(missing)}: a class of {source} that the data does not have"
        rows = rows.found(f"{data.data_path}: {text}; add it, or give the class its old name again")
    return rows
