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
from typing import Any, NamedTuple

from configs.schema import Data
from configs.yaml_io import shorten
from datasets.decoding.images import IMAGE_EXTENSIONS
from datasets.sources.class_names import list_names
from datasets.sources.folders.class_folders import FoundFiles, Levels
from datasets.sources.folders.labels import by_split, without_masks
from datasets.sources.groups import IDENTIFIER, case_folders
from datasets.sources.listed.lists import table_file
from datasets.sources.listing import list_directory
from datasets.sources.path_words import SPLIT_NAMES, label_in, of_level, word_in
from datasets.sources.samples import ImageFiles
from datasets.sources.shared_arrays import to_nfc
from datasets.sources.tables.columns import find_layout, likely_columns
from datasets.sources.tables.files import JSON_LINES, TEXT_LIST, open_table
from datasets.sources.tables.joins import open_for
from datasets.sources.tables.rows import table_rows
from utils.errors import UserError
from utils.files import open_regular_file
from utils.notes import Note

_PLACES = ("..", "../meta", "../labels", "../val")
_SUFFIXES = (".csv", ".tsv", JSON_LINES, TEXT_LIST, ".json")
_ANY = "latin-1"  # reads any file: the labels are compared, not used
_PART_BYTES = 16384  # four parts of a table: whether it names the images
_MAX_FILES = 20  # in a folder; more are of single images
# Text before the last number of a name, cat.0.jpg, great_pyrenees_12.jpg, cat (3).jpg; the first field, lamp.x1y.jpg
_IN_NAMES = (
    *(rf"(.+){number}\.\w+$" for number in (r"_\d+", r"\.\d+", r"-\d+", r" \(?\d+\)?")),
    r"([^/\d]*[^\W\d_])\d+\.\w+$",
    *(rf"([^/{mark}]+){mark}[^/]+$" for mark in (r"\.", "_", "-")),
)
_MAX_SHOWN = 3  # folders
_MAX_NAMES = 4  # classes, and numbers in names of files


def files_beside(root: Path) -> list[Path]:
    """The tables, lists and .json files in `root`, in the folders in it, and near it."""
    found = []
    for name in ("", *_PLACES, *FoundFiles(root).top()[0]):
        folder = Path(os.path.normpath(root / name))
        with suppress(OSError):
            files = [folder / file for file in list_directory(folder)[1] if file.lower().endswith(_SUFFIXES)]
            found += files if len(files) <= _MAX_FILES else []
    return found


def names_images(file: Path, class_names: Collection[str] = ()) -> bool:
    """Whether the first lines name images or classes: `requirements-dev.txt` beside the data is no list."""
    with suppress(OSError), open_regular_file(file) as opened:
        text = opened.read(4096).decode("utf-8-sig", "replace")
        words = {*re.split(r"[\s,;|\"'/\\]+", to_nfc(text))}
        return not words.isdisjoint(class_names) or any(word.lower().endswith(IMAGE_EXTENSIONS) for word in words)
    return False


class TableBeside(NamedTuple):
    """A table or list with labels of most of the images in a folder.

    labels: of the images, by their paths, by each column that may be the label. advice: for each, the flags that train
    on it, and its classes. held_out: the images in rows of val or test, with the split.
    """

    file: Path
    labels: list[dict[str, str]]
    advice: str
    held_out: dict[str, str]

    def or_folders(self, listing: ImageFiles, confirmed: Path) -> UserError:
        """The error that asks if the labels are here or the folders. confirmed: DATA_PATH with DATA.CLASS_FOLDERS."""
        path, label = next(iter(self.labels[0].items()))
        question = f"are the folders the classes, or is {shorten(path)} {shorten(label)}, as in {self.file}"
        if self.held_out:
            path, split = next(iter(self.held_out.items()))
            question = f"are all folders for training, or is {shorten(path)} of {split}, as in {self.file}"
        folders = f"-data_path={quote(str(confirmed))} -opts DATA.CLASS_FOLDERS=true trains on the folders"
        names = list_names(listing.class_names, _MAX_SHOWN)
        return UserError(f"{listing.root}: {question}? {self.advice}; {folders}, {names}")


def tables_beside(root: Path, folder: Path, paths: Sequence[str]) -> Iterator[TableBeside]:
    """The tables in or beside `root` with labels of most of the images `paths`, which are relative to `folder`."""
    stems = {*map(_stem, paths)}
    for file in [file for file in files_beside(root) if file.suffix != ".json" and _may_name(file, stems)]:
        with suppress(UserError, ValueError):  # a column without a name cannot be given
            for columns, is_named in _candidates_of(file, stems):
                if found := _read_beside(root, file, columns, is_named, folder, paths):
                    yield found
                    break


