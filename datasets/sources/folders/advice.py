"""Advice about folders that cannot be read as classes, or perhaps otherwise: flags that work when they are typed.

Tables and lists beside the folders may give the images other labels. Columns of tables: see `tables.columns`.
"""

import json
import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path
from shlex import quote
from typing import NamedTuple

from configs.schema import Data
from configs.yaml_io import shorten
from datasets.decoding.images import is_image_name
from datasets.sources.class_names import list_names
from datasets.sources.folders.class_folders import FoundFiles, Levels
from datasets.sources.folders.labels import by_split, is_mask, without_masks
from datasets.sources.groups import FEWEST, IDENTIFIER, case_folders
from datasets.sources.listed.lists import known_labels, one_per_image, refuse_several_labels, table_file
from datasets.sources.listing import list_directory
from datasets.sources.path_words import SPLIT_NAMES, SPLIT_WORDS, label_in, of_level, word_in
from datasets.sources.samples import ImageFiles
from datasets.sources.shared_arrays import PackedStrings, to_nfc
from datasets.sources.tables.cells import Columns, columns_option
from datasets.sources.tables.columns import PLACEHOLDER, UnclearSplit, find_layout, likely_columns
from datasets.sources.tables.files import IS_WORKBOOK, TABLE_SUFFIXES, WORKBOOK, open_table
from datasets.sources.tables.joins import TWO_TABLES, open_for
from datasets.sources.tables.rows import TableRows, table_rows
from utils.errors import UserError
from utils.files import open_regular_file
from utils.notes import Note

_BESIDE = r"(?i)\.(csv|tsv|jsonl?|ndjson|txt|xlsx|xls|ods)$"
_FROM_JSON = "docs/data.md#labels-in-json makes a table"
_ANY = "latin-1"  # reads any file: the labels are compared, not used
_PART_BYTES = 16384  # four parts of a table: whether it names the images
# Text before the last number of a name, cat.0.jpg, great_pyrenees_12.jpg, cat (3).jpg; the first field, lamp.x1y.jpg
_IN_NAMES = (
    *(rf"(.+){number}\.\w+$" for number in (r"_\d+", r"\.\d+", r"-\d+", r" \(?\d+\)?")),
    r"([^/\d]*[^\W\d_])\d+\.\w+$",
    *(rf"([^/{mark}]+){mark}[^/]+\.\w+$" for mark in (r"\.", "_", "-")),
)
_LABEL_NAME = re.compile("(?i)label|class|species|breed|categor|target|diagnos|scientific")
_LABELS = re.compile(r" *[|;] *|(?<=\d)[, ]+(?=\d)")  # between several of an image
_MAX_SHOWN = 3  # folders
_MAX_NAMES = 4  # classes, and numbers in names of files


def files_beside(root: Path) -> list[Path]:
    """The tables, lists, workbooks and .json files in `root`, in the folders in it, and near it."""
    found = []
    for name in ("", "..", "../meta", "../labels", "../val", *FoundFiles(root).top()[0]):
        folder = Path(os.path.normpath(root / name))
        with suppress(OSError):
            files = [folder / file for file in list_directory(folder)[1] if re.search(_BESIDE, file)]
            found += files if len(files) <= 20 else []  # more are of single images
    return found


