"""Reads the samples of a data set with all checks, and the images of a prediction: one image, a folder, or a list."""

import os
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np

from configs.schema import Data
from configs.schema.data import properties_of
from configs.yaml_io import shorten
from datasets.decoding.decode import Decoding
from datasets.recognition import recognize_table
from datasets.sources.checks import check_same_data, find_invalid_labels, find_problems
from datasets.sources.class_names import (
    BYTES,
    NATURAL,
    check_names,
    map_labels,
    new_names,
    number_by,
    number_of_classes,
    sort_names,
)
from datasets.sources.corrections import correct
from datasets.sources.folders.class_folders import read_images
from datasets.sources.groups import check_groups, with_groups
from datasets.sources.listed.parquet import Parquet
from datasets.sources.listing import forget_listings
from datasets.sources.samples import ImageFiles, Samples, listing_arrays
from datasets.sources.share import take_classes, take_share
from datasets.sources.shared_arrays import StringPacker, share_arrays, to_nfc
from datasets.sources.source import Numbers, Source, source_class
from datasets.sources.split import RunSplit, Splitter
from datasets.sources.tables.files import TABLE_SUFFIXES
from datasets.sources.tables.rows import read_unlabelled_list
from utils.distributed import ProcessContext, broadcast_object, call_on_main, find_on_main, work_while_others_wait
from utils.errors import Finding, Unavailable, UserError, did_you_mean, raise_problems
from utils.notes import Note
from utils.system import require


def read_samples(
    data: Data,
    num_classes: int | None,
    context: ProcessContext,
    *splits: str,
    class_names: Sequence[str] | None = None,
    predicts: bool = False,
    splitter: Splitter | None = None,
    is_new: bool = False,
    of_weights: Sequence[str] | None = None,
) -> list[Samples]:
    """Reads the samples of each split, with every check that does not open an image.

    A split is 'train', 'val', 'test', or 'all': all images of data without splits. `num_classes` None stands for
    `number_of_classes`. Samples with class names get the labels of `class_names`, from a checkpoint, if given, else of
    DATA.CLASSES; 'train' must have exactly the classes of a checkpoint. Samples that are only predicted (`predicts`)
    may have missing files and no label, and 'train' may be of any size and lack classes. `splitter` splits data without
    a validation split.
    `is_new`: for a new training: labels of a table that are not 0, 1, 2, ... are names, unless `num_classes` is given.
    `of_weights`: the class names of its initial weights, which DATA.RENAME may name.

    Every rank must call it, and raises the main process's error. One rank of each host reads, and looks for some files;
    all ranks compare what they have.
    Raises UserError: an unknown data set; or, in one error, all problems of all splits: missing or malformed lists and
    folders, a host without the files, labels that are not below `num_classes`, classes that `class_names` does not
    contain, fewer training samples than one batch on every rank.
    """
    splitter = splitter or Splitter(data)
    names = [to_nfc(name) for name in class_names or ()]
    data = data.model_copy(update={"download": data.download and context.is_main})

    def read() -> _Read:
        source = source_class(data.dataset)(data, splitter)
        has_numbers = num_classes is not None or data.classes not in (None, NATURAL, BYTES)
        source.numbers = Numbers(names, are_names=is_new and not has_numbers)
        known = {*map(to_nfc, of_weights or ())}
        samples = _read_and_check(source, num_classes, context, splits, names, predicts, known)
        return _Read(samples, splitter.result, splitter.num_trained)

    found = _on_all_ranks(read, context)
    splitter.result = found.split
    splitter.num_trained = found.num_trained
    return found.samples


def read_unlabelled(path: str, data: Data, context: ProcessContext, trained_root: str | None = None) -> Samples:
    """Reads the images of `path`, see `unlabelled`, with DATA.GREY_RANGE and MAX_PIXELS. Every rank must call it.

    Raises UserError: no such path, or no images; the main process's error, on every rank.
    """

    def read() -> _Read:
        samples = unlabelled(path, data, trained_root)
        if data.groups:
            _group({"all": samples}, data)
        samples.decoding = Decoding(data.grey_range, data.max_pixels)
        return _Read([samples])

    (samples,) = _on_all_ranks(read, context).samples
    return samples


