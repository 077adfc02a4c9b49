"""Advice about folders that cannot be read as classes, or perhaps otherwise: flags that work when they are typed.

Tables and lists beside the folders may give the images other labels. Columns of tables: see `tables.columns`.
"""

import os
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

from configs.schema import Data
from configs.yaml_io import shorten
from datasets.decoding.images import is_image_name
from datasets.sources.class_names import list_names
from datasets.sources.folders.class_folders import FoundFiles, Levels
from datasets.sources.folders.labels import by_split, is_mask, without_masks
from datasets.sources.groups import FEWEST, IDENTIFIER, level_of_cases
from datasets.sources.path_words import (
    SPLIT_NAMES,
    SPLIT_WORDS,
    any_word_in,
    label_in,
    of_level,
    split_of,
    split_of_images,
    with_evaluation,
    word_in,
)
from datasets.sources.question import Answer, Question, Way, with_columns, without_empty, words_of
from datasets.sources.samples import ImageFiles
from datasets.sources.shared_arrays import PackedStrings, to_nfc
from datasets.sources.tables.cells import Columns
from datasets.sources.tables.columns import likely_columns
from datasets.sources.tables.files import IS_WORKBOOK, TABLE_SUFFIXES, WORKBOOK, open_table, table_file
from datasets.sources.tables.joins import TWO_TABLES, files_beside, may_name, splits_beside, stem_of, text_of
from utils.errors import UserError
from utils.notes import Note

_FROM_JSON = "docs/data.md#labels-in-json makes a table"
_ANY = "latin-1"  # reads any file: the labels are compared, not used
# Text before the last number of a name, cat.0.jpg, great_pyrenees_12.jpg, cat (3).jpg; the first field, lamp.x1y.jpg
_IN_NAMES = (
    *(rf"(.+){number}\.\w+$" for number in (r"_\d+", r"\.\d+", r"-\d+", r" \(?\d+\)?")),
    r"([^/\d]*[^\W\d_])\d+\.\w+$",
    *(rf"([^/{mark}]+){mark}[^/]+\.\w+$" for mark in (r"\.", "_", "-")),
)
IN_LETTERS = re.compile(r"(.)/\1")  # a/abbey
_LABEL_NAME = re.compile("(?i)label|class|species|breed|categor|target|diagnos|scientific")
_MAX_SHOWN = 3  # folders
_MAX_NAMES = 4  # classes, and numbers in names of files


def _names_images(file: Path) -> bool:
    """Whether the first lines name images: `requirements-dev.txt` beside the data is no list."""
    return any(map(is_image_name, re.split(r"[\s,;|\"'/\\]+", text_of(file)[:4096])))


class TableBeside(NamedTuple):
    """A table or list that names most of the images in a folder.

    ways: the answer of each column that may be the label; or the way to the labels of another table.
    """

    file: Path
    ways: list[Way]

    @property
    def answers(self) -> list[Answer]:
        return [way.answer for way in self.ways if way.answer]

    def or_folders(self, listing: ImageFiles, given: Path) -> Question:
        """The question if the labels are here or in the folders (DATA.CLASS_FOLDERS). given: DATA_PATH."""
        question = f"are the folders the classes, all for training, or are labels and splits in {self.file}?"
        own = _class_of(listing).items()
        confirmed = (_folders(place, class_folders=True) for place in (given, listing.root))
        found = islice((one for one in confirmed if one.is_read and own <= one.labels.items()), 1)
        names = list_names(listing.class_names, 3)
        of_folders = [Way(f"{one.path} -opts {one.options} trains on the folders, {names}", one) for one in found]
        return Question(f"{listing.root}: {question} ", [*self.ways, *of_folders])


def _folders(place: Path, **changes: Any) -> Answer:
    """The training on folders with other options."""
    given = {key: value for key, value in changes.items() if value}
    return Answer(Data.model_validate({"DATA_PATH": str(place)}).changed(**given), words_of(**given))


def _class_of(listing: ImageFiles) -> dict[str, str]:
    """The class folder of each image, by its absolute path."""
    return {os.path.abspath(os.path.join(listing.root, path)): path.partition("/")[0] for path in listing.paths}


