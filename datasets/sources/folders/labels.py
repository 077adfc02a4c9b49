"""DATA.LABELS: labels in the paths of images."""

import os
import re
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path

from configs.schema import Data
from configs.yaml_io import shorten
from datasets.sources.class_names import list_names
from datasets.sources.folders.class_folders import FoundFiles
from datasets.sources.listed.lists import TableSplit, read_table
from datasets.sources.path_words import MASK, label_in, word_in
from datasets.sources.samples import ImageFiles
from datasets.sources.source import Wanted
from datasets.sources.tables.files import Layout, Lines, Table
from utils.errors import UserError
from utils.notes import Note

_MAX_SHOWN = 4
is_mask = re.compile(MASK, re.IGNORECASE).fullmatch
_PARTS = ("train", "val", "test", "none")  # none: images without labels


def by_split(root: Path, paths: Sequence[str]) -> tuple[int, dict[str, list[str]]]:
    """The level of folders that are splits, and the paths of each: {train,test1}/cat.0.jpg, cat/{train,val}/0.jpg.

    It is the first level at which a folder has the word of a split; 'none': of images without labels. Without such a
    level, all images are of 'train', and it is -1. Train may have no folder at the level: {a,b}/0.jpg test/{a,b}/0.jpg.
    Raises UserError: not all folders of the level have such a word, or two have the same one, or none is train.
    """
    for level, names in enumerate(zip_longest(*(path.split("/")[:-1] for path in paths), fillvalue="")):
        words = {name: word_in(name) or "" for name in dict.fromkeys(names)}
        if any(words.values()):
            named = [word for word in words.values() if word]
            bare = {name for name, word in words.items() if not word}
            deep = (path.split("/") for path in paths if path.count("/") > level + 1)
            recurring = bare & {folders[level + 1] for folders in deep if words[folders[level]]}
            if "train" not in named and (2 * len(recurring) > len(bare) or bare == {""}):
                words.update(dict.fromkeys(bare, "train"))
            if not all(words.values()) or len({*named}) < len(named) or "train" not in words.values():
                shown = list_names(sorted(words.keys() - {""}), _MAX_SHOWN)
                fix = "give the folder of one as -data_path, or name them so; if none is a split:"
                raise UserError(
                    f"{root}: which of the folders {shown} is train, val or test? "
                    f"Then {fix} -opts DATA.CLASS_FOLDERS=true"
                )
            found = {word: list[str]() for word in words.values()}
            for path, name in zip(paths, names, strict=True):
                found[words[name]].append(path)
            return level, found
    return -1, {"train": [*paths]}


def folders_of_split(paths: Sequence[str], level: int) -> list[str]:
    """The folders up to the one of a split, by its first path; without this one, if train has none at the level."""
    outer = paths[0].split("/")[: level + 1]
    return outer if outer and word_in(outer[-1]) else outer[:-1]


def note_on_splits(root: Path, folders: Mapping[str, Path], unread: Sequence[str]) -> Note:
    shown = [f"{split} is {str(folder.relative_to(root))!r}" for split, folder in sorted(folders.items())]
    others = f"; not read, but by -predict: {list_names(unread)}" if unread else ""
    return Note("log", f"{root}: {', '.join(shown)}{others}")


class LabelledPaths(Table):
    """The images in DATA_PATH at any depth, with the labels that DATA.LABELS finds in their paths; see `by_split`.

    folders: of each split with labels; of train DATA_PATH itself if the images come without splits. test: the folder of
    test images, perhaps without labels. With DATA.CLASS_FOLDERS, no folder is a split.
    Raises UserError: a folder cannot be listed, it is not clear which folders are splits, or there are no images.
    """

    label_kind = "name"
    layout = Layout("path", (), split="split", split_of=dict(zip(_PARTS, _PARTS, strict=True)))

    def __init__(self, data: Data, labels: str) -> None:
        super().__init__(Path(data.data_path))
        self.root = self.file
        self._data = data
        self._files = FoundFiles(self.root)
        paths, self.notes = without_masks(self._files.all_images(), labels)
        level = -1
        self._paths_of = {"train": paths}
        if not data.class_folders:
            level, self._paths_of = by_split(self.root, paths)
        self.folders = {
            split: self.root.joinpath(*folders_of_split(paths, level)) for split, paths in self._paths_of.items()
        }
        self.test = self.folders.get("test")
        train, test = (self._labels_of(split, labels) for split in ("train", "test"))
        unread = ["none"] if test & train else ["none", "test"]
        others = [self.folders.pop(split).name for split in unread if split in self.folders]
        if level >= 0:
            self.notes.append(note_on_splits(self.root, self.folders, others))

    def _labels_of(self, split: str, expression: str) -> set[str]:
        return {label_in(expression, path) for path in self._paths_of.get(split, ())} - {""}

    def __iter__(self) -> Lines:
        paths = ((path, split) for split, of_split in self._paths_of.items() for path in of_split)
        yield from enumerate({"path": path, "split": split} for path, split in paths)

    def read(self, split: str) -> ImageFiles:
        """The images of a split, with the labels of the training. Findings: images without a class of the training."""
        train = TableSplit(self, self._data, "train")
        part = train if split == "train" else TableSplit(self, self._data, split)
        listing = read_table(part, train, Wanted(self._data))
        names = list_names(listing.class_names, _MAX_SHOWN)
        listing.notes.append(Note("log", f"{self.root}: DATA.LABELS finds {len(listing.class_names)} classes, {names}"))
        listing.notes += self._files.notes()
        listing.file = None
        return listing


def without_masks(paths: list[str], labels: str = "") -> tuple[list[str], list[Note]]:
    """The paths except images in folders of masks that all have the name of another image: trimaps/cat_1.png.

    A folder whose name is a class by DATA.LABELS is none of masks.
    """
    of_masks = set()
    for path in paths:
        named = {*filter(is_mask, path.split("/")[:-1])}
        if named.difference(label_in(labels, path).split("/")):
            of_masks.add(path)
    images = [path for path in paths if path not in of_masks]
    of_both = [{os.path.splitext(os.path.basename(path))[0] for path in part} for part in (of_masks, images)]
    if not of_masks or not of_both[0] <= of_both[1]:
        return paths, []
    text = f"{len(of_masks)} masks with the names of images are not read, such as {shorten(min(of_masks))}"
    return images, [Note("warning", text)]