@dataclass(frozen=True)
class _Read:
    """The samples of each split, and `result` and `num_trained` of the `Splitter`."""

    samples: list[Samples]
    split: RunSplit | None = None
    num_trained: int = 0


_shared = list[Mapping[str, np.ndarray]]()  # until this process exits: workers of other ranks open the files, too


def _on_all_ranks(read: Callable[[], _Read], context: ProcessContext) -> _Read:
    """The result of `read`, which may take any time, as indexing shards does. A collective call.

    Every rank raises the main process's error. Another host that does not have the same data raises an error that
    names it.
    """
    try:
        if context.world_size == 1:
            found = read()
        else:
            found = _read_per_host(read, context)
    finally:
        forget_listings()
    check_same_data(found.samples, context)
    return found


def _read_per_host(read: Callable[[], _Read], context: ProcessContext) -> _Read:
    """The main process reads, then the first rank of each other host, whose data may differ. The others of a host map
    its arrays; a rank that does not see them, as in a container of its own, reads, too.
    """
    hosts = context.hosts
    readers = [rank for rank, host in enumerate(hosts) if host not in hosts[:rank]]

    def read_and_share() -> _Read:
        found = read()
        for samples in found.samples:
            samples.arrays = share_arrays(samples.arrays)
            _shared.append(samples.arrays)
        return found

    def read_if_due() -> _Read | UserError | None:
        try:
            return read_and_share() if context.rank in readers[1:] else of_main
        except UserError as error:  # of all ranks of this host
            return error

    of_main = call_on_main(read_and_share, context)
    found = work_while_others_wait(read_if_due, context)
    for reader in readers:
        with suppress(OSError):
            sent = broadcast_object(found, context, reader)
            if context.host == hosts[reader]:
                found = sent
    try:
        if isinstance(found, UserError):
            raise found
        read_else = read if found is None else lambda: found
        return work_while_others_wait(read_else, context)
    except UserError as error:
        if context.host != hosts[0]:
            error.args = (f"{context.host}, unlike {hosts[0]}: {error}",)
        raise


def has_test_split(data: Data, context: ProcessContext) -> tuple[bool, str | None]:
    """Calls `Source.find_test` on the main process, whose error every rank raises. Every rank must call it."""
    return find_on_main(lambda: source_class(data.dataset).find_test(data), context)


def split_to_evaluate(data: Data, context: ProcessContext) -> tuple[str, str | None]:
    """The split that an evaluation reads of data other than the training's, and a note if it is a part of train.

    It is 'all' for data without splits, else 'val', else a test split with labels, else the images that a training
    would hold out. Every rank must call it, and raises the main process's error.
    """

    def find() -> tuple[str, str | None]:
        splits = source_class(data.dataset).splits_of(data)
        if not splits:
            return "all", None
        for split in ("val", "test"):
            if split in splits:
                return split, None
        return "val", f"{data.data_path}: no val or test has labels: of train, only images that a training holds out"

    return find_on_main(find, context)


