"""The data set `folder`: which folders of DATA_PATH are splits, and which are classes."""

import os
import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path

from configs.schema import Data
from datasets.sources.files.class_folders import class_folders_in, has_images, read_class_folders, use_table
from datasets.sources.files.image_files import ImageFiles, Listing
from datasets.sources.samples import Samples, list_names
from datasets.sources.shared_arrays import to_nfc
from datasets.sources.source import Source
from datasets.sources.split import split_listing
from datasets.sources.split_names import find_split_names
from utils.errors import UserError, did_you_mean

_SPLIT_IN_NAME = re.compile("(?<![a-z])(train|val|test)")  # trainset, val2017; not contest
_MAX_TRIED = 10  # folders in which images are looked for


@dataclass(frozen=True)
class SplitFolders:
    """The folders of DATA_PATH.

    folders: of each split. 'train' is `root` itself if class folders are there, without the folders of other splits.
    test: the name of the folder of test images, which is in `folders` if it contains folders of classes.
    """

    root: Path
    folders: dict[str, Path]
    test: str | None
    findings: list[str]
    notes: list[str]

    def read(self, split: str) -> Listing:
        """The images of a split. A class that only this split, or only the training split, has is an error."""
        if split not in self.folders:
            names = list_names([folder.name for folder in self.folders.values()])
            raise UserError(f"{self.root}: has no folder {split} beside {names}; add it, or choose another split")
        splits = {folder.name for folder in self.folders.values() if folder != self.root}
        listing = read_class_folders(self.folders[split], splits if self.folders[split] == self.root else ())
        pair = [of for of in ("train", "val" if split == "train" else split) if of in self.folders]
        classes = {of: set(map(to_nfc, class_folders_in(self.folders[of], splits))) for of in pair}
        listing.findings += self.findings + [
            f"{self.root}: class folder {name!r} is in {one}, not in {other}; add or remove it"
            f"{did_you_mean(name, classes[other] - classes[one])}"
            for one, other in permutations(pair, 2)
            for name in sorted(classes[one] - classes[other])
        ]
        listing.notes[:0] = self.notes
        return listing


class ClassFolders(Source):
    """One folder per class in the folder of each split, see `find_split_folders`; without val the images are split.

    The split 'all' is all images of DATA_PATH, without test, if it has neither train nor val, else val.
    """

    def read(self, split: str) -> ImageFiles:
        found = find_split_folders(self.root)
        if split == "all" and ("val" in found.folders or found.folders["train"] != found.root):
            split = "val"
        if split == "test" or "val" in found.folders:
            return ImageFiles(found.read(split))
        return ImageFiles(split_listing(found.read("train"), split, self.splitter))

    def check_root(self, splits: Sequence[Samples]) -> None:
        """Raises UserError if the classes are in one folder of DATA_PATH, alone or beside others such as Examples.

        This folder has no image of its own, two or more folders with images, and nine tenths of all images. If there
        is another folder without an image of its own, with two or more folders, both are classes: of patients.
        """
        root = self.root
        files = [one for one in splits if isinstance(one, ImageFiles) and one.listing.root == root]
        sizes = Counter(label for one in files for label in one.targets.tolist())
        if 10 * max(sizes.values(), default=0) < 9 * sizes.total():
            return  # without reading the paths, which may be millions
        below: defaultdict[str, Counter[str]] = defaultdict(Counter)  # folder in root -> images of each folder in it
        for parent in (os.path.dirname(path) for one in files for path in one.listing.paths):
            below[parent.partition("/")[0]][parent] += 1
        nested = [(name, top) for name, inner in below.items() if (top := os.path.commonpath(inner)) not in inner]
        if len(nested) != 1 or 10 * (count := below[nested[0][0]].total()) < 9 * sizes.total():
            return
        ((name, top),) = nested
        fix = f"-data_path={shlex.quote(str(root / top))}"
        if len(files[0].class_names) == 1:
            raise UserError(
                f"{root}: contains only one folder, {name}; give the folder that contains all classes: {fix}"
            )
        problem = f"{count} of {sizes.total()} images are in the folders of {top}"
        fix += f"; if {name} is a class, move its images out of them"
        raise UserError(f"{root}: {problem}; if these are the classes, give {fix}")

    @classmethod
    def has_splits(cls, data: Data) -> bool:
        root = Path(data.data_path)
        return find_split_folders(root).folders != {"train": root}

    @classmethod
    def test_path(cls, data: Data) -> Path:
        root = Path(data.data_path)
        return root / ((root.is_dir() and find_split_folders(root).test) or "test")

    @classmethod
    def find_no_test_labels(cls, path: Path, data: Data) -> str | None:
        has_labels = "test" in find_split_folders(path.parent).folders
        return None if has_labels else "has no folder with the name of a class"


