"""DATA.LABELS: labels in the paths of images."""

import os
import re
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import zip_longest
from pathlib import Path
from sys import intern

import numpy as np

from configs.schema import Data
from configs.yaml_io import format_value, shorten
from datasets.sources.class_names import list_names, positions
from datasets.sources.folders.class_folders import FoundFiles
from datasets.sources.path_words import MASK, hidden_splits, label_in, word_in
from datasets.sources.samples import ImageFiles, listing_arrays
from datasets.sources.shared_arrays import StringPacker
from utils.errors import Finding, UserError
from utils.notes import Note

_MAX_SHOWN = 4
is_mask = re.compile(MASK, re.IGNORECASE).fullmatch
Paths = dict[str, list[str]]  # of the images of each split


def by_split(root: Path, paths: Sequence[str]) -> tuple[int, dict[str, str], Paths]:
    """The level of folders that are splits, the split of each name at it, and the paths of each split: cat.0.jpg in
    train/ or test1/, 0.jpg in cat/train/ or cat/val/.

    It is the first level at which a folder has the word of a split; 'none': of images without labels. Without such a
    level, it is -1. Train may have no folder at the level: {a,b}/0.jpg test/{a,b}/0.jpg.
    Raises UserError: not all folders of the level have such a word, or two have the same one, none is train, or another
    split is in one.
    """
    folders = dict.fromkeys(path.rpartition("/")[0] for path in paths)
    parts = [folder.split("/") for folder in folders]
    for level, names in enumerate(zip_longest(*parts, fillvalue="")):
        words = {name: word_in(name) for name in dict.fromkeys(names)}
        named = [*filter(None, words.values())]
        if not named:
            continue
        bare = {name for name, word in words.items() if not word}
        recurring = bare & {one[level + 1] for one in parts if len(one) > level + 1 and words[one[level]]}
        if "train" not in named and (2 * len(recurring) > len(bare) or bare == {""}):
            words.update(dict.fromkeys(bare, "train"))
        unclear = words.keys() - {""}
        if all(words.values()) and len({*named}) == len(named) and "train" in words.values():
            unclear = hidden_splits(parts, level)
        if unclear:
            shown = list_names(sorted(unclear), _MAX_SHOWN)
            fix = "give the folder of one alone, or name them so; if none is a split:"
            raise UserError(
                f"{root}: which of the folders {shown} is train, val or test? Then {fix} -opts DATA.CLASS_FOLDERS=true"
            )
        found = Paths((word, []) for word in words.values())
        split_of = {folder: words[name] for folder, name in zip(folders, names, strict=True)}
        for path in paths:
            found[split_of[path.rpartition("/")[0]]].append(path)
        return level, words, found
    return -1, {}, {"train": [*paths]}


def note_on_splits(root: Path, folders: Mapping[str, Path], unread: Sequence[str]) -> Note:
    shown = [f"{split} is {str(folder.relative_to(root))!r}" for split, folder in sorted(folders.items())]
    others = f"; not read, but by -predict: {list_names(unread)}" if unread else ""
    return Note("log", f"{root}: {', '.join(shown)}{others}")


class LabelledPaths:
    """The images in DATA_PATH at any depth, with the labels that DATA.LABELS finds in their paths; see `by_split`.

    folders: of each split with labels; of train DATA_PATH itself if the images come without splits. test: the folder of
    test images, perhaps without labels. With DATA.CLASS_FOLDERS, no folder is a split.
    Raises UserError: a folder cannot be listed, it is not clear which folders are splits, or there are no images.
    """

    def __init__(self, data: Data, labels: str) -> None:
        self.root = Path(data.data_path)
        self._expression = labels
        self._files = FoundFiles(self.root)
        paths, self.notes = without_masks(self._files.all_images(), labels)
        level = -1
        self._paths = {"train": paths}
        if not data.class_folders:
            level, _, self._paths = by_split(self.root, paths)
        self.folders = dict[str, Path]()
        for split, of_split in self._paths.items():
            outer = of_split[0].split("/")[: level + 1]
            if outer and not word_in(outer[-1]):  # of train, without a folder
                outer.pop()
            self.folders[split] = self.root.joinpath(*outer)
        self.test = self.folders.get("test")
        self._labels = dict[str, list[str]]()
        for split, of_split in self._paths.items():
            self._labels[split] = [intern(label_in(labels, path)) for path in of_split]
        self.class_names = sorted({*self._labels["train"]} - {""})
        has_test = not {*self.class_names}.isdisjoint(self._labels.get("test", ()))
        unread = ["none"] if has_test else ["none", "test"]
        others = [self.folders.pop(split).name for split in unread if split in self.folders]
        if level >= 0:
            self.notes.append(note_on_splits(self.root, self.folders, others))

    def read(self, split: str) -> ImageFiles:
        """The images of a split, with the labels of the training. Findings: images without a class of the training."""
        paths = self._paths[split]
        labels = self._labels[split]
        label_of = positions(self.class_names)
        targets = np.array([label_of.get(label, -1) for label in labels], np.int64)
        findings = list[Finding]()
        for index in np.flatnonzero(targets < 0).tolist():
            path = shorten(paths[index])
            problem = f"{path}: label {shorten(labels[index])} has no image of train; correct it, or add one"
            if not labels[index]:
                problem = f"DATA.LABELS {format_value(self._expression)} does not match {path}; correct it"
            findings.append(f"{self.root}: {problem}")
        number = len(self.class_names)
        text = f"{self.root}: DATA.LABELS finds {number} classes, {list_names(self.class_names, _MAX_SHOWN)}"
        notes = [*self.notes, Note("log", text), *self._files.notes()]
        arrays = listing_arrays(StringPacker(paths), targets=targets)
        return ImageFiles(self.root, self.class_names, arrays, findings=findings, notes=notes)


def without_masks(paths: list[str], labels: str = "") -> tuple[list[str], list[Note]]:
    """The paths except images in folders of masks that all have the name of another image: trimaps/cat_1.png.

    A folder whose name is a class by DATA.LABELS is none of masks.
    """
    masks_in = cache(lambda folder: {*filter(is_mask, folder.split("/"))})
    of_masks = set()
    for path in paths:
        named = masks_in(path.rpartition("/")[0])
        if named and named.difference(label_in(labels, path).split("/")):
            of_masks.add(path)
    if not of_masks:
        return paths, []
    images = [path for path in paths if path not in of_masks]
    of_both = [{os.path.splitext(os.path.basename(path))[0] for path in part} for part in (of_masks, images)]
    if not of_both[0] <= of_both[1]:
        return paths, []
    text = f"{len(of_masks)} masks with the names of images are not read, such as {shorten(min(of_masks))}"
    return images, [Note("warning", text)]
