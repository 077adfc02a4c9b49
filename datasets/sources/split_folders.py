"""The data set `folder`: which folders of DATA_PATH are splits, and which are classes. The tree decides."""

import os
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from shlex import quote

from configs.schema import Data
from configs.yaml_io import shorten
from datasets.sources.advice import note_on_inner_classes, notes_on_lists, unclear
from datasets.sources.beside import tables_beside
from datasets.sources.class_folders import FoundFiles, Levels, has_images, list_folder, read_class_folders
from datasets.sources.groups import suggest_groups
from datasets.sources.labels import LabelledPaths, note_on_splits
from datasets.sources.names import SPLIT_NAMES, list_names, split_of_images, word_in
from datasets.sources.samples import ImageFiles, Listing
from datasets.sources.shared_arrays import to_nfc
from datasets.sources.source import Source, without_labels
from datasets.sources.split import Splitter, split_listing
from utils.errors import UserError
from utils.notes import Note

_PART = re.compile(r"(?i)(?<![a-z])(images?|imgs?|data|set|part|batch|chunk|fold|split|folder)s?(?![a-z])")
_ALL_IMAGES = re.compile("(?i)(all|jpe?g|original|png|raw)?[ _-]*(images?|imgs?)")
_MAX_DOUBLED = 10  # folders in folders of one name
_MAX_SHOWN = 3  # folders and names in an error
Splits = dict[str, str]  # of each split the name of its folder, '' of DATA_PATH itself