def table_of_other_labels(listing: ImageFiles, root: Path) -> TableBeside | None:
    """The first table beside class folders whose labels are others, or which holds images out; or a table of the
    folders, with fewer labels.
    """
    for table in tables_beside(root, listing.root, listing.paths):
        class_of = _class_of(listing)
        agrees = any(_have_same_classes(one.labels, class_of) for one in table.answers)
        if not agrees or any(not class_of.keys().isdisjoint(one.held_out) for one in table.answers):
            return table
    are_split = listing.root != root  # train/ beside other splits
    for file in () if are_split else splits_beside(files_beside(root), listing.paths, root)[0]:
        ways = _splits_of_folders(file, listing)
        if ways:
            return TableBeside(file, ways)
    for table in tables_beside(root, listing.root, listing.class_names):
        if any(2 * len({*one.labels.values()}) <= len(listing.class_names) for one in table.answers[:1]):
            return TableBeside(table.file, [Way("docs/data.md#labels-of-folders makes a table of images")])
    return None


def _splits_of_folders(file: Path, listing: ImageFiles) -> list[Way]:
    """The training on class folders with the splits in a table; none if these hold no image of the folders out."""
    class_of = _class_of(listing)
    for level in range(3):
        found = _answer_of(file, {}, listing.root, class_of.keys(), of_level(level))
        if found and all(class_of.get(path, label) == label for path, label in found.labels.items()):
            return [] if found.held_out.isdisjoint(class_of) else [_way_to(found)]
    return [Way("docs/data.md#lists-of-splits makes a table of both")]


def tables_beside(
    root: Path, folder: Path, paths: Sequence[str] | PackedStrings, any_labels: bool = False
) -> Iterator[TableBeside]:
    """The tables in or beside `root` with labels of most of the images `paths`, which are relative to `folder`; without
    labels, if a table beside one may have them, see `_advise_join`.
    """
    of_splits = re.compile(r"\.json$|(split|partition).*\.txt$")  # CelebA's numbers of splits are no labels
    files = [file for file in files_beside(root) if not of_splits.search(file.name)]
    stems = set(map(stem_of, paths)) if files else set()
    seen = dict[Answer, Path]()
    known = set[str]()
    for file in files:
        if not may_name(file, stems):
            continue
        place = next((one for one in (root, file.parent) if table_file(one, "train") == file), file)
        with suppress(UserError, ValueError):  # a column without a name cannot be given
            candidates, is_named = likely_columns(open_table(file, _ANY), stems)
            ways = list[Way]()
            for columns in candidates:
                if "label" not in columns:
                    continue
                known = known or {os.path.abspath(os.path.join(folder, path)) for path in paths}
                found = _answer_of(place, columns, folder, known)
                if found and _adds_labels(found, file, known, is_named, seen):
                    seen[found] = file
                    ways.append(_way_to(found))
            if candidates and not ways:
                ways = _advise_join(file, any_labels)
            if ways:
                yield TableBeside(file, ways)


def _way_to(found: Answer) -> Way:
    counts = found.counts
    classes = list_names([f"{name} ({counts[name]})" for name in sorted(counts)], _MAX_NAMES)
    more = {"image_root": found.data.image_root, "labels": found.data.labels}
    options = f"{found.options} {words_of(**{key: value for key, value in more.items() if value})}".strip()
    option = f"-dataset=csv {found.path} -opts {options}"
    return Way(f"{option} trains on its {len(counts)} classes, {classes}{found.note}", found)


def _answer_of(
    place: Path, columns: Columns, folder: Path, known: Set[str], labels: str | None = None
) -> Answer | None:
    """The training on a table with these columns; without the rows that have no label, and with DATA.IMAGE_ROOT, only
    where the images are not read without.
    """
    given: dict[str, Any] = {
        "DATA_PATH": str(place),
        "DATASET": "csv",
        "COLUMNS": columns,
        "ENCODING": _ANY,
        "LABELS": labels,
        "MULTI_LABEL": "cells" in columns,  # which only several columns have
    }
    is_one_hot = isinstance(columns.get("label"), list)
    for image_root in (None, str(folder)):
        data = Data.model_validate({**given, "IMAGE_ROOT": image_root})
        found = with_columns(data, {}, data.multi_label).tried() or without_empty(data, is_one_hot).tried()
        if found and not known.isdisjoint(found.labels):
            return found
    return None