def _text_of(file: Path) -> str:
    """The first lines of a file, and three parts of a large one: the images may be the last ones of a table."""
    text = b""
    with suppress(OSError), open_regular_file(file) as opened:
        text = opened.read(_PART_BYTES)
        size = opened.seek(0, os.SEEK_END)
        for part in (1, 2, 3) if size > _PART_BYTES else ():
            opened.seek(part * (size - _PART_BYTES) // 3)
            text += opened.read(_PART_BYTES)
    return text.replace(b"\0", b"").decode("utf-8-sig", "replace")


def names_images(file: Path, class_names: Collection[str] = ()) -> bool:
    """Whether the first lines name images or classes: `requirements-dev.txt` beside the data is no list."""
    words = {*re.split(r"[\s,;|\"'/\\]+", to_nfc(_text_of(file)[:4096]))}
    return not words.isdisjoint(class_names) or any(map(is_image_name, words))


Images = dict[str, str]  # of images by their paths: the label, the split, or the path in a folder


class TableBeside(NamedTuple):
    """A table or list with labels of most of the images in a folder.

    labels: of the images, by their paths, by each column that may be the label. advice: for each, the flags that train
    on it, and its classes. held_out: the images in rows of val or test, with the split; of unclear splits, all images.
    """

    file: Path
    labels: list[dict[str, str]]
    advice: list[str]
    held_out: dict[str, str]

    def add(
        self, columns: Columns, is_named: bool, place: Path, folder: Path, known: Images, seen: list[Images]
    ) -> None:
        """Adds the labels by DATA.COLUMNS if most images have one.

        A column of labels without such a name is no function of the folders. Of columns with the same classes, one
        without such a name, of numbers, or of another table does not count. place: to give as DATA_PATH. known: the
        images in a folder, by their absolute paths. seen: labels of other tables.
        """
        labels, held_out, options = _labels_in(self.file, columns, folder, known)
        of_folders = {(os.path.dirname(path), label) for path, label in labels.items()}
        follows_folders = len(of_folders) == len(dict(of_folders)) and not is_named
        has_names = is_named and not all(map(str.isdigit, labels.values()))
        others = seen if has_names else [*seen, *self.labels]
        texts = [*labels.values()]
        if "DATA.MULTI_LABEL" in options:
            texts = [label for text in texts for label in _LABELS.split(text)]
        counts = Counter(filter(None, texts))
        row = next((cells for _, cells in open_table(self.file, _ANY)), {})
        images = sum(map(is_image_name, row.values())) or 1  # before and after, channels
        if len(counts) < 2 or 2 * images * len(labels) < len(known) or follows_folders:
            return
        if any(have_same_classes(labels, one) for one in others):
            return
        classes = list_names([f"{name} ({counts[name]})" for name in sorted(counts)], _MAX_NAMES)
        words = f"-dataset=csv -data_path={quote(str(place))} -opts {options}"
        fill_in = f", with the value of test in place of {PLACEHOLDER}" if PLACEHOLDER in options else ""
        self.advice.append(f"{words} trains on its {len(counts)} classes, {classes}{fill_in}")
        self.labels.append(labels)
        self.held_out.update(held_out)

    def or_folders(self, listing: ImageFiles, confirmed: Path) -> UserError:
        """The error that asks if the labels are here or the folders. confirmed: DATA_PATH with DATA.CLASS_FOLDERS."""
        question = "are the folders the classes, or are the labels in tables"
        if self.labels:
            path, label = next(iter((self.held_out or self.labels[0]).items()))
            question = f"are the folders the classes, all for training, or is {shorten(path)} {shorten(label)}"
        folders = f"-data_path={quote(str(confirmed))} -opts DATA.CLASS_FOLDERS=true trains on the folders"
        names = list_names(listing.class_names, _MAX_SHOWN)
        return UserError(
            f"{listing.root}: {question}, as in {self.file}? {'; or '.join(self.advice)}; {folders}, {names}"
        )


def tables_beside(
    root: Path, folder: Path, paths: Sequence[str] | PackedStrings, any_labels: bool = False
) -> Iterator[TableBeside]:
    """The tables in or beside `root` with labels of most of the images `paths`, which are relative to `folder`; without
    labels, if a table beside one may have them, see `_advise_join`.
    """
    of_splits = re.compile(r"\.json$|(split|partition).*\.txt$")  # CelebA's numbers of splits are no labels
    files = [file for file in files_beside(root) if not of_splits.search(file.name)]
    stems = set(map(_stem, paths)) if files else set()
    seen = list[Images]()
    known = Images()
    for file in files:
        if not _may_name(file, stems):
            continue
        place = next((one for one in (root, file.parent) if table_file(one, "train") == file), file)
        with suppress(UserError, ValueError):  # a column without a name cannot be given
            table = TableBeside(file, [], [], {})
            candidates, is_named = likely_columns(open_table(file, _ANY), stems)
            for columns in candidates:
                if "label" in columns:
                    known = known or {os.path.abspath(os.path.join(folder, path)): path for path in paths}
                    table.add(columns, is_named, place, folder, known, seen)
            seen += table.labels
            if candidates and not table.labels:
                table.advice.extend(_advise_join(file, any_labels))
            if table.advice:
                yield table


def _advise_join(file: Path, any_labels: bool) -> list[str]:
    """The way on if a table beside the one that names the images shares a column with it, and has others.

    any_labels: also without a column whose name says that it has labels.
    """
    header = open_table(file, _ANY).header
    for other in FoundFiles(file.parent).top()[1]:
        if not other.lower().endswith(TABLE_SUFFIXES) or other == file.name:
            continue
        first_line = _text_of(file.parent / other).partition("\n")[0]  # it may be large
        names = [name.strip(' "\r') for name in re.split(r"[,;\t|]", first_line)]
        shared = [name for name in names if name in header]
        added = [name for name in names if name not in shared]
        if shared and (any(map(_LABEL_NAME.search, added)) or (added and any_labels)):
            return [f"{TWO_TABLES} of {file} and {other}, which share the column {shorten(shared[0])}"]
    return []


def _may_name(file: Path, stems: set[str]) -> bool:
    """Whether a fiftieth of the lines in a part of a table name images: others are not read."""
    text = _text_of(file).replace("\\", "/")
    cells = chain(re.split(r"[,;|\"\t\n]", text), text.split())
    return 50 * len(stems.intersection(map(_stem, cells))) > text.count("\n")


def _stem(path: str) -> str:
    return os.path.splitext(path.strip().rpartition("/")[2])[0]


def have_same_classes(labels: Mapping[str, str], others: Mapping[str, str]) -> bool:
    """Whether the labels of images are the same classes as the others, perhaps by other names."""
    pairs = {(label, others.get(path)) for path, label in labels.items()}
    return len(pairs) == len({label for label, _ in pairs}) == len({other for _, other in pairs})


def _data_of(file: Path, columns: Columns, image_root: Path | None = None) -> Data:
    needs_several = "cells" in columns and isinstance(columns["label"], list)
    given = {"DATA_PATH": str(file), "DATASET": "csv", "COLUMNS": columns, "ENCODING": _ANY}
    return Data.model_validate({**given, "MULTI_LABEL": needs_several, "IMAGE_ROOT": image_root and str(image_root)})


def _labels_in(
    file: Path, columns: Columns, folder: Path, known: Images, image_root: Path | None = None
) -> tuple[Images, Images, str]:
    """Of the `known` images in a folder: the label of each that has one in a table, and the split if it is val or test;
    and the options that read the table, with DATA.IMAGE_ROOT only where its images are not found without.
    """
    data = _data_of(file, columns, image_root)
    table = open_for(file, data)
    try:
        layout = find_layout(table, data)
    except UnclearSplit as error:
        if "split" in columns:
            raise
        return _labels_of_unclear(error, file, columns, folder, known)
    labels = {}
    held_out = {}
    lacks = has_several = False
    for split in dict.fromkeys(layout.split_of.values()) or [None]:
        rows = table_rows(table, data, split)
        texts = [" | ".join(known_labels(target)) for target in rows.target_ids]
        lacks = lacks or "" in texts
        for path, target_id in zip(rows.files, rows.row_target_ids, strict=True):
            image = known.get(os.path.abspath(os.path.join(rows.root, path)))
            if image and (texts[target_id] or layout.is_one_hot):
                labels[image] = texts[target_id]
            if image and split in ("val", "test"):
                held_out[image] = split
        kept = _columns_of_several(rows, data)
        if kept:
            return _labels_in(file, {**columns, "label": kept}, folder, known, image_root)
        has_several |= kept is not None
    if not (labels or image_root):
        return _labels_in(file, columns, folder, known, folder)
    has_several = has_several or (lacks and layout.is_one_hot) or data.multi_label
    return labels, held_out, _options_for(data, lacks, has_several)


def _labels_of_unclear(
    error: UnclearSplit, file: Path, columns: Columns, folder: Path, known: Images
) -> tuple[Images, Images, str]:
    """As `_labels_in`, with the split that the error of the table advises, which may be for a person to fill in."""
    if error.is_known:
        return _labels_in(file, {**columns, "split": error.split}, folder, known)
    labels, _, options = _labels_in(file, {**columns, "split": None}, folder, known)
    options = options.replace('"split": null', f'"split": {json.dumps(error.split, ensure_ascii=False)}')
    return labels, dict.fromkeys(labels, "perhaps test"), options


def _columns_of_several(rows: TableRows, data: Data) -> list[str] | None:
    """None if each image has one label; else the columns of which it has one, if any."""
    try:
        refuse_several_labels(rows, data)
    except UserError:
        return [] if data.multi_label else one_per_image(rows)
    return None


def _options_for(data: Data, lacks: bool, has_several: bool) -> str:
    """The options of a table. lacks: images without a label."""
    changes = {"cells": {"": None}} if lacks and not has_several else {}
    options = columns_option(data, changes, has_several)
    return f"{options} {quote(f'DATA.IMAGE_ROOT={data.image_root}')}" if data.image_root else options


def unclear(given: Path, root: Path, problem: str, is_data_set: Callable[[Path], bool]) -> UserError:
    """The error that names the folders in `root`, and the flags that say how they are read.

    given: DATA_PATH. is_data_set: whether a folder can be read.
    """
    found = FoundFiles(root)
    images = found.images_in(root)
    if not images and found.unread.found:
        return found.lacks_images()
    levels = Levels({folder: number for folder, number in found.sizes.items() if folder})
    names = [name for name, _ in levels.sizes.most_common()]
    trainings = []
    if levels.inside and set.intersection(*levels.inside.values()):  # all contain a folder of one name, as splits do
        trainings = [name for name in levels.sizes if word_in(name) == "train"]
    candidates = _candidates(root, levels, trainings, images)
    data_sets = islice(filter(is_data_set, candidates), max(1, len(trainings)))
    folders = [f"give -data_path={quote(str(path))} if it is the data set" for path in data_sets]
    advice = "; or ".join([*_advise_renaming(names), *_advise_tables(root, images), *folders])
    if all((root / f"{split}_list.txt").is_file() for split in ("train", "val")):
        advice = f"-dataset=imagenet2012 -data_path={quote(str(root))} reads its lists"
    if word_in(root.name) == "train":  # labels of all splits
        advice = advise_labels(given) or advice
    advice = advice or advise_labels(given) or _other_data(root, images)
    if len(names) > 1 and not (trainings or {*map(str.lower, names)} <= SPLIT_WORDS.keys()):
        options = filter(None, ["DATA.CLASS_FOLDERS=true", case_folders(images, 0, FEWEST)])
        advice += f"; if each of these folders is a class, -opts {' '.join(map(quote, options))}"
    shown = list_names(names, _MAX_SHOWN) or "if it is one of the classes, give the folder around it"
    return UserError(f"{root}: {problem}: {shown}; {advice}")


def _advise_renaming(names: Sequence[str]) -> list[str]:
    """Of folders that are called as splits in other words than the ones that are read: their images are not one set."""
    lower = {*map(str.lower, names)}
    if lower <= SPLIT_NAMES.keys() or not lower <= SPLIT_WORDS.keys():
        return []
    return [f"if they are splits, rename them to {', '.join(SPLIT_WORDS[name.lower()] for name in names)}"]


def _candidates(root: Path, levels: Levels, trainings: Sequence[str], images: Sequence[str]) -> Iterator[Path]:
    """The folders that may be the data set, the largest first: not val and test, nor single patients or hospitals."""
    names = trainings or [name for name, _ in levels.sizes.most_common()]
    if len(names) > 1:
        names = [name for name in names if SPLIT_WORDS.get(name.lower(), word_in(name)) in (None, "train")]
    nested = [name for name in names if len(levels.inside[name]) > 1]
    if len(nested) > 1 and not trainings:
        places = {os.path.splitext(path)[0].partition("/")[2] for path in images}
        if 4 * len(places) >= 3 * len(images):  # of other images
            return
        nested = [name for name in nested if not IDENTIFIER.search(name)]
    for name in nested:
        inner = root / name / levels.tops[name]
        yield inner
        if len(names) == 1 and not any(map(word_in, levels.inside[name])):  # variants may be in it
            found = FoundFiles(inner)
            inside = found.images_in(inner)
            yield from _candidates(inner, Levels(found.sizes), (), inside)


def _advise_tables(root: Path, images: Sequence[str]) -> list[str]:
    """The flags that train on each table beside the images, apart from those for tests."""
    used = [path for path in images if word_in(path.partition("/")[0]) not in ("test", "none")]
    advice = []
    for table in tables_beside(root, root, without_masks(used)[0], any_labels=True):
        kind = "has labels" if table.labels else "names the images"
        advice.append(f"{shorten(table.file.name)} {kind}: {'; or '.join(table.advice)}")
    return advice


def notes_on_lists(root: Path, listing: ImageFiles) -> list[Note]:
    """Lines on lists of splits, workbooks and MegaDetector's boxes in or beside the folders, which are not read."""
    found = files_beside(root)
    of_splits = [path for path in found if word_in(path.stem) in SPLIT_NAMES.values()]
    stems = map(_stem, listing.paths) if of_splits else ()
    names = {*listing.class_names, *(stem for stem in stems if len(stem) > 2)}  # a text may have a 1
    lists = [str(path) for path in of_splits if "split" in path.stem or names_images(path, names)]
    notes = []
    if lists:
        shown = ", ".join(lists[:_MAX_SHOWN])
        notes.append(
            Note(
                "warning", f"the folders decide, not read: {shown}; docs/data.md#lists-of-splits makes a table of them"
            )
        )
    for path in found:
        if re.search(WORKBOOK, path.name):
            notes.append(Note("screen", f"{path}: {IS_WORKBOOK}, if it has labels"))
        if path.suffix == ".json" and path.parent == root and '"detections"' in _text_of(path):
            text = f"{path}: boxes of animals, people and vehicles by MegaDetector, which are not the classes here"
            notes.append(Note("screen", f"{text}; {_FROM_JSON} of them, to train on"))
    return notes


def _other_data(root: Path, images: Sequence[str]) -> str:
    """The lists that are not read, and a way to read well-known data."""
    stems = set(map(_stem, images))
    lists = [path for path in files_beside(root) if names_images(path, stems) or re.search(WORKBOOK, path.name)]
    lists = lists or [*islice(root.rglob("*.json"), 1)]  # of a single image
    fix = (
        "move the images of each class into one folder (docs/data.md#labels-of-folders); "
        "-dataset=torchvision/NAME reads public data sets"
    )
    if not lists:
        return fix
    names = ", ".join(map(str, lists[:_MAX_SHOWN]))
    way = f"-dataset=csv -data_path={quote(str(lists[0]))}"
    if lists[0].suffix.lower() not in TABLE_SUFFIXES:
        way = "docs/data.md#labels-in-json makes a table of JSON, or save a workbook as CSV"
    return f"not read: {names}; if the labels are in it, {way}; else {fix}"


def advise_labels(root: Path) -> str | None:
    """The options that read the labels in the paths of the images in `root`, and keep cases together.

    None without evidence: folders that recur in several folders, or files whose names differ in a number or in another
    field only. Each expression is tried on all images of train and val. Of names with more numbers, such as
    A172_Phase_A7_1_00d00h00m_1.tif, two are advised.
    """
    paths, _ = without_masks(FoundFiles(root).images_in(root))
    try:
        level, of_split = by_split(root, paths)
    except UserError:
        return None
    train = of_split["train"]
    val = of_split.get("val", [])
    found = list[str]()
    for expression, of_labels in _expressions(train + val, level):
        labels = Counter(label_in(expression, path) for path in train)
        if _are_classes(labels) and {label_in(expression, path) for path in val} <= labels.keys():
            options = filter(None, [f"DATA.LABELS={expression}", case_folders(train + val, of_labels)])
            classes = f"{len(labels)} classes, {list_names(sorted(labels), _MAX_NAMES)}"
            if found and found[0].endswith(f" reads {classes}"):
                continue
            found.insert(0, f"-opts {' '.join(map(quote, options))} reads {classes}")
            if len(found) == 2 or not all(re.search(r"[\W_]\d", label) for label in labels):
                break
    return f"labels are in the paths, as in {shorten(train[0])}: {'; or '.join(found)}" if found else None


def _are_classes(labels: Counter[str]) -> bool:
    """Whether these are no splits, masks or numbered patients, and most are of several images. labels: of each."""
    masks = set(filter(is_mask, labels))
    others = " ".join(labels.keys() - masks)  # nomask: of faces
    if "" in labels or all(map(word_in, labels)) or not all(mask in others for mask in masks):
        return False
    texts = {re.sub(r"\d", "", label) for label in labels} - {""}
    is_usual = 2 <= len(labels) <= labels.total() / 2
    return len(texts) != 1 and is_usual and labels.most_common(2)[1][1] > 1


def note_on_inner_classes(listing: ImageFiles, given: Path) -> list[Note]:
    """A question if the folders in class folders may be the classes: colon/{aca,n}. given: DATA_PATH."""
    folders = [folder.split("/") for folder in listing.sizes]
    has_lists = any(file.suffix == ".json" and names_images(file) for file in files_beside(given))  # iNaturalist 2018
    level = _inner_level(folders, numbers=has_lists)
    if len(listing.class_names) < 2 or not level:
        return []
    level += len(Path(os.path.relpath(listing.root, given)).parts)
    text = f"{listing.root}: are the classes {list_names(listing.class_names, _MAX_NAMES)}, or the folders in them?"
    return [Note("screen", f"{text} Then -opts {quote(f'DATA.LABELS={of_level(level)}')}")]


def _inner_level(folders: Sequence[Sequence[str]], numbers: bool) -> int | None:
    """The first level of folders below the class folders whose names may be classes; None without one.

    Each folder of that level has several, and none is in two of them. numbers: their names may all be numbers.
    """
    for level in range(1, min(map(len, folders), default=0)):
        parents = defaultdict(set)
        for parts in folders:
            parents[parts[level]].add(parts[0])
        sizes = Counter(chain.from_iterable(parents.values()))
        are_names = numbers or not all(map(IDENTIFIER.search, parents))
        if are_names and sizes.total() == len(parents) and min(sizes.values()) > 1:
            return level
    return None


def _expressions(paths: Sequence[str], split: int) -> Iterator[tuple[str, int]]:
    """Expressions that may find labels in paths, and the level of folders in which each does, -1: in the files' names.

    The innermost level of folders with names that recur, 10253/{0,1}, patient1/study1_{ill,well}; the text before a
    number, cat.0.jpg, great_pyrenees_12.jpg, cat (3).jpg; the first field, lamp.x1y.jpg; each number in
    25_1_2_20170116.jpg. split: the level of folders that are splits, or -1.
    """
    folders = [path.split("/")[:-1] for path in paths]
    for level in reversed(range(min(map(len, folders), default=0))):
        parents = defaultdict(set)
        for parts in folders:
            parents[parts[level]].add("/".join(parts[:level]))
        recurs = len(parents) > 1 and (level < split or max(map(len, parents.values())) > 1)
        if recurs and level != split:
            text = r"[^/]*\d_([^/\d_]+)" if all(re.fullmatch(r".*\d_[^\d_]+", name) for name in parents) else "([^/]+)"
            yield of_level(level, text), level
            break
    for expression in _IN_NAMES:
        if all(re.search(r"[^\W\d_]", label_in(expression, path)) for path in paths):
            yield expression, -1
    are_many = 2 * len({*map(os.path.basename, paths)}) > len(paths)  # tile_0_1.png of each folder is a place
    if are_many and not all(re.search(r"([^/]+)/\1[^/]*$", path) for path in paths):  # x_87_48/x_87_48_B01.tif
        yield from ((rf"(?:^|/)(?:[^/_]+_){{{number}}}(0|[1-9]\d{{0,2}})_", -1) for number in range(4))
