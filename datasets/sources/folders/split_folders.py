"""The data set `folder`: which folders of DATA_PATH are splits, and which are classes. The tree decides."""

import os
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
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
from datasets.sources.path_words import (
    SPLIT_NAMES,
    SPLIT_WORD,
    any_word_in,
    hidden_splits,
    split_of_images,
    with_evaluation,
    word_in,
)
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
_OF_IMAGES = re.compile("(?i)(?<![a-z])(images?|imgs?)(?![a-z])")
_MAX_SHOWN = 3  # folders and names in an error


class Folder:
    """A folder in DATA_PATH, or itself. word: the split in its name, 'none' for images without labels, '' without one.

    path: the folder to read. is_named: the whole name is of a split. inside: the names (NFC) of the folders in it.
    """

    def __init__(self, outer: Path, name: str = "", word: str = "train") -> None:
        self.name = name
        self.word = word
        self.is_named = name.lower() in SPLIT_NAMES
        self.path = outer / name
        self.inside = frozenset[str]()  # of a folder with a word
        if word:
            self.path = _pass_outer(self.path)
            self.inside = frozenset(map(to_nfc, FoundFiles(self.path).top()[0]))


Splits = dict[str, Folder]


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
    of_each = [set(map(to_nfc, paths)) - {""} for paths in levels.below.values()]
    in_each = set.intersection(*of_each) if len({*map(len, of_each)}) > 1 else set()  # site_{a,b}/ill site_a/well
    if len(recurring) > 1 or recurring & names or in_each:
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


def _as_splits(levels: Levels, listing: ImageFiles) -> str | None:
    """Folders in them have the word of val or test: images/{cat,dog}/{train,test} beside other folders; or all of them
    have such words.
    """
    outer = 0 if all(map(any_word_in, levels.sizes)) else 1
    held_out = hidden_splits([folder.split("/")[outer:] for folder in listing.sizes], -1)
    return f"the folders {list_names(sorted(held_out), _MAX_SHOWN)} in them may be of test or val" if held_out else None


def _as_split(levels: Levels, listing: ImageFiles) -> str | None:
    """A folder of val or test in the folder of train."""
    held_out = [name for name in levels.sizes if split_of_images(name) in ("val", "test")]
    return f"{list_names(held_out, _MAX_SHOWN)} may be of test or val" if held_out else None


DOUBTS = (_as_lone_folder, _as_parts, _as_variants, _as_letters, _as_outer_folder, _as_splits, _as_split)