def _adds_labels(answer: Answer, file: Path, known: Set[str], is_named: bool, seen: Mapping[Answer, Path]) -> bool:
    """Whether most of the `known` images have a label in a table, which is news.

    A column of labels without such a name is no function of the folders. Of columns with the same classes, one without
    such a name, of numbers, or of another table does not count. seen: the tables of other answers.
    """
    labels = {path: label for path, label in answer.labels.items() if path in known}
    of_folders = {(os.path.dirname(path), label) for path, label in labels.items()}
    follows_folders = len(of_folders) == len(dict(of_folders)) and not is_named
    row = next((cells for _, cells in open_table(file, _ANY)), {})
    images = sum(map(is_image_name, row.values())) or 1  # before and after, channels
    if len(answer.counts) < 2 or 2 * images * len(labels) < len(known) or follows_folders:
        return False
    has_names = is_named and not all(map(str.isdigit, labels.values()))
    others = (one for one, place in seen.items() if place != file or not has_names)
    return not any(_have_same_classes(labels, one.labels) for one in others)


def _advise_join(file: Path, any_labels: bool) -> list[Way]:
    """The way on if a table beside the one that names the images shares a column with it, and has others: with several
    values in the shared rows, unlike a sample submission.

    any_labels: also without a column whose name says that it has labels.
    """
    table = open_table(file, _ANY)
    for other in FoundFiles(file.parent).top()[1]:
        if not other.lower().endswith(TABLE_SUFFIXES) or other == file.name:
            continue
        first_line = text_of(file.parent / other).partition("\n")[0]  # it may be large
        names = [name.strip(' "\r') for name in re.split(r"[,;\t|]", first_line)]
        shared = [name for name in names if name in table.header]
        added = [name for name in names if name not in shared and (any_labels or _LABEL_NAME.search(name))]
        if not (shared and added):
            continue
        known = {*table.column(shared[0])}
        rows = (cells for _, cells in open_table(file.parent / other, _ANY) if cells.get(shared[0]) in known)
        if len({tuple(map(cells.get, added)) for cells in rows}) > 1:
            return [Way(f"{TWO_TABLES} of {file} and {other}, which share the column {shorten(shared[0])}")]
    return []


def _have_same_classes(labels: Mapping[str, str], others: Mapping[str, str]) -> bool:
    """Whether the labels of the images of both are the same classes, perhaps by other names."""
    pairs = {(label, others[path]) for path, label in labels.items() if path in others}
    return 0 < len(pairs) == len({label for label, _ in pairs}) == len({other for _, other in pairs})


def unclear(given: Path, root: Path, problem: str, is_confirmed: bool) -> UserError:
    """The question that names the folders in `root`, and the answers that are left. given: DATA_PATH.

    is_confirmed: with DATA.CLASS_FOLDERS.
    """
    found = FoundFiles(root)
    images = found.images_in(root)
    if not images and found.unread.found:
        return found.lacks_images()
    sizes = {folder: number for folder, number in found.sizes.items() if folder}
    levels = Levels(sizes)
    trainings = []
    if levels.inside and set.intersection(*levels.inside.values()):  # all contain a folder of one name, as splits do
        trainings = [name for name in levels.sizes if word_in(name) == "train"]
    ways = _tables_or_folders(given, root, levels, trainings, images)
    if not ways or word_in(root.name) == "train":  # labels of all splits
        ways = _labels_in_paths(given) or ways
    ways = ways or _other_data(root, images)
    if not (trainings or is_confirmed):
        ways += _class_folders(given, levels, found.sizes)
    shown = "if it is one of the classes, give the folder around it"
    if sizes:
        shown = f"images by folder: {_folders_of_levels(sizes)}"
    return Question(f"{root}: {problem}: {shown}; ", ways)


def _class_folders(given: Path, levels: Levels, sizes: Mapping[str, int]) -> list[Way]:
    """The training on folders that are no splits."""
    if len(levels.sizes) < 2 or {*map(str.lower, levels.sizes)} <= SPLIT_WORDS.keys():
        return []
    cases = level_of_cases(sizes, 0, FEWEST)
    found = _folders(given, class_folders=True, groups=of_level(cases) if cases > 0 else "")
    if not found.is_read or found.counts.keys() != {*map(to_nfc, levels.sizes)}:  # those around them, as val and test
        return []
    return [Way(f"if each of these folders is a class, -opts {found.options}", found)]


