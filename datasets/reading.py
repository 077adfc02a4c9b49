"""Reads the samples of a data set with all checks, and the images of a prediction: one image, a folder, or a list."""

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from configs.schema import Data
from configs.schema.data import properties_of
from datasets.decoding.decode import Decoding
from datasets.recognition import find_changes, recognize_table
from datasets.sources.checks import check_same_data, find_invalid_labels, find_problems, notes_on_unknown
from datasets.sources.class_names import number_of_classes
from datasets.sources.folders.class_folders import read_images
from datasets.sources.formats import refuse_format
from datasets.sources.groups import group, warn_of_shared_groups
from datasets.sources.listed.parquet import Parquet
from datasets.sources.listing import forget_listings, name_like
from datasets.sources.numbering import check_names, name_numbers, number_classes, rename, take_classes
from datasets.sources.rows import Rows, cut, read_rows
from datasets.sources.samples import ImageFiles, Samples, listing_arrays
from datasets.sources.share import take_share
from datasets.sources.shared_arrays import StringPacker, to_nfc
from datasets.sources.source import Source, Wanted, source_class
from datasets.sources.tables.files import TABLE_SUFFIXES
from datasets.sources.tables.rows import read_unlabelled_list
from utils.distributed import ProcessContext, broadcast_object, call_on_main, work_while_others_wait
from utils.errors import Unavailable, UserError, raise_problems
from utils.notes import Note
from utils.system import require


def read_data(wanted: Wanted, context: ProcessContext) -> Rows:
    """Reads the samples of each split, with every check that does not open an image.

    Without splits, an evaluation's is chosen, see `Source.split_to_evaluate`. Samples with class names get the labels
    of the classes of a checkpoint, if given, else of DATA.CLASSES; a training must have exactly the classes of a
    checkpoint. Samples that are only predicted may have missing files and no label.

    Every rank must call it, and raises the main process's error. One rank of each host reads, and looks for some files;
    all ranks compare what they have.
    Raises UserError: an unknown data set; or, in one error, all problems of all splits: missing or malformed lists and
    folders, a host without the files, labels that are not below the number of classes, classes that the checkpoint does
    not contain, fewer training samples than one batch on every rank.
    """
    downloads = wanted.data.download and context.is_main
    data = wanted.data.changed(download=downloads)
    names = [*map(to_nfc, wanted.class_names)]
    wanted = replace(wanted, data=data, class_names=names, of_weights=[*map(to_nfc, wanted.of_weights)])

    def read() -> Rows:
        return _read(wanted, lambda rows, of_splits: check_rows(rows, of_splits, context))

    return _on_all_ranks(read, context)


def read_alone(data: Data) -> Rows:
    """What a new training on one process reads with these options; its files are not looked for. Raises UserError."""
    found = data.changed(**find_changes(data))
    wanted = Wanted(found, ("train", "val"), is_new=True, with_test=True, is_dry=True, suggests=False)
    return _read(wanted, lambda rows, _: rows)


def _read(wanted: Wanted, check: Callable[[Rows, Wanted], Rows]) -> Rows:
    data = wanted.data
    source = source_class(data.dataset)(wanted)
    splits, notes = _choose_splits(source)
    of_splits = replace(wanted, splits=splits)
    rows = check(apply_stages(source, of_splits), of_splits)
    # Two splits of one list have the same messages.
    place = data.data_path if properties_of(data.dataset).has_files else data.dataset
    raise_problems(place, [*{str(one): one for one in rows.findings}.values()])
    return rows.noted(*notes)


def _choose_splits(source: Source) -> tuple[tuple[str, ...], list[Note]]:
    """The splits to read, and notes on test images without labels, or on a part of train in place of a val split."""
    splits = source.wanted.splits
    if source.wanted.with_test:
        has_test, problem = source.find_test()
        notes = [Note("screen", problem)] if problem else []
        return ((*splits, "test") if has_test else splits), notes
    if splits:
        return splits, []
    split = source.split_to_evaluate()
    if split in source.splits:
        return (split,), []
    text = f"{source.data.data_path}: no val or test has labels: of train, only images that a training holds out"
    return (split,), [Note("screen", text)]