class SplitFolders:
    """The folders of DATA_PATH: which are splits, and which are classes, by the only one of two layouts that fits.

    A folder that contains only a folder of its own name, as unzip makes it, stands for that folder. With
    DATA.CLASS_FOLDERS, folders with the names of `SPLIT_NAMES` are splits, and folders with the words of splits if they
    have the same folders in them; all others are classes.

    root: DATA_PATH, or a folder of the same name in it. folders: of each split. 'train' is `root` itself if class
    folders are there. test: the folder of test images, which is in `folders` if it contains folders of classes.
    Raises UserError: `root` cannot be listed, or it is not clear which folders are splits or classes.
    """

    # all: the folders in `root`. marked: the ones with the word of a split.
    def __init__(self, given: Path, is_confirmed: bool) -> None:
        self.given = given
        self.is_confirmed = is_confirmed
        list_folder(given)  # raises errors about the folder as it is given
        self.top = Folder(given)
        self.root = self.top.path
        names, _ = list_folder(self.root)
        words = with_evaluation({name: word_in(name) for name in names})
        self.all = [Folder(self.root, name, word) for name, word in words.items()]
        self.marked = [folder for folder in self.all if folder.word]
        if is_confirmed and not _are_splits(self.marked):
            self.marked = [folder for folder in self.marked if folder.is_named]
            for folder in {*self.all} - {*self.marked}:
                folder.word = ""
        fitting = [*filter(None, (self._as_splits(), self._as_classes()))]
        if len(fitting) != 1:
            problem = "it is not clear which folders are classes, or train/, val/ and test/ with class folders"
            raise self.unclear(problem if names else "contains no folders")
        (self.splits,) = fitting
        self.folders = {split: folder.path for split, folder in self.splits.items()}
        test = (self.named("test") | self.splits).get("test")
        self.test = test and test.path

    def unclear(self, problem: str, root: Path | None = None) -> UserError:
        return unclear(self.given, root or self.root, problem, self.is_confirmed)

    def named(self, split: str) -> Splits:
        return self.choose(split, [folder for folder in self.marked if folder.is_named])

    def choose(self, split: str, folders: Iterable[Folder]) -> Splits:
        """The only one of `folders` with the split's word, or with its name alone; empty without one.

        Raises UserError: several folders.
        """
        found = [folder for folder in folders if folder.word == split]
        found = [folder for folder in found if folder.is_named] or found
        if len(found) > 1:
            names = list_names([folder.name for folder in found], _MAX_SHOWN)
            raise self.unclear(f"which of {names} is {split}? Rename the others")
        return {folder.word: folder for folder in found}

    def sharing(self, train: Folder) -> Splits:
        """The folders of val and test that contain one of the class folders in `train`, perhaps in other case."""
        found = []
        for one in self.marked:
            classes = set(map(str.casefold, train.inside - {to_nfc(one.name)}))
            if not classes.isdisjoint(map(str.casefold, one.inside)):
                found.append(one)
        return self.choose("val", found) | self.choose("test", found)

    def bare(self) -> list[Folder]:
        """The folders of images for tests or predictions, without folders in them."""
        if self.is_confirmed:
            return []
        return [folder for folder in self.marked if folder.word in ("test", "none") and not folder.inside]

    def unread(self, splits: Splits) -> list[Folder]:
        """The folders that are neither splits nor classes."""
        if self.top not in splits.values():
            return [folder for folder in self.all if folder not in splits.values()]
        classes = frozenset[str]().union(*(folder.inside for folder in splits.values() if folder != self.top))
        return [folder for folder in self.bare() if len(splits) > 1 and to_nfc(folder.name) not in classes]

    def _as_splits(self) -> Splits:
        """{train,val,test}/{cat,dog}, seg_{train,test}/{cat,dog}: a class folder of train is in val or test, too; or
        train/{cat,dog} beside no other images than for tests; or val/{cat,dog} alone, to evaluate it.

        Empty if it does not fit.
        """
        trains = [folder for folder in self.marked if folder.word == "train"]
        found = self.choose("train", filter(self.sharing, trains))
        if found:
            return found | self.named("val") | self.sharing(found["train"])
        found = self.choose("train", [folder for folder in trains if len(folder.inside) >= 2 - folder.is_named])
        found = found or self.named("val")
        if not any(folder.inside for folder in found.values()):
            return {}
        used = [*(found | self.named("test")).values(), *self.bare()]
        beside = [folder for folder in self.all if folder not in used]
        return {} if any(has_images(self.root / folder.name) for folder in beside) else found

    def _as_classes(self) -> Splits:
        """{cat,dog}, perhaps beside {val,test}/{cat,dog} and images to predict; empty if it does not fit."""
        splits = {"train": self.top} | self.sharing(self.top)
        used = [*splits.values(), *self.unread(splits)]
        classes = [folder for folder in self.all if folder not in used]
        train = self.named("train").get("train", self.top)
        fits = any(map(self._is_class, classes)) and not self._has_splits(train, classes)
        return splits if fits else {}

    def _has_splits(self, train: Folder, classes: Sequence[Folder]) -> bool:
        """Whether splits, or images that are no classes, are among `classes`. train: of this name, or the root."""
        is_split = train != self.top and bool(train.inside)
        if self.is_confirmed:
            is_split = is_split and bool(self.sharing(train))
            return is_split or not all(folder.is_named for folder in self.marked)
        have_words = len(self.marked) == len(self.all) > 1
        rests = [SPLIT_WORD.sub("", folder.name) for folder in classes if folder.word]  # of box_train, box_test: equal
        if is_split or have_words or len({*rests}) < len(rests):
            return True
        of_images = [one for one in classes if _OF_IMAGES.search(one.name) and not FoundFiles(one.path).top()[0]]
        is_whole = len(classes) > 1 and any(_ALL_IMAGES.fullmatch(folder.name) for folder in classes)
        if is_whole or len(of_images) > 1:  # images_original, images_compressed
            return True
        # Without labels, or with the word of a split and words as images or set alone
        return any(one.word == "none" or split_of_images(one.name) for one in classes if one != train)

    def _is_class(self, folder: Folder) -> bool:
        """Whether a folder has images and no name of a split, nor the word train and several folders."""
        is_train = folder.word == "train" and len(folder.inside) > 1
        return not (folder.is_named or is_train) and has_images(self.root / folder.name)

    def read(self, split: str) -> ImageFiles:
        """The images of a split with the labels of the training. A class that the training lacks is an error."""
        folder = self.folders[split]
        train = self.folders.get("train", folder)
        unread = [one.name for one in self.unread(self.splits)]
        excluded = list[str]()
        if train == self.root:
            excluded = [*unread, *(one.name for one in self.splits.values())]
        known = None
        if folder != train:
            known = [*map(to_nfc, list_folder(train, excluded)[0])]
        listing = read_class_folders(folder, excluded, known)
        listing.notes[:0] = [*self._notes_on_folders(unread), *notes_on_lists(self.root, listing, self.given, split)]
        return listing

    def error_of(self, listing: ImageFiles, trains: bool) -> UserError | None:
        """The error of folders that may not be the classes, or, in a training, of a table with other labels.

        listing: of a split that has been read.
        """
        if not any(isinstance(one, UserError) for one in listing.findings):  # all folders could be listed
            levels = Levels(listing.sizes)
            for doubt in DOUBTS[:1] if self.is_confirmed else DOUBTS:
                problem = doubt(levels, listing)
                if problem and not (doubt in (_as_parts, _as_split) and _have_same_folders([*self.splits.values()])):
                    return self.unclear(problem, listing.root)
        if self.is_confirmed or not trains:
            return None
        table = table_of_other_labels(listing, self.root)
        return table and table.or_folders(listing, self.given)

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
        else:
            self._found = SplitFolders(self.root, data.class_folders)
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
        if isinstance(found, SplitFolders) and not (self.wanted.class_names or self._error):
            self._error = found.error_of(listing, trains)
        if self._error:  # one error for all splits
            raise self._error
        if trains and self.wanted.suggests:
            questions = []
            if not (self.data.labels or self.data.class_folders):  # which folders are the classes
                questions = note_on_inner_classes(listing, self.root)
            listing.notes += questions or suggest_groups(listing, self.data, None, self.uncut is not None)
        return listing

    def find_test(self) -> tuple[bool, str | None]:
        found = self._found
        if found.test and "test" not in found.folders:
            return without_labels(found.test, "has no images of the classes")
        return "test" in found.folders, None


def _are_splits(marked: Sequence[Folder]) -> bool:
    """Whether these are a train and other splits of the same folders."""
    words = [folder.word for folder in marked]
    are_apart = len({*words}) == len(words) and "none" not in words
    return "train" in words and are_apart and _have_same_folders(marked)


def _have_same_folders(splits: Sequence[Folder]) -> bool:
    """Whether splits have the same folders: of classes, as a patient or an item is in one."""
    insides = {folder.inside for folder in splits}
    return len(splits) > 1 and len(insides) == 1 and len(splits[0].inside) > 1


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