def _folders_of_levels(sizes: Mapping[str, int]) -> str:
    """The folders of each level with the numbers of their images: 'p1 (8)', 'p2 (8)'; in them 'ill (12)', 'no (4)'."""
    of_levels = defaultdict[int, Counter[str]](Counter)
    for folder, number in sizes.items():
        for level, name in enumerate(folder.split("/")):
            of_levels[level][name] += number
    shown = []
    for names in of_levels.values():
        shown.append(list_names([f"{name} ({number})" for name, number in names.most_common()], _MAX_SHOWN))
    return "; in them ".join(shown)


def _tables_or_folders(
    given: Path, root: Path, levels: Levels, trainings: Sequence[str], images: Sequence[str]
) -> list[Way]:
    """PaddleViT's lists; else names for folders of splits, tables beside the images, apart from those for tests, and
    inner folders.
    """
    if all((root / f"{split}_list.txt").is_file() for split in ("train", "val")):
        lists = _folders(root, dataset="imagenet2012")
        return [Way(f"{lists.path} -opts {lists.options} reads its lists", lists)]
    used = [path for path in images if word_in(path.partition("/")[0]) not in ("test", "none")]
    ways = _advise_renaming([*levels.sizes])
    for table in tables_beside(root, root, without_masks(used)[0], any_labels=True):
        ways += table.ways
    places = [*_candidates(root, levels, trainings, images)]  # or one in it
    if root != given and word_in(root.name) == "train":
        places.insert(0, root)
    inner = (_folders(path).tried() for path in places)
    for one in islice((one for one in inner if one and not one.options), max(1, len(trainings))):
        ways.append(Way(f"give {one.path} if it is the data set", one))
    return ways


def _advise_renaming(names: Sequence[str]) -> list[Way]:
    """Of folders that are called as splits in other words than the ones that are read: their images are not one set."""
    splits = with_evaluation({name: SPLIT_WORDS.get(name.lower(), "") for name in names}).values()
    if not all(splits) or {*map(str.lower, names)} <= SPLIT_NAMES.keys():
        return []
    return [Way(f"if they are splits, rename them to {', '.join(splits)}")]


def _candidates(root: Path, levels: Levels, trainings: Sequence[str], images: Sequence[str]) -> Iterator[Path]:
    """The folders that may be the data set, the largest first: not val and test, nor single patients or hospitals."""
    names = trainings or [name for name, _ in levels.sizes.most_common()]
    if len(names) > 1:
        names = [name for name in names if any_word_in(name) in ("", "train")]
    nested = [name for name in names if len(levels.inside[name]) > 1]
    outer = [name for name in names if "" not in levels.below[name]]
    if len(outer) > 1 and not trainings:
        places = {os.path.splitext(path)[0].partition("/")[2] for path in images}
        if 4 * len(places) >= 3 * len(images):  # of other images
            return
        nested = [name for name in nested if not IDENTIFIER.search(name)]
    yield from (root / name / levels.tops[name] for name in nested)


def notes_on_lists(root: Path, listing: ImageFiles, given: Path, split: str) -> list[Note]:
    """Lines on lists of splits, workbooks and MegaDetector's boxes in or beside the folders, which are not read.

    split: of the images, whose own list beside a folder of them alone is no news.
    """
    found = files_beside(root, given)
    others = (file for file in found if listing.root == root or any_word_in(file.stem) != split)
    _, notes = splits_beside(others, listing.paths, root)
    for path in found:
        if re.search(WORKBOOK, path.name):
            notes.append(Note("screen", f"{path}: {IS_WORKBOOK}, if it has labels"))
        if path.suffix == ".json" and path.parent == root and '"detections"' in text_of(path):
            text = f"{path}: boxes of animals, people and vehicles by MegaDetector, which are not the classes here"
            notes.append(Note("screen", f"{text}; {_FROM_JSON} of them, to train on"))
    return notes


