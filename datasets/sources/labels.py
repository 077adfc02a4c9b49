"""DATA.LABELS: labels in the paths of images, and the expressions that fit images without class folders."""

import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from shlex import quote

from configs.schema import Data
from configs.yaml_io import shorten
from datasets.sources.class_folders import FoundFiles
from datasets.sources.groups import case_folders
from datasets.sources.lists import read_table
from datasets.sources.names import MASK, label_in, list_names, word_in
from datasets.sources.samples import Listing
from datasets.sources.tables import Cells, Layout, Table
from utils.errors import UserError, combine_findings
from utils.notes import Note

_MAX_SHOWN = 4
_FIELD = r"(\d+)_"
_PARTS = ("train", "val", "test", "none")  # none: images without labels


def _by_split(root: Path, paths: Sequence[str]) -> tuple[int, dict[str, list[str]]]:
    """The level of folders that are splits, and the paths of each: {train,test1}/cat.0.jpg, cat/{train,val}/0.jpg.

    It is the first level at which a folder has the word of a split; 'none': of images without labels. Without such a
    level, all images are of 'train', and it is -1.
    Raises UserError: not all folders of the level have such a word, or two have the same one, or none is train.
    """
    for level, names in enumerate(zip_longest(*(path.split("/")[:-1] for path in paths), fillvalue="")):
        words = {name: word_in(name) or "" for name in dict.fromkeys(names)}
        if any(words.values()):
            if not all(words.values()) or len(set(words.values())) < len(words) or "train" not in words.values():
                shown = list_names(sorted(words.keys() - {""}), _MAX_SHOWN)
                fix = "give the folder of one as -data_path, or name them so; if none is a split:"
                problem = f"which of the folders {shown} is train, val or test"
                raise UserError(f"{root}: {problem}? Then {fix} -opts DATA.CLASS_FOLDERS=true")
            found = {word: list[str]() for word in words.values()}
            for path, name in zip(paths, names, strict=True):
                found[words[name]].append(path)
            return level, found
    return -1, {"train": [*paths]}


class LabelledPaths(Table):
    """The images in DATA_PATH at any depth, with the labels that DATA.LABELS finds in their paths; see `_by_split`.

    folders: of each split with labels; of train DATA_PATH itself if the images come without splits. test: the folder of
    test images, perhaps without labels. With DATA.CLASS_FOLDERS, no folder is a split.
    Raises UserError: a folder cannot be listed, it is not clear which folders are splits, or there are no images.
    """

    has_numbers, layout = False, Layout("path", (), split="split", split_of=dict(zip(_PARTS, _PARTS, strict=True)))

    def __init__(self, data: Data) -> None:
        self.root = self.file = Path(data.data_path)
        self.mistakes, self._data, self._files = {}, data, FoundFiles(self.root)
        paths, self.notes = _without_masks(self._files.images_in(self.root), data.labels or "")
        if not paths or self._files.findings:
            findings = self._files.findings or [self._files.lacks_images("check -data_path")]
            raise combine_findings(f"{self.root}: {len(findings)} problems", findings)
        level, self._paths_of = (-1, {"train": paths}) if data.class_folders else _by_split(self.root, paths)
        labels = {split: {label_in(data.labels or "", path) for path in of} for split, of in self._paths_of.items()}
        place = {split: self.root / Path(*of[0].split("/")[: level + 1]) for split, of in self._paths_of.items()}
        unread = {"none"} if labels.get("test", set()) & labels["train"] - {""} else {"none", "test"}
        self.folders = {split: folder for split, folder in place.items() if split not in unread}
        self.test = place.get("test")
        if level >= 0:
            shown = ", ".join(f"{split} is {folder.name!r}" for split, folder in sorted(self.folders.items()))
            others = [f"; not read: {folder}" for split, folder in place.items() if split in unread]
            self.notes.append(Note("log", f"{self.root}: {shown}{''.join(others)}"))

    def __iter__(self) -> Iterator[tuple[int, Cells]]:
        paths = ((path, split) for split, of_split in self._paths_of.items() for path in of_split)
        yield from enumerate({"path": path, "split": split} for path, split in paths)

    def read(self, split: str) -> Listing:
        """The images of a split, with the labels of the training. Findings: images without a class of the training."""
        listing = read_table((self, split), (self, "train"), self._data)
        names = list_names(listing.class_names, _MAX_SHOWN)
        listing.notes.append(Note("log", f"{self.root}: DATA.LABELS finds {len(listing.class_names)} classes, {names}"))
        listing.notes += self._files.notes()
        return replace(listing, file=None)


def _without_masks(paths: list[str], labels: str = "") -> tuple[list[str], list[Note]]:
    """The paths except images in folders of masks that all have the name of another image: trimaps/cat_1.png.

    A folder whose name is a class by DATA.LABELS is none of masks.
    """
    of_masks = set[str]()
    for path in paths:
        if named := {one for one in path.split("/")[:-1] if re.fullmatch(MASK, one, re.IGNORECASE)}:
            of_masks |= {path} if named - {*label_in(labels, path).split("/")} else set()
    images = [path for path in paths if path not in of_masks]
    of_both = [{os.path.splitext(os.path.basename(path))[0] for path in part} for part in (of_masks, images)]
    if not of_masks or not of_both[0] <= of_both[1]:
        return paths, []
    text = f"{len(of_masks)} masks with the names of images are not read, such as {shorten(min(of_masks))}"
    return images, [Note("warning", text)]


def advise_labels(root: Path) -> str | None:
    """The options that read the labels in the paths of the images in `root`, and keep cases together.

    None without evidence: folders that recur in several folders, or files whose names differ in a number or in another
    field only. Each expression is tried on all images of train and val.
    """
    paths, _ = _without_masks(FoundFiles(root).images_in(root))
    try:
        level, of_split = _by_split(root, paths)
    except UserError:
        return None
    train, val = of_split["train"], of_split.get("val", [])
    paths = train + val
    found = list[str]()
    for expression, of_labels in _expressions(paths, level):
        if not all(label_in(expression, path) for path in train):
            continue
        labels = Counter(label_in(expression, path) for path in train)
        are_of_train = {label_in(expression, path) for path in val} <= labels.keys()
        if are_of_train and 2 <= len(labels) <= len(paths) / 2 and sorted(labels.values())[-2] > 1:
            options = filter(None, [f"DATA.LABELS={expression}", case_folders(paths, of_labels)])
            classes = f"{len(labels)} classes, {list_names(sorted(labels), _MAX_SHOWN)}"
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
    text = f"{listing.root}: the classes are {list_names(listing.class_names, _MAX_SHOWN)}"
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
    yield from ((rf"(?:^|/)(?:[^/_]+_){{{number}}}{_FIELD}", -1) for number in range(_MAX_SHOWN))
