"""The data set `folder`: which folders of DATA_PATH are splits, and which are classes. The tree decides."""

import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from configs.yaml_io import shorten
from datasets.sources.class_names import list_names
from datasets.sources.folders.advice import (
    IN_LETTERS,
    note_on_inner_classes,
    notes_on_lists,
    table_of_other_labels,
    unclear,
)
from datasets.sources.folders.class_folders import (
    FoundFiles,
    Levels,
    has_class_folders,
    has_images,
    list_folder,
    read_class_folders,
)
from datasets.sources.folders.labels import LabelledPaths, note_on_splits
from datasets.sources.groups import suggest_groups
from datasets.sources.path_words import SPLIT_NAMES, split_of_images, word_in
from datasets.sources.samples import ImageFiles
from datasets.sources.shared_arrays import to_nfc
from datasets.sources.source import Source, Wanted, without_labels
from utils.errors import UserError
from utils.notes import Note

_PART = re.compile(
    r"(?i)(?<![a-z])(images?|imgs?|data|set|part|batch|chunk|fold|split|folder|p|pat|patient|subject|case|study|"
    r"slide|plate|well|scan|series|session|item|week|run|experiment|replicate|ds)s?(?![a-z])"
)
_ID = re.compile(r"(?i)[\da-f-]{16,}|\D*(\d+\D+){2}\d.*")  # a checksum, a UUID, TCGA-A1-A0SB-01Z, a date
_SIZE = re.compile(r"(?i)\d+ ?x ?\d+")  # 2x4 3001, a brick
_CLASS = re.compile("(?i)class|categor|label|type|grade|stage|level")
_ALL_IMAGES = re.compile("(?i)(all|jpe?g|original|png|raw)?[ _-]*(images?|imgs?)")
_MAX_SHOWN = 3  # folders and names in an error


@dataclass(frozen=True)
class Folder:
    """A folder in DATA_PATH, or itself. word: the split in its name, or 'none' for images without labels.

    path: the folder to read. inside: the names (NFC) of the folders in it.
    """

    name: str
    word: str
    path: Path
    inside: frozenset[str]

    @property
    def is_named(self) -> bool:
        """Whether the whole name is of a split."""
        return self.name.lower() in SPLIT_NAMES


Splits = dict[str, Folder]
_UNMARKED = Folder("", "", Path(), frozenset())  # of a folder without the word of a split


# Reasons why the folders of a listing may not be the classes.


def _as_lone_folder(levels: Levels, listing: ImageFiles) -> str | None:
    if len(listing.class_names) == 1 or (len(levels.sizes) == 1 and listing.findings):
        return "only one folder contains images"
    return None


def _as_parts(levels: Levels, listing: ImageFiles) -> str | None:
    """Parts of one data set, patients, or items, which are more than the images in each, differ in a number; or ids."""
    if len(levels.sizes) < 2:
        return None
    if all(_ID.fullmatch(_SIZE.sub("", name)) for name in levels.sizes):
        return "the folders are ids or dates, as of slides, patients or items (docs/data.md#labels-of-folders)"
    stem, *others = {re.sub(r"\d+", "", name) for name in levels.sizes}
    if not others:
        is_word = len(stem) > 1 and not _CLASS.search(stem)  # not WordNet's n01440764
        are_many = len(listing) < len(levels.sizes) ** 2
        if (is_word and are_many) or _PART.search(stem):
            return "the folders differ in a number only, as parts, patients or items (docs/data.md#labels-of-folders)"
    return None


def _as_variants(levels: Levels, listing: ImageFiles) -> str | None:
    """Folders of patients, variants, splits or copies contain folders of the same names."""
    names = {*listing.class_names}
    of_folders = Counter(names)
    for name, inside in levels.inside.items():
        outer = {to_nfc(path.partition("/")[0]) for path in levels.below[name]}
        of_folders.update((inside | outer) - {"", to_nfc(name)})
    recurring = {name for name, count in of_folders.items() if count > 1}
    if len(recurring) > 1 or recurring & names:
        return f"{list_names(sorted(recurring), _MAX_SHOWN)} are in several folders, as of variants, patients or splits"
    return None


def _as_letters(levels: Levels, listing: ImageFiles) -> str | None:
    """The first letters of the folders in them, as of SUN397 and Places365: a/abbey, c/church/indoor."""
    if listing.sizes and all(map(IN_LETTERS.match, listing.sizes)):
        return "the folders are letters"
    return None


