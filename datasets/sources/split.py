"""Train and validation splits of a data set that comes without them; DATA.GROUPS: what a split keeps together.

The split of an image with one label is a function of its path: images that are added or removed do not move the
others. With several labels it is a function of all paths and labels.

Legend: N images, G groups, such as patients; a unit is a group, or without DATA.GROUPS an image: U units. C classes.
"""

import math
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from hashlib import blake2b, sha256
from pathlib import Path
from typing import Any

import numpy as np

from configs.schema import Data
from configs.schema.data import properties_of
from configs.yaml_io import shorten
from datasets.sources.samples import Listing, label_pairs
from datasets.sources.shared_arrays import PackedStrings, StringPacker, to_arrays, to_nfc
from datasets.sources.tables import Table, table_rows
from utils.errors import Finding, UserError, combine_findings
from utils.notes import Note

DEFAULT_VAL_FRACTION = 0.1
_NO_LIST = (
    "the checkpoint has no list of held-out images; images to evaluate have been trained on if images were added or "
    "removed, or DATA.SPLIT_SEED or DATA.VAL_FRACTION was changed, since then"
)


@dataclass(frozen=True)
class RunSplit:
    """The split of the data of a run, as its checkpoints keep it.

    seed, fraction: DATA.SPLIT_SEED and DATA.VAL_FRACTION. held_out: the sorted paths of the validation images, in NFC
    and relative to the folder of the data; empty if the data came with splits; None if not known. trained: `hash_paths`
    of the training images, sorted; empty if unknown. fold: DATA.FOLD and DATA.FOLDS; None without folds. groups:
    DATA.GROUPS. held_out_groups: the sorted names of the groups of the validation images.
    """

    seed: int
    fraction: float
    held_out: tuple[str, ...] | None
    trained: np.ndarray = field(default_factory=lambda: np.empty(0, np.uint64), compare=False)
    fold: tuple[int, int] | None = None
    groups: str | None = None
    held_out_groups: tuple[str, ...] = ()

    @property
    def rule(self) -> tuple[object, ...]:
        """The options that choose the held-out images."""
        return self.seed, self.fraction, self.fold, self.groups

    @property
    def digest(self) -> str:
        """SHA-256 of the held-out paths."""
        return sha256("\0".join(self.held_out or ()).encode("utf-8", "surrogateescape")).hexdigest()


def hash_paths(paths: PackedStrings, seed: int = 0) -> np.ndarray:
    """BLAKE2b of each path in NFC, 8 bytes, with the seed as salt: uint64 (N,), the same on every machine."""
    text, salt, start, digests = paths.encoded.tobytes(), seed.to_bytes(8, "little"), 0, []
    for end in paths.ends.tolist():
        path, start = text[start:end], end
        if not path.isascii():
            path = to_nfc(path.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")
        digests.append(blake2b(path, digest_size=8, salt=salt).digest())
    return np.frombuffer(b"".join(digests), "<u8")


@dataclass
class Part:
    """The sorted indices of the images of a part of the data, error messages, and notes for the log."""

    indices: np.ndarray
    findings: list[Finding] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)