def _read_and_check(
    source: Source,
    num_classes: int | None,
    context: ProcessContext,
    splits: tuple[str, ...],
    class_names: Sequence[str],
    predicts: bool,
    of_weights: Set[str],
) -> list[Samples]:
    data = source.data
    # With the labels that the data have: `_number_classes` replaces them by a checkpoint's, or by DATA.CLASSES.
    samples, findings = _read_each_split(source, splits)
    if data.groups:
        _group(samples, data)
    for of_split in samples.values():
        findings += check_names(of_split, data.data_path)
    intact = {split: of_split for split, of_split in samples.items() if not of_split.findings}
    if len(intact) == len(samples):
        _rename(intact, data, class_names, of_weights)
        if data.only_classes:  # the right class of an image may be one that stays
            correct(intact, data)
    _take_parts(intact, data)
    unknown = _number_all(intact, data, class_names, predicts)
    samples |= intact
    if not (data.only_classes or findings or unknown):
        correct(samples, data)
    if "train" in samples:
        _warn_of_shared_groups(samples)
    findings += _misfit_of_folds(source, samples)
    if num_classes is None:
        num_classes = number_of_classes(data.dataset, list(samples.values()))
    trains = len(samples) > 1
    for split, of_split in samples.items():
        of_split.decoding = Decoding(data.grey_range, data.max_pixels)
        if data.multi_label:
            of_split.fit_targets(num_classes)
        findings += of_split.findings
        findings += unknown or find_invalid_labels(of_split, split, num_classes)
        if not predicts:
            findings += find_problems(of_split, split, data, context, trains=trains)
    # Two splits of one list have the same messages.
    place = data.data_path if properties_of(data.dataset).has_files else data.dataset
    raise_problems(place, [*{str(one): one for one in findings}.values()])
    return list(samples.values())


def _rename(samples: Mapping[str, Samples], data: Data, class_names: Sequence[str], of_weights: Set[str]) -> None:
    """Gives the classes of each split their names of DATA.RENAME.

    class_names: of a checkpoint, after DATA.RENAME. of_weights: of initial weights, before. Raises UserError: an old
    name is no class, unless all folders have their new names already.
    """
    if not data.rename:
        return
    named = [of_split for of_split in samples.values() if of_split.has_class_names]
    of_data = {name for of_split in named for name in of_split.class_names}
    new = {*data.rename.values()}
    check_renames(data.rename, of_data | of_weights, new if of_data <= new else class_names, data.data_path)
    for of_split in named:
        renamed = new_names(of_split.class_names, data.rename)
        names = list(dict.fromkeys(renamed))
        of_split.number_classes(map_labels(renamed, names, "DATA.RENAME"), names)


def check_renames(renames: Mapping[str, str], names: Set[str], renamed: Collection[str], place: object) -> None:
    """Raises UserError for an old name that is not in `names` and whose new name is not in `renamed`."""
    for old, new in renames.items():
        if old not in names and new not in renamed:
            raise UserError(f"DATA.RENAME: {place} has no class {shorten(old)}{did_you_mean(old, names)}; correct it")


def _number_all(samples: Mapping[str, Samples], data: Data, class_names: Sequence[str], predicts: bool) -> list[str]:
    """Gives the samples of each split their labels; returns the errors of the first one with unknown names."""
    for split, of_split in samples.items():
        needs_all = split == "train" and not predicts
        if unknown := _number_classes(of_split, data, class_names, needs_all):
            return unknown
    return []


def _misfit_of_folds(source: Source, samples: Mapping[str, Samples]) -> list[Finding]:
    """The error of DATA.FOLDS beside a validation split."""
    data = source.data
    is_cut = source.splitter.result or source.has_folds
    if is_cut or not (data.folds and {"train", "val"} <= samples.keys()):
        return []
    problem = f"DATA.FOLDS {data.folds}: {data.dataset} has a validation split here"
    return [f"{problem}; give the training part alone with -data_path, or remove DATA.FOLDS"]


def _read_each_split(source: Source, splits: Sequence[str]) -> tuple[dict[str, Samples], list[Finding]]:
    """The samples of each split, and the errors of the others."""
    samples = {}
    findings = list[Finding]()
    for split in splits:
        try:
            _check_split(source, split)
            samples[split] = source.read(split)
        except UserError as error:
            findings.append(error)
    return samples, findings


def _take_parts(samples: dict[str, Samples], data: Data) -> None:
    """Leaves the images of DATA.ONLY_CLASSES, and of the training images DATA.FRACTION. Raises UserError."""
    for split, of_split in [*samples.items()]:
        if data.only_classes:
            samples[split] = take_classes(of_split, new_names(data.only_classes, data.rename))
        if data.fraction < 1 and split == "train":
            samples[split] = take_share(samples[split], data)