def _as_outer_folder(levels: Levels, listing: ImageFiles) -> str | None:
    """One folder contains the classes."""
    nested = [name for name, inside in levels.inside.items() if len(inside) > 1 and "" not in levels.below[name]]
    for name in nested:
        is_main = len(nested) == 1 and 10 * levels.sizes[name] >= 9 * levels.sizes.total()
        if is_main or all(map(word_in, levels.inside[name])):
            return f"the classes may be in {shorten(name)}"
    return None


class SplitFolders:
    """The folders of DATA_PATH: which are splits, and which are classes, by the only one of two layouts that fits.

    A folder that contains only a folder of its own name, as unzip makes it, stands for that folder.

    root: DATA_PATH, or a folder of the same name in it. folders: of each split. 'train' is `root` itself if class
    folders are there. test: the folder of test images, which is in `folders` if it contains folders of classes.
    wrong_levels: the rules by which folders are not the classes.
    Raises UserError: `root` cannot be listed, or it is not clear which folders are splits or classes.
    """

    wrong_levels: Sequence[Callable[[Levels, ImageFiles], str | None]] = (
        _as_lone_folder,
        _as_parts,
        _as_variants,
        _as_letters,
        _as_outer_folder,
    )

    # names: of the folders. marked: the ones with the word of a split, by name.
    def __init__(self, given: Path) -> None:
        self.given = given
        list_folder(given)  # raises errors about the folder as it is given
        self.root = _pass_outer(given)
        self.names, _ = list_folder(self.root)
        self.top = Folder("", "train", self.root, _in_nfc(self.names))
        self.marked = {}
        for name in self.names:
            if word := word_in(name):
                path = _pass_outer(self.root / name)
                self.marked[name] = Folder(name, word, path, _in_nfc(FoundFiles(path).top()[0]))
        self.marked = self.kept(self.marked)
        fitting = [*filter(None, (self._as_splits(), self._as_classes()))]
        if len(fitting) != 1:
            problem = "it is not clear which folders are classes, or train/, val/ and test/ with class folders"
            raise unclear(given, self.root, problem if self.names else "contains no folders")
        (self.splits,) = fitting
        self.folders = {split: folder.path for split, folder in self.splits.items()}
        test = (self.named("test") | self.splits).get("test")
        self.test = test and test.path

    def kept(self, marked: dict[str, Folder]) -> dict[str, Folder]:
        """The folders that may be splits."""
        return marked

    def named(self, split: str) -> Splits:
        return self.choose(split, [folder for folder in self.marked.values() if folder.is_named])

    def choose(self, split: str, folders: Iterable[Folder]) -> Splits:
        """The only one of `folders` with the split's word, or with its name alone; empty without one.

        Raises UserError: several folders.
        """
        found = [folder for folder in folders if folder.word == split]
        found = [folder for folder in found if folder.is_named] or found
        if len(found) > 1:
            names = list_names([folder.name for folder in found], _MAX_SHOWN)
            raise unclear(self.given, self.root, f"which of {names} is {split}? Rename the others")
        return {folder.word: folder for folder in found}

    def sharing(self, train: Folder) -> Splits:
        """The folders of val and test that contain one of the class folders in `train`."""
        found = [one for one in self.marked.values() if one.inside & (train.inside - {to_nfc(one.name)})]
        return self.choose("val", found) | self.choose("test", found)

    def bare(self) -> list[str]:
        """The folders of images for tests or predictions, without folders in them."""
        words = ("test", "none")
        return [name for name, folder in self.marked.items() if folder.word in words and not folder.inside]

    def unread(self, splits: Splits) -> list[str]:
        """The folders that are neither splits nor classes."""
        used = {folder.name for folder in splits.values()}
        if self.top not in splits.values():
            return [name for name in self.names if name not in used]
        classes = frozenset[str]().union(*(folder.inside for folder in splits.values() if folder != self.top))
        return [name for name in self.bare() if len(splits) > 1 and to_nfc(name) not in classes]

    def _as_splits(self) -> Splits:
        """{train,val,test}/{cat,dog}, seg_{train,test}/{cat,dog}: a class folder of train is in val or test, too; or
        train/{cat,dog} beside no other images than for tests; or val/{cat,dog} alone, to evaluate it.

        Empty if it does not fit.
        """
        trains = [folder for folder in self.marked.values() if folder.word == "train"]
        found = self.choose("train", filter(self.sharing, trains))
        if found:
            return found | self.named("val") | self.sharing(found["train"])
        found = self.choose("train", [folder for folder in trains if len(folder.inside) >= 2 - folder.is_named])
        found = found or self.named("val")
        if not any(folder.inside for folder in found.values()):
            return {}
        used = {folder.name for folder in (found | self.named("test")).values()}
        beside = {*self.names}.difference(used, self.bare())
        return {} if any(has_images(self.root / name) for name in beside) else found

    def _as_classes(self) -> Splits:
        """{cat,dog}, perhaps beside {val,test}/{cat,dog} and images to predict; empty if it does not fit."""
        splits = {"train": self.top} | self.sharing(self.top)
        classes = {*self.names}.difference((folder.name for folder in splits.values()), self.unread(splits))
        train = self.named("train").get("train", _UNMARKED)
        misfits = [not any(map(self._is_class, classes)), *self.misfits(classes, train)]
        return {} if any(misfits) else splits

    def misfits(self, classes: Set[str], train: Folder) -> list[bool]:
        """The reasons why the folders `classes` may be other ones. train: the folder of this name."""
        words = {folder.word for folder in self.marked.values()}
        return [
            bool(train.inside),
            len(words) > 1 and len(self.marked) == len(self.names),
            len(classes) > 1 and any(map(_ALL_IMAGES.fullmatch, classes)),
            # of images without labels, or with the word of a split and words as images or set alone
            any(
                self.marked.get(name, _UNMARKED).word == "none" or split_of_images(name)
                for name in classes - {train.name}
            ),
        ]

    def _is_class(self, name: str) -> bool:
        """Whether a folder has images and no name of a split, nor the word train and several folders."""
        folder = self.marked.get(name, _UNMARKED)
        is_train = folder.word == "train" and len(folder.inside) > 1
        return not (folder.is_named or is_train) and has_images(self.root / name)

    def read(self, split: str) -> ImageFiles:
        """The images of a split with the labels of the training. A class that the training lacks is an error."""
        folder = self.folders[split]
        train = self.folders.get("train", folder)
        unread = self.unread(self.splits)
        excluded = set()
        if train == self.root:
            excluded = {*unread, *(one.name for one in self.splits.values())}
        known = None
        if folder != train:
            known = _in_nfc(list_folder(train, excluded)[0])
        listing = read_class_folders(folder, excluded, known)
        listing.notes[:0] = [*self._notes_on_folders(unread), *notes_on_lists(self.root, listing)]
        return listing

    def error_of(self, listing: ImageFiles, trains: bool) -> UserError | None:
        """The error of folders that may not be the classes, or, in a training, of a table with other labels.

        listing: of a split that has been read.
        """
        if not any(isinstance(one, UserError) for one in listing.findings):  # all folders could be listed
            levels = Levels(listing.sizes)
            rules = [rule for rule in self.wrong_levels if rule != _as_parts or not self._share_folders()]
            for rule in rules:
                if problem := rule(levels, listing):
                    return unclear(self.given, listing.root, problem)
        if not trains:
            return None
        table = table_of_other_labels(listing, self.root)
        return table and table.or_folders(listing, self.given)

    def _share_folders(self) -> bool:
        """Whether splits have the same folders: of classes, as a patient or an item is in one."""
        return _have_same_folders([*self.splits.values()])

    def _notes_on_folders(self, unread: Sequence[str]) -> Iterator[Note]:
        """The folder of each split, and those that are not read; a training split that is read as a class."""
        outer = self.root
        while outer != self.given:
            outer = outer.parent
            beside = [name for name in FoundFiles(outer).top()[0] if has_images(outer / name)]
            if len(beside) > 1:
                yield Note("warning", f"{outer}: of {list_names(beside)}, only {self.root} is read")
        if unread or any(folder.name not in (split, "") for split, folder in self.splits.items()):
            yield note_on_splits(self.root, self.folders, unread)
        if self.folders.get("train") != self.root:
            return
        for train in self.named("train").values():
            text = f"{self.root / train.name} is read as a class; if it is the training split, give it as -data_path"
            yield Note("warning", text)