def _other_data(root: Path, images: Sequence[str]) -> list[Way]:
    """The lists that are not read, and a way to read well-known data."""
    stems = set(map(stem_of, images))
    lists = [path for path in files_beside(root) if may_name(path, stems) or re.search(WORKBOOK, path.name)]
    walked = (Path(folder, name) for folder, _, names in FoundFiles(root).walk(root) for name in names)
    lists = lists or [*islice((path for path in walked if path.suffix == ".json"), 1)]  # of a single image
    lists.sort(key=lambda path: any_word_in(path.stem) in ("val", "test"))
    move = Way("move the images of each class into one folder (docs/data.md#labels-of-folders)")
    folders = dict.fromkeys(path.partition("/")[0] for path in images)
    held_out = [name for name in folders if split_of_images(name) in ("val", "test")]
    if held_out:
        move = Way(
            f"move {list_names(held_out, _MAX_SHOWN)} out of {root}, or the images in it into folders of classes"
        )
    public = Way("-dataset=torchvision/NAME reads public data sets")
    if not lists:
        return [move, public]
    names = f"not read: {', '.join(map(str, lists[:_MAX_SHOWN]))}; if the labels are in it, "
    answer = _folders(lists[0], dataset="csv")
    if lists[0].suffix.lower() not in TABLE_SUFFIXES:
        way = Way(f"{names}docs/data.md#labels-in-json makes a table of JSON, or save a workbook as CSV")
    elif answer.is_read and any(map(os.path.isfile, answer.labels)):
        way = Way(f"{names}{answer.path} -opts {answer.options}", answer)
    else:
        way = Way(f"{names}name its columns and the folder of its images (DATA.COLUMNS, DATA.IMAGE_ROOT)")
    return [way, move, public]


def _labels_in_paths(root: Path) -> list[Way]:
    """The trainings on labels in the paths of the images in `root`, which keep cases together.

    None without evidence: folders that recur in several folders, or files whose names differ in a number or in another
    field only. Of names with more numbers, such as A172_Phase_A7_1_00d00h00m_1.tif, there are two.
    """
    paths, _ = without_masks(FoundFiles(root).images_in(root))
    try:
        level, _, of_split = by_split(root, paths)
    except UserError:
        return []
    if {"train", "test"} <= {split_of(os.path.basename(path)) for path in paths}:
        return []  # which only a table can read
    used = of_split["train"] + of_split.get("val", [])
    sizes = Counter(path.rpartition("/")[0] for path in used)
    ways = list[Way]()
    names: Collection[str] = ()
    for expression, of_labels in _expressions(used, level):
        labels = Counter(label_in(expression, path) for path in of_split["train"])
        if not _are_classes(labels):
            continue
        cases = level_of_cases(sizes, of_labels)
        if _are_shared(cases, of_split):
            cases = -1
        given: dict[str, Any] = {"labels": expression, "groups": of_level(cases) if cases >= 0 else ""}
        if expression == of_level(of_labels):
            roles = {"label": of_labels, "group": cases}
            columns = {role: at + (level < 0 or at < level) for role, at in roles.items() if at >= 0}
            given = {"columns": columns}
        answer = _folders(root, **given)
        if not answer.is_read or answer.counts.keys() == names:
            continue
        names = answer.counts.keys()
        shown = list_names(sorted(names), _MAX_NAMES)
        ways.insert(0, Way(f"-opts {answer.options} reads {len(names)} classes in the paths, {shown}", answer))
        if len(ways) == 2 or not all(re.search(r"[\W_]\d", label) for label in labels):
            break
    return ways


def _are_shared(level: int, of_split: Mapping[str, Sequence[str]]) -> bool:
    """Whether train has all folders of a level that another split has: apart, no image of it would be left."""
    names = {split: {"".join(path.split("/")[level : level + 1]) for path in of_split[split]} for split in of_split}
    return any(names[split] <= names["train"] for split in {"val", "test"} & names.keys())


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
    has_lists = any(file.suffix == ".json" and _names_images(file) for file in files_beside(given))  # iNaturalist 2018
    level = _inner_level(folders, numbers=has_lists)
    if len(listing.class_names) < 2 or not level:
        return []
    level += len(Path(os.path.relpath(listing.root, given)).parts)
    text = f"{listing.root}: are the classes {list_names(listing.class_names, _MAX_NAMES)}, or the folders in them?"
    return [Note("screen", f"{text} Then -opts {words_of(labels=of_level(level))}")]


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

    The folders in folders of their letters; the innermost level of folders with names that recur, 10253/{0,1},
    patient1/study1_{ill,well}; the text before a number, cat.0.jpg, great_pyrenees_12.jpg, cat (3).jpg; the first
    field, lamp.x1y.jpg; each number in 25_1_2_20170116.jpg. split: the level of folders that are splits, or -1.
    """
    if all(map(IN_LETTERS.match, paths)):
        yield r"(?:^|/)[^/]/([^/]+)/(?:([^/]+)/)?", 0
    folders = {(*path.split("/")[:-1],) for path in paths}
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