class Splitter:
    """Splits the data of a run, or of an evaluation of its weights.

    known: the split of the run so far. Its list of held-out images decides, unless the options ask for another split.
    result: the split with which training continues, when the split 'train' has been read.
    """

    def __init__(self, data: Data, known: RunSplit | None = None) -> None:
        fold = (data.fold or 0, data.folds) if data.folds else None
        fraction = data.val_fraction or DEFAULT_VAL_FRACTION
        self.data, self.known = data, known
        self._rule = RunSplit(data.split_seed, fraction, None, fold=fold, groups=data.groups)
        self.result: RunSplit | None = None

    def part(self, paths: PackedStrings, targets: np.ndarray, split: str, groups: PackedStrings | None = None) -> Part:
        """The images of 'train', 'val' or 'all'.

        Sorts the images of each class by the hash of their path. The first VAL_FRACTION (a tenth by default, rounded,
        at least one) become validation images; a single image stays in train. With DATA.FOLDS: see `_hold_out`. Groups
        are held out as images are, each in its most frequent class. Of several labels: see `_stratify`.

        targets: int64 (N,), or multi-hot int8 (N, C).
        """
        place, known, new, hashes = self.data.data_path, self.known, self._rule, hash_paths(paths)
        is_same = known is not None and split != "all" and known.rule == new.rule
        listed, listed_groups = (known.held_out, known.held_out_groups) if known and is_same else (None, ())
        findings, notes, unit = list[Finding](), list[Note](), "group" if groups else "image"
        problem = f"no class has two {unit}s, so no {unit} can be held out; add a val split"
        if split == "all":
            is_val = np.ones(len(paths), dtype=bool)
        elif listed is not None:
            is_val = np.isin(hashes, _hashes_of(listed))
            if groups:
                is_val |= np.isin(hash_paths(groups), _hashes_of(listed_groups))
            problem = f"has none of the {len(listed)} images that the run held out; set DATA.SPLIT_SEED to split again"
            if not listed:
                problem = "has no validation split, unlike the data of the run; add it, or resume a run of this data"
        else:
            of_units = hash_paths(groups or paths, new.seed) if groups or new.seed else hashes
            ids, unit_of = np.unique(of_units, return_inverse=True)
            if new.fold:
                problem = f"no {unit} is in fold {new.fold[0]}; set fewer DATA.FOLDS than there are {unit}s"
            if groups and len(ids) in (1, len(targets)):
                is_val, few = np.zeros(len(targets), bool), "all images are of one group"
                few = few if len(ids) == 1 else "each image is a group of its own"
                findings.append(f"DATA.GROUPS {shorten(new.groups)}: {few}, such as {shorten(groups[0])}")
            elif targets.ndim == 2:
                is_val = _stratify(targets, unit_of, new)[unit_of]
            else:
                is_held_out, small = _hold_out(most_frequent(targets, unit_of), new)
                is_val = is_held_out[unit_of]
                if len(small) and not groups:
                    image = shorten(paths[int(np.argmax(targets == small[0]))])
                    text = (
                        f"{len(small)} class(es) have fewer images than DATA.FOLDS {self.data.folds}, such as the class"
                    )
                    findings.append(f"{place}: {text} of {image}; add images, or set fewer folds")
            if (groups or targets.ndim == 2) and not findings:
                notes += _describe_split(groups, unit_of, targets, is_val, self.data.folds)
        notes += _changes(known, paths, hashes, is_val, is_same) if known else []
        if split == "train":
            indices = np.flatnonzero(is_val).tolist()
            held_out, of_groups = (
                tuple(sorted({*(before or ()), *(to_nfc(strings[index]) for index in indices if strings)}))
                for strings, before in ((paths, listed), (groups, listed_groups))
            )
            trained = np.union1d(known.trained if known else hashes[:0], hashes[~is_val])
            self.result = replace(new, held_out=held_out, trained=trained, held_out_groups=of_groups)
        if not is_val.any() and not findings:
            findings.append(f"{place}: {problem}")
        return Part(np.flatnonzero(~is_val if split == "train" else is_val), findings, notes)


def _changes(
    known: RunSplit, paths: PackedStrings, hashes: np.ndarray, is_val: np.ndarray, is_same: bool
) -> list[Note]:
    """Notes about images that were added or removed since the run `known`, or that it was trained on."""
    if known.held_out is None:
        return [Note("warning", _NO_LIST)]
    notes, held_out, is_trained = list[Note](), _hashes_of(known.held_out), np.isin(hashes, known.trained)
    lost = len(known.trained) - len(np.unique(hashes[is_trained]))
    missing = np.count_nonzero(~np.isin(held_out, hashes))
    added = np.count_nonzero(~is_trained & ~is_val) if len(known.trained) else 0
    if is_same and (missing or lost or added):
        text = f"missing are {missing} of {len(held_out)} held-out and {lost} of {len(known.trained)} training image(s)"
        notes.append(Note("warning" if missing else "log", f"since the checkpoint {added} image(s) were added; {text}"))
    seen = np.flatnonzero(is_val & is_trained)
    # All images of other data may have such paths, too.
    if len(seen) and (not is_val.all() or lost < len(known.trained) / 2):
        images = f"{len(seen)} of {is_val.sum()} image(s) to evaluate, such as {shorten(paths[seen[0]])}"
        fix = "; -split val evaluates the held-out images" if is_val.all() else ""
        notes.append(Note("warning", f"{images}, have the paths of images that the checkpoint was trained on{fix}"))
    return notes


def as_read_before(data: Data, known: RunSplit | None, is_same: bool = True) -> Data:
    """The options with which a run that exists reads tables: as cp1252 if they are not in UTF-8.

    If it has split the data itself, a column of splits is not used. is_same: the data are the training's.
    """
    if not known or not properties_of(data.dataset).has_columns:
        return data
    columns = {"split": None, **(data.columns or {})} if is_same and known.held_out else data.columns
    return data.model_copy(update={"encoding": data.encoding or "cp1252", "columns": columns})