def _in_nfc(names: Iterable[str]) -> frozenset[str]:
    return frozenset(map(to_nfc, names))


class ConfirmedFolders(SplitFolders):
    """With DATA.CLASS_FOLDERS: folders with the names of `SPLIT_NAMES` are splits, and folders with the words of splits
    if they have the same folders in them; all others are classes.
    """

    wrong_levels = (_as_lone_folder,)

    def kept(self, marked: dict[str, Folder]) -> dict[str, Folder]:
        by_word = {folder.word: folder for folder in marked.values() if folder.word != "none"}
        if "train" in by_word and len(by_word) == len(marked) and _have_same_folders([*by_word.values()]):
            return marked
        return {name: folder for name, folder in marked.items() if folder.is_named}

    def bare(self) -> list[str]:
        return []

    def misfits(self, classes: Set[str], train: Folder) -> list[bool]:
        are_splits = not all(folder.is_named for folder in self.marked.values())  # that were kept
        return [bool(self.sharing(train)), are_splits]


class ImageFolders(Source):
    """One folder per class in the folder of each split, see `SplitFolders`, or with DATA.LABELS see `LabelledPaths`;
    without val the images are split.

    The split 'all' is all images of DATA_PATH, without test, if it has neither train nor val.
    """

    def __init__(self, wanted: Wanted) -> None:
        super().__init__(wanted)
        data = self.data
        if data.image_root:
            raise UserError(
                f"DATA.IMAGE_ROOT is for lists and tables, but {self.root} is read as folders; "
                "give the folder of the images as -data_path, or -opts DATA.IMAGE_ROOT=null"
            )
        self._found: SplitFolders | LabelledPaths
        if data.labels:
            self._found = LabelledPaths(data, data.labels)
        elif data.class_folders:
            self._found = ConfirmedFolders(self.root)
        else:
            self._found = SplitFolders(self.root)
        self._error: UserError | None = None

    @property
    def splits(self) -> Collection[str]:
        folders = self._found.folders
        if "val" in folders or folders["train"] != self._found.root:
            return folders
        return ["all", *(split for split in folders if split != "train")]

    def read(self, split: str) -> ImageFiles:
        found = self._found
        is_train = split in ("train", "all")
        listing = found.read("train" if is_train else split)
        trains = self.reads_train and is_train
        is_asked = not (self.data.labels or self.data.class_folders)  # which folders are the classes
        if isinstance(found, SplitFolders) and not (self.wanted.class_names or self._error):
            self._error = found.error_of(listing, trains and is_asked)
        if self._error:  # one error for all splits
            raise self._error
        if trains and self.wanted.suggests:
            questions = note_on_inner_classes(listing, self.root) if is_asked else []
            listing.notes += questions or suggest_groups(listing, self.data, None, self.uncut is not None)
        return listing

    def find_test(self) -> tuple[bool, str | None]:
        found = self._found
        if found.test and "test" not in found.folders:
            return without_labels(found.test, "has no images of the classes")
        return "test" in found.folders, None