class SplitFolders:
    """The folders of DATA_PATH: which are splits, and which are classes, by the only one of two layouts that fits.

    A folder that contains only a folder of its own name, as unzip makes it, stands for that folder.

    all_classes: DATA.CLASS_FOLDERS: only folders with the names of `SPLIT_NAMES` are splits, all others are classes.
    root: DATA_PATH, or a folder of the same name in it. folders: of each split. 'train' is `root` itself if class
    folders are there. test: the folder of test images, which is in `folders` if it contains folders of classes.
    Raises UserError: `root` cannot be listed, or it is not clear which folders are splits or classes.
    """

    # names: the folders. words: the split whose word is in a name, or 'none'. paths, inside: the folder to read for
    # each of these, and the names (NFC) of the folders in it. bare: those for tests or predictions without folders.
    def __init__(self, given: Path, all_classes: bool = False) -> None:
        self.given, self.all_classes = given, all_classes
        inner_of = Path if all_classes else _pass_doubled
        inner = inner_of(given)
        self.root = inner if FoundFiles(inner).top()[0] else given
        self.names, _ = list_folder(self.root)
        self.words, self.paths, self.inside = dict[str, str](), dict[str, Path](), dict[str, set[str]]()
        for name in self.names:
            word = SPLIT_NAMES.get(name.lower()) if all_classes else word_in(name)
            if word:
                self.words[name] = word
                self.paths[name] = inner_of(self.root / name)
                self.inside[name] = {*map(to_nfc, FoundFiles(self.paths[name]).top()[0])}
        words_of_bare = () if all_classes else ("test", "none")
        self.bare = [name for name, word in self.words.items() if word in words_of_bare and not self.inside[name]]
        fitting = [splits for splits in (self._as_splits(), self._as_classes()) if splits]
        if len(fitting) != 1:
            problem = "it is not clear which folders are classes, or train/, val/ and test/ with class folders"
            raise unclear(given, self.root, problem if self.names else "contains no folders", _is_data_set)
        (self.splits,) = fitting
        self.folders = {split: self.paths[name] if name else self.root for split, name in self.splits.items()}
        named_test = Splits() if all_classes and "" in self.splits.values() else self.named("test")
        self.test = self.folders.get("test") or self.paths.get(named_test.get("test", ""))

    def named(self, split: str) -> Splits:
        return self.choose(split, [name for name in self.words if name.lower() in SPLIT_NAMES])

    def choose(self, split: str, names: Iterable[str]) -> Splits:
        """{split: name}: the only one of `names` with the split's word, or with its name alone; empty without one.

        Raises UserError: several folders.
        """
        found = [name for name in names if self.words[name] == split]
        found = [name for name in found if name.lower() in SPLIT_NAMES] or found
        if len(found) > 1:
            problem = f"which of {list_names(found, _MAX_SHOWN)} is {split}? Rename the others"
            raise unclear(self.given, self.root, problem, _is_data_set)
        return {split: found[0]} if found else {}

    def sharing(self, classes: Collection[str]) -> Splits:
        """The folders of val and test that contain one of the class folders `classes` (NFC)."""
        found = [name for name, inside in self.inside.items() if inside & ({*classes} - {to_nfc(name)})]
        return self.choose("val", found) | self.choose("test", found)

    def unread(self, splits: Splits) -> list[str]:
        """The folders that are neither splits nor classes."""
        used = {*splits.values()}
        if "" not in used:
            return [name for name in self.names if name not in used and name.lower() not in SPLIT_NAMES]
        classes = set[str]().union(*(self.inside[name] for name in used - {""}))
        return [name for name in self.bare if used != {""} and to_nfc(name) not in classes]

    def _as_splits(self) -> Splits | None:
        """{train,val,test}/{cat,dog}, seg_{train,test}/{cat,dog}: a class folder of train is in val or test, too; or
        train/{cat,dog} beside no other images than for tests; or val/{cat,dog} alone, to evaluate it.
        """
        trains = [name for name, word in self.words.items() if word == "train"]
        if train := self.choose("train", [name for name in trains if self.sharing(self.inside[name])]):
            return train | self.named("val") | self.sharing(self.inside[train["train"]])
        val = self.named("val").get("val", "")
        of_classes = [name for name in trains if len(self.inside[name]) >= (1 if name.lower() in SPLIT_NAMES else 2)]
        found = self.choose("train", of_classes) or ({"val": val} if self.inside.get(val) else {})
        if val and "train" in found:
            if len(self.inside[val]) > 1:
                problem = f"{shorten(val)} has none of the class folders of {shorten(found['train'])}"
                raise UserError(f"{self.root}: {problem}; give both the same folders of classes")
            return None
        beside = {*self.names} - {*found.values(), *self.named("test").values(), *self.bare}
        return None if any(has_images(self.root / name) for name in beside) else found

    def _as_classes(self) -> Splits | None:
        """{cat,dog}, perhaps beside {val,test}/{cat,dog} and images to predict. No name is of a split or all images."""
        splits = {"train": ""} | self.sharing({*map(to_nfc, self.names)})
        classes = {*self.names} - {*splits.values(), *self.unread(splits)}
        train = self.named("train").get("train", "")
        is_split = bool(self.inside.get(train))
        if is_split and self.all_classes:
            is_split = bool(self.sharing(self.inside[train]))
        if is_split or not any(self._is_class(name) for name in classes):
            return None
        if self.all_classes:
            return splits
        are_splits = len(self.words) == len(self.names) and (len(self.names) == 1 or len({*self.words.values()}) > 1)
        has_all = len(classes) > 1 and any(map(_ALL_IMAGES.fullmatch, classes))
        return None if are_splits or has_all or any(map(self._is_no_class, classes - {train})) else splits

    def _is_class(self, name: str) -> bool:
        """Whether a folder has images and no name of a split, nor the word train and several folders."""
        is_train = self.words.get(name) == "train" and len(self.inside[name]) > 1
        return name.lower() not in SPLIT_NAMES and not is_train and has_images(self.root / name)

    def _is_no_class(self, name: str) -> bool:
        """Whether a name is of images without labels, or has the word of a split and words as images or set alone."""
        word = self.words.get(name)
        return word == "none" or bool(word and split_of_images(name))

    def read(self, split: str) -> Listing:
        """The images of a split with the labels of the training. A class that the training lacks is an error."""
        folder = self.folders[split]
        train = self.folders.get("train")
        unread = self.unread(self.splits)
        excluded = {self.root: {*self.splits.values(), *unread}}  # of the classes in DATA_PATH itself
        known = None
        if train and folder != train:
            known = {*map(to_nfc, list_folder(train, excluded.get(train, ()))[0])}
        listing = read_class_folders(folder, excluded.get(folder, ()), known)
        listing.notes[:0] = [*self._notes_on_folders(unread), *notes_on_lists(self.root, listing.class_names)]
        return listing

    def _notes_on_folders(self, unread: Sequence[str]) -> Iterator[Note]:
        """The folder of each split, and those that are not read; a training split that is read as a class."""
        if unread or any(name not in (split, "") for split, name in self.splits.items()):
            yield note_on_splits(self.root, self.folders, unread)
        if self.folders.get("train") != self.root:
            return
        if name := self.named("train").get("train"):
            text = f"{self.root / name} is read as a class; if it is the training split, give it as -data_path"
            yield Note("warning", text)


class ClassFolders(Source):
    """One folder per class in the folder of each split, see `SplitFolders`; without val the images are split.

    The split 'all' is all images of DATA_PATH, without test, if it has neither train nor val.
    """

    def __init__(self, data: Data, splitter: Splitter | None = None) -> None:
        super().__init__(data, splitter)
        found = LabelledPaths(data) if data.labels else SplitFolders(self.root, data.class_folders)
        self._found: SplitFolders | LabelledPaths = found
        self._listing = cache(found.read)
        self._error: UserError | None = None

    def read(self, split: str) -> ImageFiles:
        folders = self._found.folders
        is_part = split != "test" and "val" not in folders
        name = "train" if is_part else split
        if isinstance(self._found, SplitFolders) and not (self.numbers.known or self._error):
            listing = self._listing(name if name in folders else next(iter(folders)))
            self._error = _find_error(self._found, listing, trains=split == "train")
        if self._error:  # one error for all splits
            raise self._error
        if name not in folders:
            names = list_names([folder.name for folder in folders.values()])
            raise UserError(f"{self._found.root}: has no folder {name} beside {names}; add it, or choose another split")
        listing = replace(whole := self._listing(name), findings=[*whole.findings], notes=[*whole.notes])
        if split == "train":
            is_given = self.data.labels or self.data.class_folders
            inner = [] if is_given else note_on_inner_classes(listing, self.root)
            cases = suggest_groups(listing, self.data, None, is_part)
            listing.notes += [*inner, *(one for one in cases if not inner or one.kind == "warning")]
        return ImageFiles(split_listing(listing, split, self.splitter) if is_part else listing)

    @classmethod
    def splits_of(cls, data: Data) -> Collection[str]:
        found = cls(data)._found
        return found.folders if "val" in found.folders or found.folders["train"] != found.root else ()

    @classmethod
    def find_test(cls, data: Data) -> tuple[bool, str | None]:
        if not os.path.isdir(data.data_path):
            return False, None
        found = cls(data)._found
        if found.test and "test" not in found.folders:
            of_class = "image to which DATA.LABELS gives a class" if data.labels else "folder with the name of a class"
            return without_labels(found.test, f"has no {of_class}")
        return "test" in found.folders, None