def find_split_folders(root: Path) -> SplitFolders:
    """Finds the splits by the names of the folders in `root`, as Hugging Face, Roboflow and timm write them.

    A folder train is the training split if it has a class in common with val or test, or if no other folder beside it
    contains images; beside several folders with images it is a class. Without train, the class folders are in `root`; a
    folder val or test beside them is a split if it contains a folder with the name of a class.

    Raises:
        UserError: `root` cannot be listed or contains no folders; it is not clear whether folders are splits.
    """
    names = class_folders_in(root)
    named = find_split_names(names, root)
    others = [name for name in names if name not in named.values()]
    within = {split: set(map(to_nfc, _folders_in(root / name))) for split, name in named.items()}
    train = within.get("train", set())
    is_split = "train" in named and any(train & within[split] for split in named.keys() - {"train"})
    unclear = not is_split and not {"train", "val"}.isdisjoint(named)
    beside = [name for name in others if unclear and has_images(root / name, deep=True)]
    if train and beside and (len(beside) == 1 or "val" in named):
        raise UserError(
            f"{root}: is {named['train']} the training split or a class, beside {list_names(beside)}? Give "
            f"-data_path={shlex.quote(str(root / named['train']))} for the split, or move all classes to that folder"
        )
    has_classes = bool(beside) or {"train", "val"}.isdisjoint(named)
    folders, known = ({"train": root}, set(map(to_nfc, names))) if has_classes else ({}, train)
    for split, name in named.items():
        if split not in folders and (within[split] & known or (split != "test" and not has_classes)):
            folders[split] = root / name
    findings, notes = [], []
    if has_classes:
        tokens = [_SPLIT_IN_NAME.findall(name.lower())[:1] for name in names]
        if all(tokens) and any(token != tokens[0] for token in tokens):
            raise UserError(
                f"{root}: are {list_names(names)} splits? Rename them train, val and test, or move all classes to "
                f"{root / 'train'}"
            )
        if "test" in named and "test" not in folders:
            fix = use_table(root) or f"Move the folders of all classes to {root / 'train'}"
            findings.append(f"{root / named['test']}: is it a class, or are these test images? {fix}")
        if "train" in named:
            note = f"Warning: {root / named['train']} is read as a class, beside {list_names(beside)}"
            notes.append(f"{note}; if it is the training split, give it as -data_path")
    elif others:
        notes.append(f"{root}: not read: {list_names(others)}")
    renamed = [f"{split} is {name!r}" for split, name in named.items() if split in folders and split != name]
    if renamed and not has_classes:
        notes.append(f"{root}: {', '.join(renamed)}")
    return SplitFolders(root=root, folders=folders, test=named.get("test"), findings=findings, notes=notes)


def _folders_in(folder: Path) -> set[str]:
    try:
        return set(class_folders_in(folder))
    except UserError:  # it cannot be listed, or contains no folders
        return set()


def has_class_folders(root: Path) -> bool:
    """Tells whether `root`, or a folder in it with the name of a split, contains two folders with images."""
    names = _folders_in(root)
    for parent in (*(root / name for name in names if _SPLIT_IN_NAME.search(name.lower())), root):
        if sum(has_images(parent / name, deep=False) for name in sorted(_folders_in(parent))[:_MAX_TRIED]) > 1:
            return True
    return False
