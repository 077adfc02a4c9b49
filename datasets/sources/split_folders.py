"""The data set `folder`: which folders of DATA_PATH are splits, and which are classes. The tree decides."""

import os
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache
from itertools import chain, islice
from pathlib import Path
from shlex import quote

from configs.schema import Data
from configs.yaml_io import shorten
from datasets.decoding.images import IMAGE_EXTENSIONS
from datasets.sources.class_folders import FoundFiles, has_images, list_folder, read_class_folders
from datasets.sources.groups import IDENTIFIER, suggest_groups
from datasets.sources.labels import LabelledPaths, advise_labels, note_on_inner_classes
from datasets.sources.names import SPLIT_NAMES, SPLIT_WORD, list_names, split_of, word_in
from datasets.sources.samples import ImageFiles, Listing
from datasets.sources.shared_arrays import to_nfc
from datasets.sources.source import Source, without_labels
from datasets.sources.split import Splitter, split_listing
from datasets.sources.tables import TABLE_SUFFIXES
from utils.errors import UserError
from utils.notes import Note

_NEUTRAL = re.compile(r"[\W\d_]|set|images?|imgs?|data|files?|photos?|pictures?|folder", re.IGNORECASE)
_PART = re.compile(r"(?i)(?<![a-z])(images?|imgs?|data|set|part|batch|chunk|fold|split|folder)s?(?![a-z])")
_ALL_IMAGES = re.compile("(?i)(all|jpe?g|original|png|raw)?[ _-]*(images?|imgs?)")
_SUBMISSION = re.compile("(?i)submission|sample_?sub")  # an example without labels
_PLACES_OF_LISTS = ("", "..", "../meta", "../labels", "../val")
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
        self.root = inner if FoundFiles(inner := inner_of(given)).top()[0] else given
        self.names, _ = list_folder(self.root)
        words = {name: SPLIT_NAMES.get(name.lower()) if all_classes else word_in(name) for name in self.names}
        self.words = {name: word for name, word in words.items() if word}
        self.paths = {name: inner_of(self.root / name) for name in self.words}
        self.inside = {name: {*map(to_nfc, FoundFiles(path).top()[0])} for name, path in self.paths.items()}
        of_tests = [] if all_classes else [name for name, word in self.words.items() if word in ("test", "none")]
        self.bare = [name for name in of_tests if not self.inside[name]]
        fitting = [splits for splits in (self._as_splits(), self._as_classes()) if splits]
        if len(fitting) != 1:
            problem = "it is not clear which folders are classes, or train/, val/ and test/ with class folders"
            raise unclear(given, self.root, problem if self.names else "contains no folders")
        (self.splits,) = fitting
        self.folders = {split: self.paths[name] if name else self.root for split, name in self.splits.items()}
        named_test = {} if all_classes and "" in self.splits.values() else self.named("test")
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
            raise unclear(self.given, self.root, problem)
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
        is_split = self.sharing(self.inside[train]) if train and self.all_classes else self.inside.get(train)
        others = [name for name in classes if name.lower() not in SPLIT_NAMES]
        others = [name for name in others if self.words.get(name) != "train" or len(self.inside[name]) < 2]
        if is_split or not any(has_images(self.root / name) for name in others):
            return None
        of_words = {name: self.words[name] for name in classes & self.words.keys() - {train}}
        are_bare = [word == "none" or not _NEUTRAL.sub("", SPLIT_WORD.sub("", name)) for name, word in of_words.items()]
        are_splits = self.words.keys() == {*self.names} and (len(self.names) == 1 or len({*self.words.values()}) > 1)
        has_all = len(classes) > 1 and any(map(_ALL_IMAGES.fullmatch, classes))
        return splits if self.all_classes or not (any(are_bare) or are_splits or has_all) else None

    def read(self, split: str) -> Listing:
        """The images of a split with the labels of the training. A class that the training lacks is an error."""
        folder, train, unread = self.folders[split], self.folders.get("train"), self.unread(self.splits)
        excluded = {self.root: {*self.splits.values(), *unread}}  # of the classes in DATA_PATH itself
        known = {*map(to_nfc, list_folder(train, excluded.get(train, ()))[0])} if train and folder != train else None
        listing = read_class_folders(folder, excluded.get(folder, ()), known)
        notes = list[Note]()
        if unread or any(name not in (split, "") for split, name in self.splits.items()):
            paths = [f"{split} is {str(path.relative_to(self.root))!r}" for split, path in self.folders.items()]
            hints = [f"-predict {quote(str(self.root / name))} labels images" for name in unread if name in self.bare]
            not_read = [f"not read: {list_names(unread)}"] if unread else []
            notes.append(Note("log", f"{self.root}: {'; '.join([', '.join(paths), *not_read, *hints[:1]])}"))
        if train == self.root and (name := self.named("train").get("train")):
            text = f"{self.root / name} is read as a class; if it is the training split, give it as -data_path"
            notes.append(Note("warning", text))
        files = chain.from_iterable(sorted((self.root / place).glob("*.[tc][xs][tv]")) for place in _PLACES_OF_LISTS)
        of_splits = [path for path in files if word_in(path.stem) in {*SPLIT_NAMES.values()}]
        if lists := [os.path.normpath(path) for path in of_splits if _names_images(path, listing.class_names)]:
            advice = _advise_lists(Path(lists[0]).parent) + _other_data(self.root)
            text = f"the folders decide, not read: {', '.join(lists[:_MAX_SHOWN])}; {advice}"
            notes.append(Note("warning", text))
        listing.notes[:0] = notes
        return listing


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
        if not (self.data.labels or self.numbers.known or self._error):
            listing = self._listing(name if name in folders else next(iter(folders)))
            if problem := _wrong_level(listing, self.data.class_folders):
                self._error = unclear(self.root, listing.root, problem)
        if self._error:  # one error for all splits
            raise self._error
        if name not in folders:
            names = list_names([folder.name for folder in folders.values()])
            raise UserError(f"{self._found.root}: has no folder {name} beside {names}; add it, or choose another split")
        listing = replace(whole := self._listing(name), findings=[*whole.findings], notes=[*whole.notes])
        if split == "train":
            suggestions = suggest_groups(listing, self.data, None, is_part)
            if not (suggestions or self.data.labels or self.data.groups):
                suggestions = note_on_inner_classes(listing)
            listing.notes += suggestions
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