def _pass_doubled(folder: Path) -> Path:
    """The folder, or the folder of the same name in it if that is all: `x/x`, as unzip makes it."""
    for _ in range(_MAX_DOUBLED):
        found, name = FoundFiles(folder), os.path.basename(os.path.abspath(folder))
        folders, files = found.top()
        is_doubled = [to_nfc(one).casefold() for one in folders] == [to_nfc(name).casefold()]
        if not is_doubled or any(found.is_image(folder, file) for file in files):
            break
        folder /= folders[0]
    return folder


def _wrong_level(listing: Listing, all_classes: bool) -> str | None:
    """The reason why the folders of a listing may not be the classes: parts of one data set differ in a number, folders
    of patients, variants, splits or copies contain folders of the same names, or one folder contains the classes.

    all_classes: DATA.CLASS_FOLDERS, which confirms the classes unless there is one folder alone.
    """
    if any(isinstance(one, UserError) for one in listing.findings):  # a folder that cannot be listed
        return None
    levels = Levels(listing.sizes)
    if len(listing.class_names) == 1 or (len(levels.sizes) == 1 and listing.findings):
        return "only one folder contains images"
    if all_classes:
        return None
    return _as_parts(levels) or _as_variants(levels, {*listing.class_names}) or _as_outer_folder(levels)


def _as_parts(levels: Levels) -> str | None:
    stems = {re.sub(r"\d+", "", name) for name in levels.sizes}
    if len(levels.sizes) > 1 and len(stems) == 1 and _PART.search(stems.pop()):
        return "the folders differ in a number only, as parts of a data set do"
    return None


def _as_variants(levels: Levels, names: set[str]) -> str | None:
    of_folders = Counter(names)
    for name, inside in levels.inside.items():
        found = {to_nfc(path.partition("/")[0]) for path in levels.below[name]}
        if len(inside) > 1:
            found |= inside
        of_folders.update(found - {"", to_nfc(name)})
    recurring = {name for name, count in of_folders.items() if count > 1}
    if len(recurring) > 1 or recurring & names:
        return f"{list_names(sorted(recurring), _MAX_SHOWN)} are in several folders, as of variants, patients or splits"
    return None


def _as_outer_folder(levels: Levels) -> str | None:
    nested = [name for name, inside in levels.inside.items() if len(inside) > 1 and "" not in levels.below[name]]
    for name in nested:
        is_main = len(nested) == 1 and 10 * levels.sizes[name] >= 9 * levels.sizes.total()
        if is_main or all(map(word_in, levels.inside[name])):
            return f"the classes may be in {shorten(name)}"
    return None


def _find_error(found: SplitFolders, listing: Listing, trains: bool) -> UserError | None:
    """The error of folders that may not be the classes."""
    if problem := _wrong_level(listing, found.all_classes):
        return unclear(found.given, listing.root, problem, _is_data_set)
    return _other_labels(found, listing) if trains and not found.all_classes else None


def _other_labels(found: SplitFolders, listing: Listing) -> UserError | None:
    """The error of a table with other labels than the folders, with the flags for each."""
    class_of = {path: path.partition("/")[0] for path in listing.paths}
    for table in tables_beside(found.root, listing.root, [*class_of]):
        pairs = {(class_of[path], label) for path, label in table.labels.items()}
        if not len(pairs) == len(dict(pairs)) == len({*table.labels.values()}):  # not only other names of the classes
            break
    else:
        return None
    path, label = next(iter(table.labels.items()))
    question = f"are the folders the classes, or is {shorten(path)} {shorten(label)}, as in {table.file}"
    confirmed = found.given
    if SplitFolders(confirmed, all_classes=True).folders != found.folders:
        confirmed = listing.root
    folders = f"-data_path={quote(str(confirmed))} -opts DATA.CLASS_FOLDERS=true trains on the folders"
    names = list_names(listing.class_names, _MAX_SHOWN)
    return UserError(f"{listing.root}: {question}? {table.advice}; {folders}, {names}")


def _is_data_set(folder: Path) -> bool:
    try:
        found = SplitFolders(folder)
        listing = found.read("train") if "train" in found.folders else None
        if listing is None or listing.findings or _wrong_level(listing, False):
            return False
        return not _other_labels(found, listing)
    except UserError:
        return False