def read_unlabelled(path: str, data: Data, context: ProcessContext, trained_root: str | None = None) -> Rows:
    """Reads the images of `path` as the split 'all', see `unlabelled`. Every rank must call it.

    Raises UserError: no such path, or no images; the main process's error, on every rank.
    """

    def read() -> Rows:
        samples = unlabelled(path, data, trained_root)
        decoding = Decoding(data.grey_range, data.max_pixels)
        rows = Rows({"all": samples.changed(decoding=decoding)}, notes=(*samples.notes,))
        return group(rows, Wanted(data))

    return _on_all_ranks(read, context)


_shared = list[Rows]()  # until this process exits: workers of other ranks open the files of the arrays, too


def _on_all_ranks(read: Callable[[], Rows], context: ProcessContext) -> Rows:
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
    check_same_data(found.splits, context)
    return found


def _read_per_host(read: Callable[[], Rows], context: ProcessContext) -> Rows:
    """The main process reads, then the first rank of each other host, whose data may differ. The others of a host map
    its arrays; a rank that does not see them, as in a container of its own, reads, too.
    """
    hosts = context.hosts
    readers = [rank for rank, host in enumerate(hosts) if host not in hosts[:rank]]

    def read_and_share() -> Rows:
        _shared.append(read())
        return _shared[-1]

    def read_if_due() -> Rows | UserError | None:
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


def apply_stages(source: Source, wanted: Wanted) -> Rows:
    """The table of the wanted splits after each stage, in an order that keeps the held-out images of earlier runs.

    The cut is made on the labels that the data have. An error ends the stages.
    """
    rows = read_rows(source, wanted)
    stages = (
        group,
        cut,
        check_names,
        name_numbers,
        rename,
        take_classes,
        take_share,
        number_classes,
        warn_of_shared_groups,
    )
    try:
        for stage in stages:
            if rows.findings:
                return rows
            rows = stage(rows, wanted)
    except UserError as error:
        return rows.found(error)
    return rows


def check_rows(rows: Rows, wanted: Wanted, context: ProcessContext) -> Rows:
    """The table with the decoding of its images and a column for each class; findings of labels, files and numbers."""
    data = wanted.data
    num_classes = wanted.num_classes
    if num_classes is None:
        num_classes = number_of_classes(data.dataset, [*rows.splits.values()])
    decoding = Decoding(data.grey_range, data.max_pixels)
    changes_labels = wanted.class_names or data.classes or data.rename or data.only_classes
    findings = [*rows.findings]
    notes = list[Note]()
    splits = {}
    for split, samples in rows.splits.items():
        fitting = samples.with_columns(num_classes) if data.multi_label else samples
        splits[split] = fitting.changed(decoding=decoding)
        if data.multi_label:
            notes += notes_on_unknown(fitting, split, "log" if notes else "screen")
        if not (rows.findings and changes_labels):
            findings += find_invalid_labels(fitting, split, num_classes)
        if not wanted.predicts:
            findings += find_problems(splits[split], split, data, context, trains=wanted.trains)
    return replace(rows, splits=splits, findings=tuple(findings)).noted(*notes)


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
    if not os.path.exists(path):
        raise _missing(path)
    if recognize_table(data.changed(data_path=path)) == "parquet":
        require(path, "pyarrow")
        return Parquet(Wanted(data.changed(data_path=path, columns=None))).read_unlabelled()
    if os.path.isdir(path):
        return read_images(file)
    refuse_format(path)
    if file.suffix.lower() not in TABLE_SUFFIXES:
        return ImageFiles(file.parent, ["0"], listing_arrays(StringPacker([file.name])), has_class_names=False)
    return read_unlabelled_list(file, data, trained_root)


def _missing(path: str) -> UserError:
    scheme, is_url, place = path.partition("://")
    if is_url and scheme.lower() == "file":
        return UserError(f"{path}: is a URL; give its path, {place}")
    if is_url:
        return UserError(f"{path}: is a URL; download it, and give the file, or the folder of the images")
    if set("*?") & set(path):
        return UserError(f"{path}: is a pattern; give the folder, or a .txt file with a path in each line")
    hint = name_like(Path(path))
    return Unavailable(f"{path}: no such file or folder{hint}; give an image, a folder of images or a list")
