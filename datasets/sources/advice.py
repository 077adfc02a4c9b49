"""Advice about folders that cannot be read as classes, or perhaps otherwise: flags that work when they are typed.

It is asked only when a layout is not clear. Tables: see `columns`.
"""

import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path
from shlex import quote

from configs.yaml_io import shorten
from datasets.decoding.images import IMAGE_EXTENSIONS
from datasets.sources.class_folders import FoundFiles, Levels
from datasets.sources.groups import IDENTIFIER, case_folders
from datasets.sources.labels import by_split, without_masks
from datasets.sources.names import SPLIT_NAMES, label_in, list_names, split_of, word_in
from datasets.sources.samples import Listing
from datasets.sources.shared_arrays import to_nfc
from datasets.sources.tables import TABLE_SUFFIXES
from utils.errors import UserError
from utils.notes import Note

_FIELD = r"(\d+)_"
_SUBMISSION = re.compile("(?i)submission|sample_?sub")  # an example without labels
_PLACES_OF_LISTS = ("", "..", "../meta", "../labels", "../val")
_MAX_SHOWN = 3  # folders
_MAX_NAMES = 4  # classes, and numbers in names of files


def unclear(given: Path, root: Path, problem: str, is_data_set: Callable[[Path], bool]) -> UserError:
    """The error that names the folders and files in `root`, and the flags that say how they are read.

    given: DATA_PATH. is_data_set: whether a folder can be read.
    """
    found = FoundFiles(root)
    if not found.images_in(root) and found.unread.found:
        return found.lacks_images("")
    levels = Levels({folder: number for folder, number in found.sizes.items() if folder})
    seen = [f"{found.sizes['']} images"] if found.sizes[""] else []
    seen += [f"{shorten(name)} ({number} images)" for name, number in levels.sizes.most_common(_MAX_SHOWN)]
    if len(levels.sizes) > _MAX_SHOWN:
        seen.append(f"{len(levels.sizes) - _MAX_SHOWN} more folders")
    seen += [f"{number} {kind}" for kind, number in found.others.most_common(_MAX_SHOWN)]
    data_sets = islice(filter(is_data_set, _candidates(root, levels)), _MAX_SHOWN)
    paths = " or ".join(f"-data_path={quote(str(path))}" for path in data_sets)
    advice = f"if it is the data set, give {paths}" if paths else advise_labels(given) or _other_data(root)
    if len(levels.sizes) > 1 and not {*map(str.lower, levels.sizes)} <= SPLIT_NAMES.keys():
        advice += "; if each folder is a class, -opts DATA.CLASS_FOLDERS=true"
    return UserError(f"{root}: {problem}: {', '.join(seen) or 'it is empty'}; {_advise_lists(root)}{advice}")


def _candidates(root: Path, levels: Levels) -> Iterator[Path]:
    """The folders that may be the data set, without val, test, and the folders of single patients."""
    kinds = Counter(IDENTIFIER.sub("", name) for name in levels.sizes)
    for name, inside in sorted(levels.inside.items()):
        is_usable = len(levels.sizes) == 1 or word_in(name) in (None, "train")
        if is_usable and len(inside) > 1 and kinds[IDENTIFIER.sub("", name)] == 1:
            yield root / name / levels.tops[name]


def _names_images(file: Path, class_names: Collection[str]) -> bool:
    """Whether the first lines name images or classes: `requirements-dev.txt` beside the data is no list."""
    with suppress(OSError), open(file, encoding="utf-8-sig", errors="replace") as lines:
        words = {*re.split(r"[\s,;|\"'/\\]+", to_nfc(lines.read(4096)))}
        return not words.isdisjoint(class_names) or any(word.lower().endswith(IMAGE_EXTENSIONS) for word in words)
    return False


