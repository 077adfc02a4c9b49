"""Train and validation splits of a data set that comes without them.

The split of an image with one label is a function of its path: images that are added or removed do not move the
others. With several labels it is a function of all paths and labels.

Legend: N images, G groups, such as patients; a unit is a group, or without DATA.GROUPS an image: U units. C classes.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from hashlib import blake2b, sha256
from itertools import compress
from typing import NamedTuple

import numpy as np

from configs.schema import Data
from configs.schema.data import properties_of
from configs.yaml_io import format_value, shorten
from datasets.sources.class_names import list_names
from datasets.sources.shared_arrays import PackedStrings, StringPacker, to_nfc
from utils.notes import Note

DEFAULT_VAL_FRACTION = 0.1


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
    def listed(self) -> tuple[str, ...]:
        """`held_out`, empty if it is not known."""
        return self.held_out or ()

    @property
    def digest(self) -> str:
        """SHA-256 of the held-out paths."""
        return sha256("\0".join(self.listed).encode("utf-8", "surrogateescape")).hexdigest()


def hash_paths(paths: PackedStrings, seed: int = 0) -> np.ndarray:
    """BLAKE2b of each path in NFC, 8 bytes, with the seed as salt: uint64 (N,), the same on every machine."""
    salt = seed.to_bytes(8, "little")
    digests = []
    for path in paths:
        encoded = to_nfc(path).encode("utf-8", "surrogateescape")
        digests.append(blake2b(encoded, digest_size=8, salt=salt).digest())
    return np.frombuffer(b"".join(digests), "<u8")


_NO_SPLIT = RunSplit(0, 0, None)  # no options ask for a fraction of 0


class History(NamedTuple):
    """The splits of the weights of a run.

    known: the split of the run so far, or of the weights to evaluate. Its list of held-out images decides, unless the
    options ask for another split. initial: of the run whose weights a training starts from. held_out: of the run whose
    held-out images a new training holds out (-held_out).
    """

    known: RunSplit | None = None
    initial: RunSplit | None = None
    held_out: RunSplit | None = None

    @property
    def of_images(self) -> RunSplit | None:
        """The split whose names of images count."""
        return self.known or self.held_out or self.initial


@dataclass(frozen=True)
class Cut:
    """The validation images of data without a validation split, bool (N,); of the split 'all' every image.

    problem: the reason if there are none. notes: for the log. run_split: with which a training continues, if the split
    'train' is read. num_trained: of the images to evaluate, the ones that the weights were trained on.
    """

    is_val: np.ndarray
    problem: str | None = "the images or groups are too few to hold some of them out; add more, or a val split"
    notes: list[Note] = field(default_factory=list)
    run_split: RunSplit | None = None
    num_trained: int = 0


def rule_of(data: Data) -> RunSplit:
    """The split that the options ask for, without its images."""
    fold = (data.fold or 0, data.folds) if data.folds else None
    fraction = data.val_fraction or DEFAULT_VAL_FRACTION
    return RunSplit(data.split_seed, fraction, None, fold=fold, groups=data.groups)


def cut_images(
    paths: PackedStrings,
    targets: np.ndarray,
    groups: PackedStrings | None,
    data: Data,
    splits: Collection[str],
    history: History = History(),  # noqa: B008
) -> Cut:
    """Divides images into 'train' and 'val'; or takes all of them for the split 'all'.

    A run that asks for its own split keeps its list. Otherwise the units of each class are sorted by the hash of
    their name, and the first VAL_FRACTION (a tenth by default, rounded, at least one) become validation units; a
    single unit stays in train. With DATA.FOLDS: see `_cut_folds`; of several labels: `_stratify`.

    targets: int64 (N,), or multi-hot int8 (N, C). splits: of the run.
    """
    known = history.known or _NO_SPLIT
    rule = rule_of(data)
    is_same = known.rule == rule.rule
    kept = known if is_same else _NO_SPLIT
    paths = _before_renaming(paths, data.rename, history.known or history.held_out or _NO_SPLIT)
    hashes = hash_paths(paths)
    if "all" in splits:
        part = Cut(np.ones(len(paths), bool))
    elif kept.held_out is not None:
        part = _listed(kept, hashes, groups)
    elif history.held_out:
        part = _listed_and_new(history.held_out, rule, paths, hashes, targets, groups)
    else:
        part = _cut(rule, paths, hashes, targets, groups)
    is_val = part.is_val
    notes = part.notes
    seen = _find_trained(known, hashes, is_val)
    if history.known:
        notes += _changes(known, paths, hashes, is_val, is_same and "all" not in splits, seen)
    if history.initial and "val" in splits:
        notes += _trained_before(history.initial, data, paths, is_val)
    problem = None if is_val.any() else part.problem
    if "train" not in splits:
        return Cut(is_val, problem, notes, num_trained=len(seen))
    run_split = replace(
        rule,
        held_out=_names_of(paths, is_val, kept.listed),
        trained=np.union1d(known.trained, hashes[~is_val]),
        held_out_groups=_names_of(groups, is_val, kept.held_out_groups),
    )
    return Cut(is_val, problem, notes, run_split)


def _names_of(strings: PackedStrings | None, is_val: np.ndarray, before: tuple[str, ...]) -> tuple[str, ...]:
    """The sorted names of the validation images, and those in the list of the run."""
    names = {*before}
    if strings:
        names |= {to_nfc(strings[index]) for index in np.flatnonzero(is_val).tolist()}
    return tuple(sorted(names))


def _listed(before: RunSplit, hashes: np.ndarray, groups: PackedStrings | None) -> Cut:
    """The images that a run has held out, and new ones of its groups."""
    is_val = np.isin(hashes, _hashes_of(before.listed))
    if groups:
        is_val |= np.isin(hash_paths(groups), _hashes_of(before.held_out_groups))
    fix = "evaluate all with -split=all, or set DATA.SPLIT_SEED to split again"
    problem = f"has none of the {len(before.listed)} images that the run held out; {fix}"
    if not before.listed:
        problem = "has no validation split, unlike the data of the run; add it, or resume a run of this data"
    return Cut(is_val, problem)


def _listed_and_new(
    before: RunSplit,
    rule: RunSplit,
    paths: PackedStrings,
    hashes: np.ndarray,
    targets: np.ndarray,
    groups: PackedStrings | None,
) -> Cut:
    """The images that another run has held out, and the ones that a cut of new images alone, or groups, holds out."""
    part = _listed(before, hashes, groups)
    if not part.is_val.any():
        return replace(part, problem="has none of the images that the run of -held_out held out; give its data, too")
    is_known = part.is_val | np.isin(hashes, before.trained)
    if groups:
        of_groups = hash_paths(groups)
        is_known |= np.isin(of_groups, of_groups[is_known])
    new = np.flatnonzero(~is_known)
    text = f"{part.is_val.sum()} images are held out as in the run of -held_out"
    if len(new):
        own = _cut(rule, paths.select(new), hashes[new], targets[new], groups and groups.select(new))
        part.is_val[new] = own.is_val
        text += f", and {own.is_val.sum()} of {len(new)} new ones (DATA.VAL_FRACTION {rule.fraction:g})"
    part.notes.append(Note("screen", text))
    return part


def _cut(
    rule: RunSplit, paths: PackedStrings, hashes: np.ndarray, targets: np.ndarray, groups: PackedStrings | None
) -> Cut:
    """Holds out a part of the units, in the order of the hashes of their names. A group has its most frequent class."""
    of_units = hash_paths(groups or paths, rule.seed) if groups or rule.seed else hashes
    units, first, unit_of = np.unique(of_units, return_index=True, return_inverse=True)
    fold, folds = rule.fold or (0, 0)
    problem = None
    if groups:
        problem = _problem_of_groups(rule.groups, folds, groups, len(units))
    elif targets.ndim == 1:
        problem = _problem_of_classes(folds, paths, targets, first)
    if problem:
        return Cut(np.zeros(len(targets), bool), problem)
    if targets.ndim == 2:
        parts = _stratify(targets, unit_of, rule)
    elif folds:
        parts = _cut_folds(most_frequent(targets, unit_of), folds)
    else:
        parts = _cut_fraction(most_frequent(targets, unit_of), rule.fraction)
    fold_of = parts[unit_of]
    cut = Cut(fold_of == fold)
    if groups:
        cut.notes.append(_describe_split(groups, cut.is_val))
        cut.notes.extend(_warn_of_large_part(groups, fold_of, rule))
    return cut


def _before_renaming(paths: PackedStrings, renames: Mapping[str, str] | None, known: RunSplit) -> PackedStrings:
    """The paths that the run knows, before the folders of classes were renamed (DATA.RENAME)."""
    of_run = np.append(known.trained, _hashes_of(known.listed))
    if not (renames and len(of_run)):
        return paths
    old_names = defaultdict(list)
    for old, new in renames.items():
        old_names[new].append(old)
    names = [*paths]
    before = []
    for place in np.flatnonzero(~np.isin(hash_paths(paths), of_run)).tolist():
        parts = to_nfc(names[place]).split("/")
        for level, name in enumerate(parts[:-1]):
            for old in old_names.get(name, ()):
                before.append((place, "/".join([*parts[:level], old, *parts[level + 1 :]])))
    are_known = np.isin(_hashes_of(path for _, path in before), of_run)
    for place, path in compress(before, are_known):
        names[place] = path
    return StringPacker(names).strings()


def _find_trained(known: RunSplit, hashes: np.ndarray, is_val: np.ndarray) -> np.ndarray:
    """Positions of the images to evaluate with the path of a training image.

    Empty if all images are evaluated and half of the training images are missing: other data may have such paths, too.
    """
    is_trained = np.isin(hashes, known.trained)
    lost = len(known.trained) - len(np.unique(hashes[is_trained]))
    if known.held_out is None or (is_val.all() and lost >= len(known.trained) / 2):
        return np.empty(0, np.int64)
    return np.flatnonzero(is_val & is_trained)


def _problem_of_groups(given: str | None, folds: int, groups: PackedStrings, number: int) -> str | None:
    """given: DATA.GROUPS. number: of groups."""
    if number == 1:
        return f"DATA.GROUPS {format_value(given)}: all images are of one group, such as {shorten(groups[0])}"
    if number == len(groups):
        return f"DATA.GROUPS {format_value(given)}: each image is a group of its own, such as {shorten(groups[0])}"
    if number < folds:
        return f"DATA.FOLDS {folds}: more than the {number} groups; set at most {number}"
    return None


def _problem_of_classes(folds: int, paths: PackedStrings, targets: np.ndarray, indices: np.ndarray) -> str | None:
    """Of a class with fewer images than folds. indices: of the images, each once."""
    _, first, sizes = np.unique(targets[indices], return_index=True, return_counts=True)
    small = indices[first[sizes < folds]]
    if not len(small):
        return None
    path = shorten(paths[int(small[0])])
    return f"DATA.FOLDS {folds}: the class of {path} has fewer images; add images, or set fewer folds"


def _changes(
    known: RunSplit, paths: PackedStrings, hashes: np.ndarray, is_val: np.ndarray, is_same: bool, seen: np.ndarray
) -> list[Note]:
    """Warnings of held-out images that the data lack now, and of images that the run was trained on: `seen`."""
    if known.held_out is None:
        text = (
            "the figures may be too high: the checkpoint has no list of held-out images, and was trained on images to "
            "evaluate if images were added or removed, or DATA.SPLIT_SEED or DATA.VAL_FRACTION was changed, since then"
        )
        return [Note("warning", text)]
    notes = []
    held_out = _hashes_of(known.held_out)
    missing = np.count_nonzero(~np.isin(held_out, hashes))
    if is_same and missing:
        text = f"the data lack {missing} of the {len(held_out)} held-out images of the checkpoint"
        notes.append(Note("warning", f"the figures are of other images than before: {text}"))
    fix = "; -split val evaluates the held-out images" if is_val.all() else ""
    return notes + _too_high(paths, is_val, seen, fix)


def _trained_before(initial: RunSplit, data: Data, paths: PackedStrings, is_val: np.ndarray) -> list[Note]:
    """A warning about validation images that the initial weights were trained on; none for other data."""
    hashes = hash_paths(_before_renaming(paths, data.rename, initial))
    seen = _find_trained(initial, hashes, np.ones_like(is_val))
    return _too_high(paths, is_val, seen[is_val[seen]], "; hold out the images that its run did, or take other weights")


def _too_high(paths: PackedStrings, is_val: np.ndarray, seen: np.ndarray, fix: str) -> list[Note]:
    if not len(seen):
        return []
    way = "(by path, if the content is the same)"
    images = f"{len(seen)} of {is_val.sum()} image(s) to evaluate, such as {shorten(paths[seen[0]])} {way}"
    text = f"the figures are too high: the checkpoint was trained on {images}{fix}"
    return [Note("warning", text, misleads=True)]


def as_read_before(data: Data, known: RunSplit | None, is_same: bool = True) -> Data:
    """The options with which a run that exists reads tables: as cp1252 if they are not in UTF-8.

    If it has split the data itself, a column of splits is not used. is_same: the data are the training's.
    """
    if not known or not properties_of(data.dataset).has_columns:
        return data
    columns = {"split": None, **data.given_columns} if is_same and known.held_out else data.columns
    return data.changed(encoding=data.encoding or "cp1252", columns=columns)


def count_known(known: RunSplit, paths: Iterable[str]) -> int:
    """The number of images, by their names, that a run has held out or trained on."""
    names = {*map(to_nfc, paths)}
    of_run = np.append(known.trained, _hashes_of(known.listed))
    return int(np.isin(_hashes_of(names), of_run).sum())


def _hashes_of(paths: Iterable[str]) -> np.ndarray:
    return hash_paths(StringPacker(paths).strings())


def places_in_classes(classes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The place of each unit in its class, and the number of units of this class: int64 (U,) and int64 (U,)."""
    _, class_of, sizes = np.unique(classes, return_inverse=True, return_counts=True)
    place = np.empty(len(classes), np.int64)
    place[np.argsort(class_of, kind="stable")] = np.arange(len(classes)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return place, sizes[class_of]


def _cut_fraction(classes: np.ndarray, fraction: float) -> np.ndarray:
    """0 for each unit that is held out, else 1: int64 (U,). classes: as of `_cut_folds`."""
    place, sizes = places_in_classes(classes)
    held_out = np.minimum(np.maximum(np.round(sizes * fraction), 1), sizes - 1)
    return (place >= held_out).astype(np.int64)


def _cut_folds(classes: np.ndarray, folds: int) -> np.ndarray:
    """The fold of each unit, int64 (U,).

    Of a class of n units in the order of their hashes, fold i of k begins at (i n + label) // k, the label modulo k:
    the folds of a class differ by at most one unit, and classes of one size have the larger fold in turn. One unit more
    moves at most one unit across each boundary of folds. Where this leaves a fold half of its units or fewer, as of few
    groups, the units, sorted by class, go to the folds in turn.

    classes: of the units in the order of their hashes, int64 (U,).
    """
    place, sizes = places_in_classes(classes)
    fold_of = ((place + 1) * folds - classes % folds - 1) // sizes
    if 2 * np.bincount(fold_of, minlength=folds).min() <= len(classes) // folds:
        fold_of[np.argsort(classes, kind="stable")] = np.arange(len(classes)) % folds
    return fold_of


def _stratify(targets: np.ndarray, unit_of: np.ndarray, rule: RunSplit) -> np.ndarray:
    """The fold of each unit of images with several labels; without folds 0 if it is held out, else 1: int64 (U,).

    Units with many and rare labels come first, of equal ones the lowest hash. Each goes to the part (a fold; held out,
    train) in which the chi-squared of the numbers of images, of each label and of all, falls most. Iterative
    stratification (Sechidis et al., 2011) looks at one label at a time, which does not balance groups.

    targets: multi-hot int8 (N, C). unit_of: positions of the units in the order of their hashes, int64 (N,).
    """
    number = len(targets)
    width = targets.shape[1] + 1
    rows, labels = map(np.append, np.nonzero(targets > 0), (np.arange(number), np.full(number, width - 1)))
    pairs, counts = np.unique(unit_of[rows] * width + labels, return_counts=True)
    units, labels = np.divmod(pairs, width)
    totals = np.bincount(labels, counts, width).astype(np.int64)
    if rule.fold:
        lacking = np.tile(totals, (rule.fold[1], 1))
        step = rule.fold[1]  # in k-ths of an image: whole numbers
    else:  # of a label in two units, both parts expect one
        fewest = np.full(width, number)
        step = 1
        np.minimum.at(fewest, labels, counts)
        held_out = np.clip(np.round(totals * rule.fraction).astype(np.int64), fewest, totals - fewest)
        lacking = np.stack([held_out, totals - held_out])
    parts = list(zip(lacking.tolist(), np.maximum(lacking, 1).tolist(), strict=True))
    labels_of = np.split(np.stack([labels, step * counts], axis=1), np.flatnonzero(np.diff(units)) + 1)
    part_of = np.zeros(len(labels_of), np.int64)
    for unit in np.argsort(-np.bincount(units, counts / totals[labels]), kind="stable").tolist():
        own = labels_of[unit].tolist()
        # fsum is exact: of equal parts, every machine finds the same one.
        falls = [math.fsum([n * (2 * lacks[i] - n) / expected[i] for i, n in own]) for lacks, expected in parts]
        part = falls.index(max(falls))
        part_of[unit] = part
        for label, count in own:
            parts[part][0][label] -= count
    return part_of


def most_frequent(classes: np.ndarray, group_of: np.ndarray) -> np.ndarray:
    """The most frequent class of each group, the smallest of equally frequent ones: int64 (G,).

    classes: int64 (N,), at least -1. group_of: positions of the groups, int64 (N,).
    """
    width = int(classes.max(initial=0)) + 2
    pairs, counts = np.unique(group_of * width + classes + 1, return_counts=True)
    by_count = pairs[np.lexsort((pairs, -counts, pairs // width))]
    first = np.unique(by_count // width, return_index=True)[1]
    return by_count[first] % width - 1


def _warn_of_large_part(groups: PackedStrings, fold_of: np.ndarray, rule: RunSplit) -> list[Note]:
    """A warning of a fold far above the mean, or of far more images held out. fold_of: of each image, int64 (N,)."""
    sizes = np.bincount(fold_of)
    largest = sizes[0]
    part = "the held-out part"
    wanted = f", more than DATA.VAL_FRACTION {rule.fraction:g}"
    limit = min(3 * rule.fraction, 0.5)
    if rule.fold:
        _, folds = rule.fold
        largest = sizes.max()
        part = f"the largest of {folds} folds"
        wanted = ""
        limit = 1.5 / folds
    if largest <= limit * len(fold_of):
        return []
    ((name, count),) = Counter(groups).most_common(1)
    text = f"{part} has {largest / len(fold_of):.0%} of the images{wanted}; the group {shorten(name)} has {count}"
    return [Note("warning", f"{text} of {len(fold_of)}")]


def _describe_split(units: PackedStrings, is_val: np.ndarray) -> Note:
    """The number of units that are held out, and their names. units: the unit of each image. is_val: bool (N,)."""
    held_out = sorted({units[index] for index in np.flatnonzero(is_val).tolist()})
    names = list_names(held_out, 3)
    images = f"{is_val.sum()} of {len(is_val)} images"
    return Note("log", f"{len(held_out)} of {len(set(units))} groups are held out ({names}), {images}")