class _Levels:
    """For each folder with images: its number of images, the paths `below` it to folders with images, their common path
    `tops`, and the names (NFC) of the folders `inside` this.
    """

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self.sizes, self.below = Counter[str](), defaultdict[str, list[str]](list)
        for folder, number in sizes.items():
            name, _, path = folder.partition("/")
            self.sizes[name] += number
            self.below[name].append(path)
        self.tops = {name: os.path.commonpath(paths) for name, paths in self.below.items()}
        self.inside = {
            name: {to_nfc(path.removeprefix(self.tops[name]).strip("/").partition("/")[0]) for path in paths} - {""}
            for name, paths in self.below.items()
        }


def _wrong_level(listing: Listing, all_classes: bool) -> str | None:
    """The reason why the folders of a listing may not be the classes: parts of one data set differ in a number, folders
    of patients, variants, splits or copies contain folders of the same names, or one folder contains the classes.

    all_classes: DATA.CLASS_FOLDERS, which confirms the classes unless there is one folder alone.
    """
    levels, names = _Levels(listing.sizes), {*listing.class_names}
    if any(isinstance(one, UserError) for one in listing.findings):  # a folder that cannot be listed
        return None
    if len(listing.class_names) == 1 or (len(levels.sizes) == 1 and listing.findings):
        return "only one folder contains images"
    if all_classes:
        return None
    stems = {re.sub(r"\d+", "", name) for name in levels.sizes}
    if len(levels.sizes) > 1 and len(stems) == 1 and _PART.search(stems.pop()):
        return "the folders differ in a number only, as parts of a data set do"
    of_folders, nested = Counter(names), list[str]()
    for name, inside in levels.inside.items():
        first = {to_nfc(path.partition("/")[0]) for path in levels.below[name]}
        of_folders.update((first | inside if len(inside) > 1 else first) - {"", to_nfc(name)})
        nested += [name] if len(inside) > 1 and "" not in levels.below[name] else []
    recurring = {name for name, count in of_folders.items() if count > 1}
    if len(recurring) > 1 or recurring & names:
        return f"{list_names(sorted(recurring), _MAX_SHOWN)} are in several folders, as of variants, patients or splits"
    for name in nested:
        is_main = len(nested) == 1 and 10 * levels.sizes[name] >= 9 * levels.sizes.total()
        if is_main or all(map(word_in, levels.inside[name])):
            return f"the classes may be in {shorten(name)}"
    return None