def notes_on_lists(root: Path, class_names: Collection[str]) -> list[Note]:
    """A warning of lists of splits in or beside the folders, which are not read."""
    files = chain.from_iterable(sorted((root / place).glob("*.[tc][xs][tv]")) for place in _PLACES_OF_LISTS)
    of_splits = [path for path in files if word_in(path.stem) in SPLIT_NAMES.values()]
    lists = [os.path.normpath(path) for path in of_splits if _names_images(path, class_names)]
    if not lists:
        return []
    advice = _advise_lists(Path(lists[0]).parent) + _other_data(root)
    return [Note("warning", f"the folders decide, not read: {', '.join(lists[:_MAX_SHOWN])}; {advice}")]


def _advise_lists(folder: Path) -> str:
    """The flags that read PaddleViT's lists in a folder, before other advice; '' without both lists."""
    has_lists = all((folder / f"{split}_list.txt").is_file() for split in ("train", "val"))
    return f"-dataset=imagenet2012 -data_path={quote(str(folder))} reads its lists; " if has_lists else ""


def _other_data(root: Path) -> str:
    """The flags that read other data: the table of the training, or of all images, if there is one in or beside it."""
    tables = sorted(root.iterdir(), key=lambda path: (split_of(path.name) != "train", path))
    tables = [path for path in tables if split_of(path.name) != "test" and not _SUBMISSION.search(path.name)]
    tables = [path for path in tables if path.suffix.lower() in TABLE_SUFFIXES]
    tables += [root.parent / name for name in ("train.csv", "labels.csv")]
    if table := next(filter(Path.is_file, tables), None):
        path = table.parent if table.name == "train.csv" else table
        return f"-dataset=csv -data_path={quote(str(path))} reads a table"
    others = "-dataset=csv reads tables, -dataset=tar tar shards, -dataset=torchvision/NAME files of public data sets"
    return f"{others}, DATA.LABELS labels in paths; -predict {quote(str(root))} labels images"


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
    paths = train + val
    found = list[str]()
    for expression, of_labels in _expressions(paths, level):
        if not all(label_in(expression, path) for path in train):
            continue
        labels = Counter(label_in(expression, path) for path in train)
        are_of_train = {label_in(expression, path) for path in val} <= labels.keys()
        if are_of_train and 2 <= len(labels) <= len(paths) / 2 and sorted(labels.values())[-2] > 1:
            options = filter(None, [f"DATA.LABELS={expression}", case_folders(paths, of_labels)])
            classes = f"{len(labels)} classes, {list_names(sorted(labels), _MAX_NAMES)}"
            found.append(f"-opts {' '.join(map(quote, options))} reads {classes}")
            if not expression.endswith(_FIELD):  # of these, the user knows which one is the class
                break
    return f"labels are in the paths, as in {shorten(paths[0])}: {' or '.join(found)}" if found else None


def note_on_inner_classes(listing: Listing) -> list[Note]:
    """A note if class folders contain folders alone, two or more: colon/{aca,n}."""
    if len(listing.class_names) < 2 or not all("/" in folder for folder in listing.sizes):
        return []
    inner = Counter(folder.partition("/")[0] for folder in {"/".join(one.split("/")[:2]) for one in listing.sizes})
    if min(inner.values(), default=0) < 2:
        return []
    text = f"{listing.root}: the classes are {list_names(listing.class_names, _MAX_NAMES)}"
    return [Note("log", f"{text}; if they are the inner folders: -opts {quote('DATA.LABELS=^[^/]+/([^/]+)/')}")]


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
            yield f"^{'[^/]+/' * level}{text}/", level
            break
    before_number = [rf"(.+){separator}\d+" for separator in ("_", r"\.", "-", r" \(?")] + [r"([^/\d]*[^\W\d_])\d+"]
    for expression in (*before_number, *(rf"([^/{mark}]+){mark}[^/]+$" for mark in ("\\.", "_", "-"))):
        whole = rf"{expression}\)?\.\w+$" if expression in before_number else expression
        pairs = ((label_in(expression, path), label_in(whole, path)) for path in paths)
        if all(label == of_whole and re.search(r"[^\W\d_]", label) for label, of_whole in pairs):
            yield expression, -1
    yield from ((rf"(?:^|/)(?:[^/_]+_){{{number}}}{_FIELD}", -1) for number in range(_MAX_NAMES))