def _have_same_folders(splits: Sequence[Folder]) -> bool:
    first, *others = splits
    return bool(others) and all(len(first.inside) > 1 and one.inside == first.inside for one in others)


def _pass_outer(folder: Path) -> Path:
    """The folder, or the folder in it that is all: of the same name, as unzip makes it, or the only one with images,
    such as images/{cat,dog} or ants/{train,val}; or the only one with train and others, beside images without folders.
    """
    found = FoundFiles(folder)
    folders, files = found.top()
    if any(found.is_image(folder, file) for file in files):
        return folder
    name = to_nfc(os.path.basename(os.path.abspath(folder))).casefold()
    if [to_nfc(one).casefold() for one in folders] == [name]:
        return _pass_outer(folder / folders[0])
    full = [*islice((one for one in folders if has_images(folder / one)), 3)]
    if any(map(word_in, full)):
        return folder
    outer = full if len(full) == 1 else [one for one in full if _has_splits(folder / one)]
    others = [one for one in full if one not in outer and FoundFiles(folder / one).top()[0]]
    if len(outer) != 1 or others or len(full) > 2 or not has_class_folders(folder / outer[0]):
        return folder
    inside = FoundFiles(folder / outer[0]).top()[0]
    if all(re.search(r"\d", one) and not word_in(one) for one in inside):  # perhaps patients
        return folder
    return _pass_outer(folder / outer[0])


def _has_splits(folder: Path) -> bool:
    words = [SPLIT_NAMES.get(name.lower()) for name in FoundFiles(folder).top()[0]]
    return len(words) > 1 and "train" in words and all(words)