def split_listing(listing: Listing, split: str, splitter: Splitter) -> Listing:
    """The 'train' or the 'val' part of a listing, or for 'all' the listing."""
    if splitter.data.groups and split != "all":
        listing = with_groups(listing, splitter.data)
    part = splitter.part(listing.paths, listing.arrays["targets"], split, listing.groups)
    listing.findings += part.findings
    listing.notes += part.notes
    return listing.select(part.indices)


def _hashes_of(paths: tuple[str, ...]) -> np.ndarray:
    return hash_paths(StringPacker(paths).strings())


def _hold_out(classes: np.ndarray, rule: RunSplit) -> tuple[np.ndarray, np.ndarray]:
    """Tells for each unit whether it is held out, bool (U,); and the classes with fewer units than folds.

    Of a class of n units in the order of their hashes, fold i of k begins at (i n + label) // k, the label modulo k:
    the folds of a class differ by at most one unit, and classes of one size have the larger fold in turn. One unit more
    moves at most one unit across each boundary of folds.

    classes: of the units in the order of their hashes, int64 (U,).
    """
    labels, class_of, sizes = np.unique(classes, return_inverse=True, return_counts=True)
    starts, ends = np.zeros(len(sizes)), np.minimum(np.maximum(np.round(sizes * rule.fraction), 1), sizes - 1)
    index, folds = rule.fold or (0, 0)
    if folds:
        starts, ends = ((i * sizes + labels % folds) // folds for i in (index, index + 1))
    place = np.empty(len(classes), np.int64)  # in its class
    place[np.argsort(class_of, kind="stable")] = np.arange(len(classes)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return (starts[class_of] <= place) & (place < ends[class_of]), labels[sizes < folds]


def _stratify(targets: np.ndarray, unit_of: np.ndarray, rule: RunSplit) -> np.ndarray:
    """Tells for each unit of images with several labels whether it is held out, bool (U,).

    Units with many and rare labels come first, of equal ones the lowest hash. Each goes to the part (a fold; held out,
    train) in which the chi-squared of the numbers of images, of each label and of all, falls most. Iterative
    stratification (Sechidis et al., 2011) looks at one label at a time, which does not balance groups.

    targets: multi-hot int8 (N, C). unit_of: positions of the units in the order of their hashes, int64 (N,).
    """
    number, width = len(targets), targets.shape[1] + 1
    rows, labels = map(np.append, np.nonzero(targets), (np.arange(number), np.full(number, width - 1)))
    pairs, counts = np.unique(unit_of[rows] * width + labels, return_counts=True)
    units, labels = np.divmod(pairs, width)
    totals = np.bincount(labels, counts, width).astype(np.int64)
    if rule.fold:
        lacking, step = np.tile(totals, (rule.fold[1], 1)), rule.fold[1]  # in k-ths of an image: whole numbers
    else:  # of a label in two units, both parts expect one
        fewest, step = np.full(width, number), 1
        np.minimum.at(fewest, labels, counts)
        held_out = np.clip(np.round(totals * rule.fraction).astype(np.int64), fewest, totals - fewest)
        lacking = np.stack([held_out, totals - held_out])
    parts = list(zip(lacking.tolist(), np.maximum(lacking, 1).tolist(), strict=True))
    labels_of = np.split(np.stack([labels, step * counts], axis=1), np.flatnonzero(np.diff(units)) + 1)
    is_held_out = np.zeros(len(labels_of), bool)
    for unit in np.argsort(-np.bincount(units, counts / totals[labels]), kind="stable").tolist():
        own = labels_of[unit].tolist()
        # fsum is exact: of equal parts, every machine finds the same one.
        falls = [math.fsum([n * (2 * lacks[i] - n) / expected[i] for i, n in own]) for lacks, expected in parts]
        part = falls.index(max(falls))
        is_held_out[unit] = part == (rule.fold[0] if rule.fold else 0)
        for label, count in own:
            parts[part][0][label] -= count
    return is_held_out


def with_groups(listing: Listing, data: Data) -> Listing:
    """The listing with the group of each image: a column of its table, or what DATA.GROUPS says of its path.

    Raises UserError: images without a group; the table of the groups cannot be read, or an image has two.
    """
    assert data.groups
    by_column = properties_of(data.dataset).groups_by == "column"
    if "(" in data.groups and not by_column:
        matches = map(re.compile(data.groups).search, map(to_nfc, listing.paths))
        packed = StringPacker("/".join(filter(None, match.groups())) if match else "" for match in matches)
    else:
        file, root, columns, label = Path(data.groups), data.data_path, dict[Any, Any]({"path": "path"}), "group"
        if by_column:
            assert listing.file
            file, root, columns, label = listing.file, data.image_root or "", data.columns or {}, data.groups
        changes = {"image_root": root, "labels": None, "columns": {**columns, "label": label, "split": None}}
        rows, group_of = table_rows(Table(file, data.encoding), data.model_copy(update=changes)), dict[str, str]()
        names = list(map("".join, rows.target_ids))
        for path, line, target_id in zip(rows.paths.strings(), rows.lines, rows.row_target_ids, strict=True):
            if group_of.setdefault(path, names[target_id]) != names[target_id]:
                rows.add_finding(line, f"{shorten(path)} has the group {shorten(group_of[path])} in another line")
        if rows.findings:
            raise combine_findings(f"{file}: {len(rows.findings)} problems", rows.findings)
        folder = os.path.relpath(listing.root, rows.root)
        packed = StringPacker(group_of.get(os.path.normpath(os.path.join(folder, path)), "") for path in listing.paths)
    groups = packed.strings()
    check_groups(groups, data, listing.location)
    return replace(listing, arrays={**listing.arrays, **to_arrays(groups, "groups")})


def check_groups(groups: PackedStrings, data: Data, location: Callable[[int], str]) -> None:
    """Raises UserError for images without a group."""
    if missing := np.flatnonzero(np.diff(groups.ends, prepend=0) == 0).tolist():
        images = f"{len(missing)} of {len(groups)} images have no group, such as {location(missing[0])}"
        fix = "write one into the column, the table path,group or the .json, or correct the expression"
        raise UserError(f"DATA.GROUPS {shorten(data.groups)}: {images}; {fix}")


def most_frequent(classes: np.ndarray, group_of: np.ndarray) -> np.ndarray:
    """The most frequent class of each group, the smallest of equally frequent ones: int64 (G,).

    classes: int64 (N,), at least -1. group_of: positions of the groups, int64 (N,).
    """
    width = int(classes.max(initial=0)) + 2
    pairs, counts = np.unique(group_of * width + classes + 1, return_counts=True)
    by_count = pairs[np.lexsort((pairs, -counts, pairs // width))]
    first = np.unique(by_count // width, return_index=True)[1]
    return by_count[first] % width - 1


def _describe_split(
    groups: PackedStrings | None, unit_of: np.ndarray, targets: np.ndarray, is_val: np.ndarray, folds: int | None
) -> list[Note]:
    """Lines for the log: units held out and class shares; a group larger than a fold, classes missing in a part.

    unit_of: as of `most_frequent`. targets: int64 (N,) or multi-hot int8 (N, C). is_val: bool (N,).
    """
    sizes, number, words = np.bincount(unit_of), len(targets), "classes" if targets.ndim == 1 else "labels"
    rows, labels = label_pairs(targets)
    labels = labels + (targets.ndim == 1)  # from -1
    totals = np.bincount(labels, minlength=1)
    held_out = np.bincount(labels[is_val[rows]], minlength=len(totals))
    shares = 100 * np.stack([totals / number, held_out / max(is_val.sum(), 1)])
    whole, part = shares[:, np.abs(shares[0] - shares[1]).argmax()]
    units = f"{len(np.unique(unit_of[is_val]))} of {len(sizes)} are held out, {is_val.sum()} of {number} images"
    deviation = f"{abs(part - whole):.1f} points ({whole:.1f}% of all, {part:.1f}% of the held-out)"
    line = f"{'groups' if groups else 'images'}: {units}; the shares of {words} deviate by up to {deviation}"
    notes = [Note("log", line)]
    if groups and folds and sizes.max() > number / folds:
        large = f"{shorten(groups[int(np.argmax(unit_of == sizes.argmax()))])} has {sizes.max()} of {number} images"
        notes.append(Note("warning", f"the group {large}, more than one of {folds} folds"))
    for images, counts in (("held-out", held_out), ("training", totals - held_out)):
        if missing := np.count_nonzero((totals > 0) & (counts == 0)):
            notes.append(Note("warning", f"{missing} of {np.count_nonzero(totals)} {words} have no {images} image"))
    return notes