def _check_split(source: Source, split: str) -> None:
    """Raises UserError: all of data with splits, or a split test that is not there or has no labels."""
    data = source.data
    if split == "all" and source.splits_of(data):
        fix = "give one of them, or a folder to -predict"
        raise UserError(f"-split all: {data.dataset} comes in splits; {fix}")
    if split == "test" and (os.path.exists(data.data_path) or not properties_of(data.dataset).has_files):
        has_test, note = source.find_test(data)
        if not has_test:
            raise UserError(note or f"-split test: {data.data_path} has no test images; choose another split")


def _number_classes(samples: Samples, data: Data, class_names: Sequence[str], needs_all: bool) -> list[str]:
    """Gives the samples the labels of a checkpoint's classes, else of DATA.CLASSES; see `number_by`."""
    if class_names:
        return number_by(class_names, samples, data, needs_all)
    if not data.classes:
        return []
    listed = sort_names(samples.class_names, data.classes)
    if not samples.has_class_names and data.classes not in (NATURAL, BYTES):  # labels are places in the list
        samples.class_names = [*listed, *samples.class_names[len(listed) :]]
        samples.has_class_names = True
    return number_by(listed, samples, data, False, f"DATA.CLASSES {data.classes}")


def _group(samples: dict[str, Samples], data: Data) -> None:
    """Gives the images of data with splits their groups.

    Images of train and val must have groups; groups of other splits count in the interval of an evaluation.
    """
    for split, of_split in samples.items():
        try:
            if isinstance(of_split, ImageFiles) and of_split.groups is None:
                with_groups(of_split, data)
            elif of_split.groups:
                check_groups(of_split.groups, data, of_split.name)
        except UserError as error:  # DATA.GROUPS may be of the training
            if "train" in samples and split != "test":
                raise
            of_split.notes.append(Note("screen", f"no figures of groups: {error}"))


def _warn_of_shared_groups(samples: Mapping[str, Samples]) -> None:
    """Notes the groups of training, validation and test images that are in two of these."""
    groups = {split: set(map(to_nfc, of_split.groups or ())) - {""} for split, of_split in samples.items()}
    for one, other in combinations(groups, 2):
        shared = sorted(groups[one] & groups[other])
        if shared:
            text = f"{len(shared)} group(s) are in both {one} and {other}, such as {shorten(shared[0])}"
            text = f"the figures of {other} are not independent: {text}; leave their images out of one of them"
            samples["train"].notes.append(Note("warning", text, misleads=True))


def unlabelled(path: str, data: Data, trained_root: str | None = None) -> Samples:
    """The images of `path`, each with the label 0; whether they can be read is found when they are read.

    A folder: its images at any depth, in the order of their paths. A list `.txt`: one path per line, after which a
    label is ignored. A table: the column of paths (DATA.COLUMNS). Their paths are absolute, or relative to
    DATA.IMAGE_ROOT; without it, or if it is `trained_root`, the training's, relative to the first of these folders that
    has one of the first images: the folder of the list, the folder in it with the list's name, `trained_root`. An image
    that is listed twice is read twice. Parquet: its images. Any other file is an image.
    Raises UserError: `path` does not exist or cannot be read, or contains no images; in one error, all mistakes of a
    list.
    """
    file = Path(path)
    if recognize_table(data.model_copy(update={"data_path": path})) == "parquet":
        require(path, "pyarrow")
        return Parquet(data.model_copy(update={"data_path": path, "columns": None})).read_unlabelled()
    if os.path.isdir(path):
        return read_images(file)
    if not os.path.exists(path):
        raise Unavailable(f"{path}: no such file or folder; give an image, a folder of images or a list")
    if file.suffix.lower() not in (".txt", *TABLE_SUFFIXES):
        return ImageFiles(file.parent, ["0"], listing_arrays(StringPacker([file.name])), has_class_names=False)
    return read_unlabelled_list(file, data, trained_root)