def _candidates_of(file: Path, stems: set[str]) -> Iterator[tuple[list[dict[str, Any]], bool]]:
    """The columns that may be the label in a table of images, else in each table beside it with a column of it."""
    table = open_table(file, _ANY)
    columns, is_named = likely_columns(table, stems)
    yield columns, is_named
    if not columns:
        return
    for other in FoundFiles(file.parent).top()[1]:
        shared = [name for name in _first_fields(file.parent / other) if name in table.header]
        if other == file.name or not (shared and other.lower().endswith(_SUFFIXES)):
            continue
        on = max(shared, key=lambda name: len({*table.column(name)}))
        join = {"file": other, "on": on}
        with suppress(UserError):
            joined = open_for(file, _data_of(file, {"join": join}))
            columns, is_named = likely_columns(joined, stems)
            added = [one for one in columns if one["label"] not in table.header]
            yield [{**one, "join": join} for one in added], is_named


def _first_fields(file: Path) -> list[str]:
    """The fields of the first line of a file, as names of columns."""
    with suppress(OSError), open_regular_file(file) as opened:
        first = opened.read(4096).decode("utf-8-sig", "replace").partition("\n")[0]
        return [field.strip(' "\r') for field in re.split(r"[,;|\t]", first)]
    return []


def _may_name(file: Path, stems: set[str]) -> bool:
    """Whether a table is small, or a fiftieth of the lines in a part of it name images: others are not read."""
    with suppress(OSError), open_regular_file(file) as opened:
        size = opened.seek(0, os.SEEK_END)
        if size <= 4 * _PART_BYTES:
            return True
        text = ""
        for part in range(4):  # the images may be the last ones of the table
            opened.seek(part * (size - _PART_BYTES) // 3)
            text += opened.read(_PART_BYTES).replace(b"\0", b"").decode("utf-8-sig", "replace") + "\n"
        cells = chain(re.split(r"[,;|\"\t\n]", text.replace("\\", "/")), text.split())
        return 50 * len(stems.intersection(map(_stem, cells))) >= text.count("\n")
    return False


def _read_beside(
    root: Path, file: Path, candidates: list[dict[str, Any]], is_named: bool, folder: Path, paths: Sequence[str]
) -> TableBeside | None:
    """The labels by each of the candidates for DATA.COLUMNS; None without labels of most images.

    A column of labels without such a name is no function of the folders. Of columns with the same classes, one counts.
    """
    if not candidates:
        return None
    path_of = _images_in(file, candidates[0]["path"], folder, paths)
    if 2 * len({*path_of.values()}) < len(paths):
        return None
    found = list[tuple[dict[str, Any], dict[str, str]]]()
    for columns in candidates:
        labels = _labels_in(file, columns, path_of)
        of_folders = {(os.path.dirname(path), label) for path, label in labels.items()}
        follows_folders = len(of_folders) == len(dict(of_folders))
        adds_nothing = any(have_same_classes(labels, others) for _, others in found)
        if follows_folders and not is_named:
            adds_nothing = True
        if len({*labels.values()}) > 1 and 2 * len(labels) >= len(paths) and not adds_nothing:
            found.append((columns, labels))
    if not found:
        return None
    place = next((one for one in (root, file.parent) if table_file(one, "train") == file), file)
    advice = list[str]()
    for columns, labels in found:
        words = f"-dataset=csv -data_path={quote(str(place))}"
        if not open_table(file, _ANY).layout:
            words += f" -opts {quote(f'DATA.COLUMNS={json.dumps(columns, ensure_ascii=False)}')}"
        counts = Counter(labels.values())
        classes = [f"{name} ({counts[name]})" for name in sorted(counts)]
        advice.append(f"{words} trains on its {len(counts)} classes, {list_names(classes, _MAX_NAMES)}")
    held_out = _splits_in(file, found[0][0], path_of)
    return TableBeside(file, [labels for _, labels in found], "; or ".join(advice), held_out)


def _stem(path: str) -> str:
    return os.path.splitext(path.strip().rpartition("/")[2])[0]


def have_same_classes(labels: Mapping[str, str], others: Mapping[str, str]) -> bool:
    """Whether the labels of images are the same classes as the others, perhaps by other names."""
    pairs = {(label, others.get(path)) for path, label in labels.items()}
    return len(pairs) == len({label for label, _ in pairs}) == len({other for _, other in pairs})


def _data_of(file: Path, columns: Mapping[str, Any]) -> Data:
    given = {"DATA_PATH": str(file), "DATASET": "csv", "COLUMNS": columns, "ENCODING": _ANY}
    return Data.model_validate(given)


def _images_in(file: Path, column: str, folder: Path, paths: Sequence[str]) -> dict[int, str]:
    """Of the images `paths` in a folder, the one in each line of a table. Raises UserError: it cannot be read."""
    rows = table_rows(open_table(file, _ANY), _data_of(file, {"path": column}), others=[folder])
    known = {os.path.abspath(os.path.join(folder, path)): path for path in paths}
    images = (os.path.abspath(os.path.join(rows.root, path)) for path in rows.paths.strings())
    return {line: known[image] for line, image in zip(rows.lines, images, strict=True) if image in known}


def _labels_in(file: Path, columns: Mapping[str, Any], path_of: Mapping[int, str]) -> dict[str, str]:
    """The label of each image that has one. path_of: the image of each line."""
    data = _data_of(file, {**columns, "split": None})
    table = open_for(file, data)
    layout = find_layout(table, data)
    texts = ((line, " | ".join(layout.labels_in(cells))) for line, cells in table if line in path_of)
    return {path_of[line]: text for line, text in texts if text}


def _splits_in(file: Path, columns: Mapping[str, Any], path_of: Mapping[int, str]) -> dict[str, str]:
    """The val or test split of the images that a column of splits has, if it is clear which one."""
    data = _data_of(file, columns)
    table = open_for(file, data)
    with suppress(UserError):
        layout = find_layout(table, data)
        if layout.split_of:
            splits = ((path_of.get(line, ""), layout.split_in(cells)) for line, cells in table)
            return {path: split for path, split in splits if path and split != "train"}
    return {}


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
    trainings = _trainings(levels)
    candidates = _candidates(root, levels, trainings, images)
    data_sets = islice(filter(is_data_set, candidates), len(trainings) or 1)
    paths = [f"-data_path={quote(str(path))}" for path in data_sets]
    if all((root / f"{split}_list.txt").is_file() for split in ("train", "val")):
        advice = f"-dataset=imagenet2012 -data_path={quote(str(root))} reads its lists"
    elif paths:
        advice = f"if it is the data set, give {' or '.join(paths[:_MAX_SHOWN])}"
    else:
        advice = _advise_tables(root, images) or advise_labels(given) or _other_data(root)
    if len(names) > 1 and not (trainings or {*map(str.lower, names)} <= SPLIT_NAMES.keys()):
        advice += "; if each folder is a class, -opts DATA.CLASS_FOLDERS=true"
    return UserError(f"{root}: {problem}: {list_names(names, _MAX_SHOWN) or 'no images in folders'}; {advice}")


def _trainings(levels: Levels) -> list[str]:
    """The folders with the word train if all folders contain a folder of the same name, as splits do."""
    if not levels.inside or not set.intersection(*levels.inside.values()):
        return []
    return [name for name in levels.sizes if word_in(name) == "train"]


def _candidates(root: Path, levels: Levels, trainings: Sequence[str], images: Sequence[str]) -> Iterator[Path]:
    """The folders that may be the data set, the largest first: not val and test, nor single patients or hospitals."""
    names = trainings or [name for name, _ in levels.sizes.most_common()]
    if len(names) > 1:
        names = [name for name in names if word_in(name) in (None, "train")]
    nested = [name for name in names if len(levels.inside[name]) > 1]
    if len(nested) > 1 and not trainings:
        places = {os.path.splitext(path)[0].partition("/")[2] for path in images}
        are_variants = 4 * len(places) < 3 * len(images)  # of the same images
        nested = [name for name in nested if are_variants and not IDENTIFIER.search(name)]
    return (root / name / levels.tops[name] for name in nested)


def _advise_tables(root: Path, images: Sequence[str]) -> str:
    """The flags that train on a table beside the images, apart from those for tests; '' without one."""
    used = [path for path in images if word_in(path.partition("/")[0]) not in ("test", "none")]
    return next((f"{shorten(one.file.name)} has labels: {one.advice}" for one in tables_beside(root, root, used)), "")


def notes_on_lists(root: Path, class_names: Collection[str]) -> list[Note]:
    """A warning of lists of splits in or beside the folders, which are not read."""
    of_splits = [path for path in files_beside(root) if word_in(path.stem) in SPLIT_NAMES.values()]
    lists = [str(path) for path in of_splits if names_images(path, class_names)]
    if not lists:
        return []
    return [Note("warning", f"the folders decide, not read: {', '.join(lists[:_MAX_SHOWN])}")]


def _other_data(root: Path) -> str:
    """The lists that are not read, and a way to read well-known data."""
    lists = [str(path) for path in files_beside(root) if names_images(path)]
    fix = "put the images of each class into a folder; -dataset=torchvision/NAME reads public data sets"
    if not lists:
        return fix
    names = ", ".join(lists[:_MAX_SHOWN])
    return f"not read: {names}; if the labels are in it, -dataset=csv -data_path={quote(lists[0])}; else {fix}"


def advise_labels(root: Path) -> str | None:
    """The options that read the labels in the paths of the images in `root`, and keep cases together.

    None without evidence: folders that recur in several folders, or files whose names differ in a number or in another
    field only. Each expression is tried on all images of train and val.
    """
    paths, _ = without_masks(FoundFiles(root).images_in(root))
    try:
        level, of_split = by_split(root, paths)
    except UserError:
        return None
    train = of_split["train"]
    val = of_split.get("val", [])
    for expression, of_labels in _expressions(train + val, level):
        labels = Counter(label_in(expression, path) for path in train)
        if _are_classes(labels) and {label_in(expression, path) for path in val} <= labels.keys():
            options = filter(None, [f"DATA.LABELS={expression}", case_folders(train + val, of_labels)])
            classes = f"{len(labels)} classes, {list_names(sorted(labels), _MAX_NAMES)}"
            words = f"labels are in the paths, as in {shorten(train[0])}"
            return f"{words}: -opts {' '.join(map(quote, options))} reads {classes}"
    return None


def _are_classes(labels: Counter[str]) -> bool:
    """Whether these are no splits, no numbered patients, and most are of several images. labels: of all images."""
    if "" in labels or all(map(word_in, labels)):
        return False
    texts = {re.sub(r"\d", "", label) for label in labels} - {""}
    is_usual = 2 <= len(labels) <= labels.total() / 2
    return len(texts) != 1 and is_usual and labels.most_common(2)[1][1] > 1


def note_on_inner_classes(listing: ImageFiles, given: Path) -> list[Note]:
    """A question if the folders in class folders may be the classes: colon/{aca,n}. given: DATA_PATH."""
    folders = [folder.split("/") for folder in listing.sizes]
    has_lists = any(file.suffix == ".json" and names_images(file) for file in files_beside(given))  # iNaturalist 2018
    level = _inner_level(folders, 0, numbers=has_lists)
    if len(listing.class_names) < 2 or not level:
        return []
    level += len(Path(os.path.relpath(listing.root, given)).parts)
    text = f"{listing.root}: are the classes {list_names(listing.class_names, _MAX_NAMES)}, or the folders in them?"
    return [Note("screen", f"{text} Then -opts {quote(f'DATA.LABELS={of_level(level)}')}")]


def _inner_level(folders: Sequence[Sequence[str]], first: int, numbers: bool) -> int | None:
    """The first level of folders below the level `first` whose names may be classes; None without one.

    Each folder of that level has several, and none is in two of them. numbers: their names may all be numbers.
    """
    for level in range(first + 1, min(map(len, folders), default=0)):
        parents = defaultdict[str, set[str]](set)
        for parts in folders:
            parents[parts[level]].add(parts[first])
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
        parents = defaultdict[str, set[str]](set)
        for parts in folders:
            parents[parts[level]].add("/".join(one for number, one in enumerate(parts[:level]) if number != split))
        recurs = len(parents) > 1 and (level < split or max(map(len, parents.values())) > 1)
        if recurs and level != split:
            text = r"[^/]*\d_([^/\d_]+)" if all(re.fullmatch(r".*\d_[^\d_]+", name) for name in parents) else "([^/]+)"
            yield of_level(level, text), level
            break
    for expression in _IN_NAMES:
        if all(re.search(r"[^\W\d_]", label_in(expression, path)) for path in paths):
            yield expression, -1
    yield from ((rf"(?:^|/)(?:[^/_]+_){{{number}}}(\d{{1,3}})_", -1) for number in range(4))