def unclear(given: Path, root: Path, problem: str) -> UserError:
    """The error that names the folders and files in `root`, and the flags that say how they are read.

    given: DATA_PATH.
    """
    found = FoundFiles(root)
    if not found.images_in(root) and found.unread.found:
        return found.lacks_images("")
    levels = _Levels({folder: number for folder, number in found.sizes.items() if folder})
    seen = [f"{found.sizes['']} images"] if found.sizes[""] else []
    seen += [f"{shorten(name)} ({number} images)" for name, number in levels.sizes.most_common(_MAX_SHOWN)]
    seen += [f"{len(levels.sizes) - _MAX_SHOWN} more folders"] if len(levels.sizes) > _MAX_SHOWN else []
    seen += [f"{number} {kind}" for kind, number in found.others.most_common(_MAX_SHOWN)]
    kinds = Counter(IDENTIFIER.sub("", name) for name in levels.sizes)  # one of several patients is no data set
    candidates = (
        root / name / levels.tops[name]
        for name, inside in sorted(levels.inside.items())
        if len(inside) > 1 and kinds[IDENTIFIER.sub("", name)] == 1
        if len(levels.sizes) == 1 or word_in(name) in (None, "train")
    )
    paths = [f"-data_path={quote(str(path))}" for path in islice(filter(_is_data_set, candidates), _MAX_SHOWN)]
    advice = f"if it is the data set, give {' or '.join(paths)}" if paths else advise_labels(given) or _other_data(root)
    if len(levels.sizes) > 1 and not {*map(str.lower, levels.sizes)} <= SPLIT_NAMES.keys():
        advice += "; if each folder is a class, -opts DATA.CLASS_FOLDERS=true"
    return UserError(f"{root}: {problem}: {', '.join(seen) or 'it is empty'}; {_advise_lists(root)}{advice}")


def _is_data_set(folder: Path) -> bool:
    try:
        found = SplitFolders(folder)
        listing = found.read("train") if "train" in found.folders else None
    except UserError:
        return False
    return listing is not None and not (listing.findings or _wrong_level(listing, False))


def _names_images(file: Path, class_names: Collection[str]) -> bool:
    """Whether the first lines name images or classes: `requirements-dev.txt` beside the data is no list."""
    with suppress(OSError), open(file, encoding="utf-8-sig", errors="replace") as lines:
        words = {*re.split(r"[\s,;|\"'/\\]+", to_nfc(lines.read(4096)))}
        return not words.isdisjoint(class_names) or any(word.lower().endswith(IMAGE_EXTENSIONS) for word in words)
    return False


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


def has_class_folders(root: Path) -> bool:
    """Tells whether `root`, or the only folder with images in it, contains two folders with images."""
    found = list(islice(filter(has_images, (root / name for name in FoundFiles(root).top()[0])), 2))
    return len(found) > 1 or (len(found) == 1 and has_class_folders(found[0]))
