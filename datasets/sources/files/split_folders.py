"""The data set `folder`: which folders of DATA_PATH are splits, and which are classes."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from configs.schema import Data
from datasets.sources.class_names import list_names
from datasets.sources.files.class_folders import class_names_in, has_images, read_class_folders
from datasets.sources.files.image_files import ImageFiles, Listing
from datasets.sources.split import split_listing
from datasets.sources.split_names import find_split_names, split_of
from utils.errors import UserError

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

    @property
    def has_splits(self) -> bool:
        return self.folders != {"train": self.root}

    def read(self, split: str) -> Listing:
        """The images of a split. A class that only this split, or only the training split, has is an error."""
        if split not in self.folders:
            names = list_names([folder.name for folder in self.folders.values()])
            raise UserError(f"{self.root}: has no folder {split} beside {names}; add it, or choose another split")
        listing = read_class_folders(self.folders[split], self._excluded(split))
        listing.findings += self.findings
        listing.notes[:0] = self.notes
        other = {"train": "val"}.get(split, split)
        if "train" in self.folders and other in self.folders:
            one, two = (set(class_names_in(self.folders[of], self._excluded(of))) for of in ("train", other))
            listing.findings += [
                f"{self.root}: class folder {name!r} is only in one of train and {other}; add or remove it"
                for name in sorted(one ^ two)
            ]
        return listing

    def _excluded(self, split: str) -> set[str]:
        is_root = self.folders[split] == self.root
        return {folder.name for folder in self.folders.values() if folder != self.root} if is_root else set()


def folder(data: Data, split: str) -> ImageFiles:
    """One folder per class in the folder of a split, see `find_split_folders`; without val the images are split.

    The split 'all' is all images of DATA_PATH, without test, if it has neither train nor val, else val.
    """
    found = find_split_folders(Path(data.data_path))
    if split == "all":
        if "val" not in found.folders and found.folders["train"] == found.root:
            return ImageFiles(found.read("train"))
        split = "val"
    if split == "test" or "val" in found.folders:
        return ImageFiles(found.read(split))
    return ImageFiles(split_listing(found.read("train"), data, split))


def find_split_folders(root: Path) -> SplitFolders:
    """Finds the splits by the names of the folders in `root`, as Hugging Face, Roboflow and timm write them.

    A folder train is the training split if it has a class in common with val or test, or if no other folder beside it
    contains images; beside several folders with images it is a class. Without train, the class folders are in `root`; a
    folder val or test beside them that contains a folder with the name of a class is a split.

    Raises:
        UserError: `root` cannot be listed or contains no folders; it is not clear whether folders are splits.
    """
    names = class_names_in(root)
    named = find_split_names(names, root)
    others = [name for name in names if name not in named.values()]
    within = {split: _folders_in(root / name) for split, name in named.items()}
    train = within.get("train", set())
    is_split = bool(train & (within.get("val", set()) | within.get("test", set())))
    siblings = (
        [] if is_split or "train" not in named else [name for name in others if has_images(root / name, deep=True)]
    )
    if train and siblings and (len(siblings) == 1 or "val" in named):
        raise UserError(
            f"{root}: is {named['train']} the training split or a class, beside {list_names(siblings)}? Give "
            f"-data_path={root / named['train']} for the split, or move all classes to that folder"
        )
    if ("train" in named and not siblings) or ("val" in named and not others):
        in_train = (split for split in named if split != "test" or "train" not in named or within["test"] & train)
        notes = [f"{root}: not read: {list_names(others)}"] if others else []
        return _found(root, named, in_train, notes)
    held_out = [split for split in named if split != "train" and within[split].intersection(names)]
    _refuse_splits_as_classes(root, set(names), {named[split]: within[split] for split in named.keys() - held_out})
    found = _found(root, named, held_out, [])
    found.folders["train"] = root
    if "test" in named and "test" not in held_out:
        problem = "is it a class, or are these test images? Move the folders of all classes to"
        found.findings.append(f"{root / named['test']}: {problem} {root / 'train'}")
    if "train" in named:
        note = f"Warning: {root / named['train']} is read as a class, beside {list_names(siblings)}"
        found.notes.append(f"{note}; if it is the training split, give it as -data_path")
    return found


def _found(root: Path, named: dict[str, str], splits: Iterable[str], notes: list[str]) -> SplitFolders:
    folders = {split: root / named[split] for split in splits}
    if renamed := [f"{folder.name!r} is {split}" for split, folder in folders.items() if folder.name != split]:
        notes.append(f"{root}: {', '.join(renamed)}")
    return SplitFolders(root, folders, named.get("test"), [], notes)


def _refuse_splits_as_classes(root: Path, names: set[str], unclear: dict[str, set[str]]) -> None:
    """Refuses class folders that look like splits: all of them by their names, or one by folders that others have, too.

    unclear: the folders in each folder with the name of a split.
    """
    splits = {split_of(name) for name in names}
    alike = names if len(splits) > 1 and None not in splits else set()
    for name, classes in unclear.items():
        if same := {other for other in names - {name} if classes and classes & _folders_in(root / other)}:
            alike |= {name} | same
    if alike:
        raise UserError(
            f"{root}: {list_names(sorted(alike))}: are they splits? Rename them train, val and test; or move all "
            f"classes to {root / 'train'}"
        )


def _folders_in(folder: Path) -> set[str]:
    try:
        return set(class_names_in(folder))
    except UserError:  # it cannot be listed, or contains no folders
        return set()


def has_class_folders(root: Path) -> bool:
    """Tells whether `root`, or a folder in it with the name of a split, contains two folders with images."""
    names = _folders_in(root)
    for parent in (*(root / name for name in names if split_of(name)), root):
        if sum(has_images(parent / name, deep=False) for name in sorted(_folders_in(parent))[:_MAX_TRIED]) > 1:
            return True
    return False
