"""The data set `folder`: which folders of DATA_PATH are splits, and which are classes. The tree decides."""

import os
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from itertools import chain, islice, product
from pathlib import Path
from shlex import quote
from typing import NamedTuple

from configs.schema import Data
from configs.yaml_io import shorten
from datasets.decoding.images import IMAGE_EXTENSIONS
from datasets.sources.class_folders import class_folders_in, has_images, other_form, read_class_folders
from datasets.sources.image_files import ImageFiles, Listing, is_broken_link
from datasets.sources.labels import IDENTIFIER, LabelledPaths, advise_labels, notes_on_folders
from datasets.sources.names import MASK, SPLIT_NAMES, SPLIT_WORD, find_split_names, list_names, word_in
from datasets.sources.shared_arrays import to_nfc
from datasets.sources.source import Source, without_labels
from datasets.sources.split import split_listing
from utils.errors import Finding, UserError, did_you_mean
from utils.notes import Note

_NEUTRAL = re.compile(r"[\W\d_]|set|images?|imgs?|data|files?|photos?|pictures?|folder", re.IGNORECASE)
_LISTS = ["".join(parts) for parts in product(("", "../", "../meta/"), SPLIT_NAMES, ("_list.txt", ".txt", ".csv"))]
_LISTS += ["../labels/train1.txt", "../train_test_split.txt", "../val/val_annotations.txt"]  # DTD, CUB, Tiny ImageNet
_PART = re.compile(r"(?i)(?<![a-z])(images?|imgs?|data|set|part|batch|chunk|fold|split|folder)s?(?![a-z])")
_ALL_IMAGES = re.compile("(?i)(all|jpe?g|original|png|raw)?[ _-]*(images?|imgs?)")
_ALL_CLASSES = "-opts DATA.CLASS_FOLDERS=true"
_MAX_TRIED = 10  # folders in which images are looked for
_MAX_SHOWN = 3  # folders and names in an error


class SplitFolders:
    """The folders of DATA_PATH: which are splits, and which are classes, by their names and their content.

    A folder whose name contains the word of a split is one if it has a class folder of the training: of a folder train,
    else of DATA_PATH. Without such a folder, train is the training split if no other folder contains images with
    labels. A folder that contains only a folder of its own name, as unzip makes it, stands for that folder.

    all_classes: DATA.CLASS_FOLDERS: only folders with the names of `SPLIT_NAMES` are splits, all others are classes.
    root: DATA_PATH, or a folder of the same name in it. folders: of each split. 'train' is `root` itself if class
    folders are there, without the folders `excluded`. test: the folder of test images, which is in `folders` if it
    contains folders of classes.
    Raises UserError: `root` cannot be listed or contains no folders; it is not clear whether folders are splits.
    """

    # _named: the folders with the name of a split, see `find_split_names`. _word_of: those with the word of a split, or
    # 'none', in the name. _folder_of, _within: the folder to read for each of them, and the names of the folders in it
    # (NFC). _unlabelled: the ones that are for tests or predictions and contain no folder.
    def __init__(self, given: Path, all_classes: bool = False) -> None:
        self.findings, self.notes = list[Finding](), list[Note]()
        doubled = given if all_classes else _pass_doubled(given)
        self.root, self._all_classes = doubled if _folders_in(doubled) else given, all_classes
        self._names = class_folders_in(self.root)
        self._named = find_split_names(self._names, self.root)
        self._word_of = {name: split for split, name in self._named.items()}
        if not all_classes:
            self._word_of |= {name: word for name in self._names if (word := word_in(name))}
        folders = {name: self.root / name for name in self._word_of}
        self._folder_of = folders if all_classes else {name: _pass_doubled(one) for name, one in folders.items()}
        self._within = {name: _folders_in(folder) for name, folder in self._folder_of.items()}
        bare = [name for name, inside in self._within.items() if not inside and not all_classes]
        self._unlabelled = [name for name in bare if self._word_of[name] in ("test", "none")]
        chosen = self._find_splits()
        self.folders = {split: self._folder_of[name] for split, name in chosen.items()}
        if chosen:
            unread = [name for name in self._names if name not in {*chosen.values(), *self._named.values()}]
        else:
            chosen = self._splits_with(set(map(to_nfc, self._names)))
            self.folders = {"train": self.root} | {split: self._folder_of[name] for split, name in chosen.items()}
            classes = set[str]().union(*(self._within[name] for name in chosen.values()))
            unread = [name for name in self._unlabelled if chosen and to_nfc(name) not in classes]
            self.findings += self._questions({*chosen.values(), *unread})
            if train := self._named.get("train"):
                beside = list_names([name for name in self._names if name not in {train, *chosen.values()}])
                fix = "if it is the training split, give it as -data_path"
                self.notes.append(Note("warning", f"{self.root / train} is read as a class, beside {beside}; {fix}"))
        paths = {split: str(folder.relative_to(self.root)) for split, folder in self.folders.items()}
        if renamed := [f"{split} is {path!r}" for split, path in paths.items() if path not in (split, ".")]:
            self.notes.append(Note("log", f"{self.root}: {', '.join(renamed)}"))
        if unread:
            unlabelled = next((name for name in unread if name in self._unlabelled), None)
            hint = f"; -predict {quote(str(self.root / unlabelled))} labels images" if unlabelled else ""
            self.notes.append(Note("log", f"{self.root}: not read: {list_names(unread)}{hint}"))
        if lists := [os.path.normpath(path) for path in (self.root / name for name in _LISTS) if path.is_file()]:
            use = "-dataset=torchvision/NAME has official splits, -dataset=csv tables, -dataset=imagenet2012 *_list.txt"
            self.notes.append(Note("warning", f"{', '.join(lists[:_MAX_SHOWN])}: not read, the folders decide; {use}"))
        self.excluded = {*chosen.values(), *unread}
        is_class = all_classes and self.folders.get("train") == self.root
        named_test = self.root / self._named["test"] if "test" in self._named and not is_class else None
        self.test = self.folders.get("test") or named_test

    def read(self, split: str) -> Listing:
        """The images of a split with the labels of the training. A class that the training lacks is an error."""
        if split not in self.folders:
            names = list_names([folder.name for folder in self.folders.values()])
            raise UserError(f"{self.root}: has no folder {split} beside {names}; add it, or choose another split")
        folder, train = self.folders[split], self.folders.get("train")
        known = None
        if train and folder != train:
            known = set(map(to_nfc, class_folders_in(train, self.excluded if train == self.root else ())))
        listing = read_class_folders(folder, self.excluded if folder == self.root else (), known)
        if known is not None:
            present = set(map(to_nfc, class_folders_in(folder)))
            if not present & known:
                fix = other_form(folder) or "give its class folders the names of the training's"
                held_out = f"-data_path={quote(str(train))} holds a part of the training images out"
                raise UserError(f"{folder}: has none of the class folders of {train}; {fix}; {held_out}")
            listing.findings += [
                f"{self.root}: class folder {name!r} is in {split}, not in train; add or remove it"
                f"{did_you_mean(name, known - present)}"
                for name in sorted(present - known)
            ]
        listing.findings += self.findings
        listing.notes[:0] = self.notes
        return listing

    def _find_splits(self) -> dict[str, str]:
        """The name of the folder of each split; empty if the class folders are in `root`."""
        trains = [name for name, word in self._word_of.items() if word == "train"]
        with_others = [name for name in trains if self._splits_with(self._within[name])]
        chosen = self._choose("train", with_others) or self._find_lone_training(trains)
        if train := chosen.get("train"):
            chosen |= {"val": self._named["val"]} if "val" in self._named else {}  # perhaps without a class of train
            chosen |= self._splits_with(self._within[train])
        return chosen

    def _splits_with(self, classes: set[str]) -> dict[str, str]:
        """The names of the folders of val and test that contain one of the class folders `classes` (NFC)."""
        found = [name for name, inside in self._within.items() if inside & (classes - {to_nfc(name)})]
        return self._choose("val", found) | self._choose("test", found)

    def _find_lone_training(self, trains: list[str]) -> dict[str, str]:
        """As `_find_splits`, if no folder of val or test has a class folder of the training."""
        train, others = self._named.get("train", ""), set(self._names)
        candidates = [train] if self._within.get(train) else [name for name in trains if len(self._within[name]) > 1]
        if not candidates and {"train", "val"}.isdisjoint(self._named):
            return {}
        others -= {*candidates, *self._named.values(), *self._unlabelled}
        beside = [name for name in sorted(others) if has_images(self.root / name, deep=True)]
        if not beside:
            return self._choose("train", candidates) or {of: one for of, one in self._named.items() if of != "test"}
        if train in candidates and not self._all_classes:
            raise UserError(
                f"{self.root}: is {train} the training split or a class, beside {list_names(beside)}? Give "
                f"-data_path={quote(str(self.root / train))} for the split; if it is a class: {_ALL_CLASSES}"
            )
        return {}

    def _questions(self, known: Collection[str]) -> list[str]:
        """Errors about folders beside class folders that may be classes or other images, except `known`."""
        if self._all_classes:
            return []
        plain = {name for name in self._word_of if not _NEUTRAL.sub("", SPLIT_WORD.sub("", name))}
        plain |= {*self._named.values(), *(name for name, word in self._word_of.items() if word == "none")}
        if len(self._word_of) == len(self._names) and len(set(self._word_of.values())) > 1:
            plain = set(self._names)
        names = sorted(plain - {self._named.get("train", ""), *known})
        problem = f"{self.root}: is {list_names(names, _MAX_SHOWN)} a class, or are these other images or a split"
        fix = f"move the folders of all classes to {self.root / 'train'}; if it is a class: {_ALL_CLASSES}"
        return [f"{problem}? Then {fix}"] if names else []

    def _choose(self, split: str, names: list[str]) -> dict[str, str]:
        """{split: name}: the usual name, else the only one of `names` for this split; empty without one."""
        found = [name for name in names if self._word_of[name] == split]
        if self._named.get(split) in found:
            return {split: self._named[split]}
        if len(found) > 1:
            raise UserError(f"{self.root}: {list_names(found)}: which one is {split}? Rename it {split}")
        return {split: found[0]} if found else {}


class ClassFolders(Source):
    """One folder per class in the folder of each split, see `SplitFolders`; without val the images are split.

    The split 'all' is all images of DATA_PATH, without test, if it has neither train nor val.
    """

    def read(self, split: str) -> ImageFiles:
        found = self._found
        is_part = split != "test" and "val" not in found.folders
        with _advice(self.data):
            listing = found.read("train" if is_part else split)
        if listing.findings and len(listing.sizes) == 1 and (advice := advise_labels(self.root)):
            listing.findings = [f"{listing.root}: the images are in {next(iter(listing.sizes))} alone; {advice}"]
        if not (self.data.labels or self.data.groups) and split == "train":
            listing.notes += notes_on_folders(listing)
        self._read[listing.root] = listing
        return ImageFiles(split_listing(listing, split, self.splitter) if is_part else listing)

    @cached_property
    def _found(self) -> SplitFolders | LabelledPaths:
        return _find(self.data)

    @cached_property
    def _read(self) -> dict[Path, Listing]:
        return {}

    def check_classes(self) -> None:
        with os.scandir(self._found.root) as entries:
            links = sorted(one.path for one in entries if one.is_symlink() and not one.name.endswith(IMAGE_EXTENSIONS))
        if broken := next(filter(is_broken_link, links), None):
            fix = "restore the folder, or remove the link"
            raise UserError(f"{broken}: is a broken link, to {os.readlink(broken)}; {fix}")
        for listing in () if self.data.labels else self._read.values():
            if wrong := _find_wrong_level(listing, self.data.class_folders, self.root):
                raise UserError(wrong[0])

    @classmethod
    def confirm_classes(cls, data: Data, class_names: Collection[str]) -> Data:
        folders = {name for name in _folders_in(Path(data.data_path)) if name.lower() not in SPLIT_NAMES}
        is_known = bool(folders) and not data.labels and folders <= set(map(to_nfc, class_names))
        return data.model_copy(update={"class_folders": data.class_folders or is_known})

    @classmethod
    def splits_of(cls, data: Data) -> Collection[str]:
        found = _find(data)
        return found.folders if "val" in found.folders or found.folders["train"] != found.root else ()

    @classmethod
    def find_test(cls, data: Data) -> tuple[bool, str | None]:
        if not os.path.isdir(data.data_path):
            return False, None
        found = _find(data)
        if found.test and "test" not in found.folders:
            of_class = "image to which DATA.LABELS gives a class" if data.labels else "folder with the name of a class"
            return without_labels(found.test, f"has no {of_class}")
        return "test" in found.folders, None


def _find(data: Data) -> SplitFolders | LabelledPaths:
    with _advice(data):
        return LabelledPaths(data) if data.labels else SplitFolders(Path(data.data_path), data.class_folders)


@contextmanager
def _advice(data: Data) -> Iterator[None]:
    """In an error, the options that read labels in the paths replace the fix, if there are any."""
    try:
        yield
    except UserError as error:
        if not data.labels and (advice := advise_labels(Path(data.data_path))):
            raise UserError(f"{str(error).partition('; ')[0]}; {advice}") from error
        raise


def _pass_doubled(folder: Path) -> Path:
    """The folder, or the folder of the same name in it if that is all: `x/x`, as unzip makes it."""
    for _ in range(_MAX_TRIED):
        inside = {name.casefold() for name in _folders_in(folder)}
        name = to_nfc(os.path.basename(os.path.abspath(folder))).casefold()
        if inside != {name} or has_images(folder, deep=False):
            break
        folder /= class_folders_in(folder)[0]
    return folder


def _folders_in(folder: Path) -> set[str]:
    try:
        return set(map(to_nfc, class_folders_in(folder)))
    except UserError:  # it cannot be listed, or contains no folders
        return set()


class Tree:
    """Folders that are read as classes: `paths` of the folders with images in each, `tops`: the common part of these.

    inside: the names (NFC) of the folders below `tops`. several: the values of `inside` with two or more names.
    """

    def __init__(self, listing: Listing) -> None:
        self.root, self.sizes, self.names = listing.root, listing.sizes, listing.class_names
        self.paths: defaultdict[str, list[str]] = defaultdict(list)
        for folder in sorted(self.sizes):
            name, _, path = folder.partition("/")
            self.paths[name].append(path)
        self.tops = {name: os.path.commonpath(below) for name, below in self.paths.items()}
        self.inside = {
            name: {to_nfc(path.removeprefix(self.tops[name]).strip("/").partition("/")[0]) for path in below} - {""}
            for name, below in self.paths.items()
        }
        self.several = {name: folders for name, folders in self.inside.items() if len(folders) > 1}

    def shown(self, names: Iterable[str]) -> str:
        return list_names(sorted(names), _MAX_SHOWN)


class Question(NamedTuple):
    """A problem, the fix, class folders that may contain the classes, and what DATA.CLASS_FOLDERS confirms, if any."""

    problem: str
    fix: str = ""
    folders: Iterable[str] = ()
    is_class: str = ""


def _one_folder(tree: Tree) -> Question | None:
    """data/{cat,dog}: one folder alone."""
    if len(tree.names) > 1 or not tree.paths:
        return None
    return Question(f"contains only one folder, {next(iter(tree.paths))}", folders=tree.paths)


def _numbered(tree: Tree) -> Question | None:
    """images_{001,002}, fold{1,2}/{cat,dog}: the word of a part; patient{1,2,3}/{ill,well}: others recur in three."""
    names = tree.shown(tree.paths)
    problem, stems = f"{names} differ in a number only", {re.sub(r"\d+", "", name) for name in tree.paths}
    if len(tree.paths) > 1 and len(stems) == 1 and _PART.search(stems.pop()):
        fix = other_form(tree.root) or "move their classes into one folder"
        return Question(f"{problem}, as parts of a data set do", fix, is_class="they are the classes")
    inside = ({path.partition("/")[0] for path in paths} for paths in tree.paths.values())
    recurring = [name for name, count in Counter(chain.from_iterable(inside)).items() if name and count > 1]
    if len({IDENTIFIER.sub("", name) for name in tree.paths}) > 1 or len(tree.paths) < 3 or len(recurring) < 2:
        return None
    return Question(f"{problem}, and contain {tree.shown(recurring)}, as of patients", is_class="they are the classes")


def _same_folders(tree: Tree) -> Question | None:
    """{color,gray}/{cat,dog}, {cat,dog}/{train,val}, {1,2,3}/{ill,well}: two or more equal folders in several."""
    counts = Counter(chain.from_iterable(tree.several.values()))
    shared = [{one for one in inside if counts[one] > 1} for inside in tree.several.values()]
    holders, equal = defaultdict[str, list[int]](list), set[str]()
    for place, folders in enumerate(shared):  # of thousands of patients, comparing each two would take minutes
        in_common = Counter(other for one in folders for other in holders[one])
        if fits := [other for other, number in in_common.items() if number > 1]:
            equal = folders & shared[min(fits)]
            break
        for one in folders:
            holders[one].append(place)
    if not equal:
        return None
    same = sorted(name for name, inside in tree.several.items() if len(inside & equal) > 1)
    numbers = Counter(IDENTIFIER.sub("", name) for name in same)
    offered = [name for name in same if numbers[IDENTIFIER.sub("", name)] < 3]  # one of many patients is no data set
    masks = tree.shown(name for name in equal if re.fullmatch(MASK, name, re.IGNORECASE))
    fix = f"move the folders {masks} out of {tree.root}" if masks else ""
    problem = f"{tree.shown(same)} contain the same folders, {tree.shown(equal)}, as variants, patients or splits do"
    return Question(problem, fix, offered, "they are the classes")


def _copy_of_classes(tree: Tree) -> Question | None:
    """{cat,dog} beside pets/{cat,dog}: a folder that contains a folder with the name of another class."""
    names = {*tree.names}
    for name in tree.paths:
        if repeated := ((tree.inside[name] | {*tree.tops[name].split("/")}) & names) - {to_nfc(name)}:
            problem = f"{name} contains {tree.shown(repeated)}, as this folder does, and may be a copy or a split"
            return Question(problem, f"move it out of {tree.root}", [name], "it is a class")
    return None


def _all_images(tree: Tree) -> Question | None:
    """images/{cat,dog} beside masks: a folder with the name of all images."""
    for name in filter(_ALL_IMAGES.fullmatch, tree.paths if len(tree.paths) > 1 else ()):
        problem = (
            f"is {shorten(name)} a class, beside {tree.shown({*tree.paths} - {name})}, or the folder of all images"
        )
        return Question(problem, folders=[name], is_class="it is a class")
    return None


def _most_images(tree: Tree) -> Question | None:
    """data/{cat,dog} beside examples: a folder of folders with nine tenths of all images, or of splits only."""
    nested, total = [name for name in tree.several if "" not in tree.paths[name]], sum(tree.sizes.values())
    for name in nested:
        count = sum(tree.sizes[os.path.join(name, path)] for path in tree.paths[name])
        if (len(nested) == 1 and 10 * count >= 9 * total) or all(map(word_in, tree.several[name])):
            problem = f"{count} of {total} images are in the folders of {Path(name, tree.tops[name])}"
            is_class = f"{name} is a class" if len(tree.paths) == len(tree.names) else ""
            return Question(problem, folders=[name], is_class=is_class)
    return None


_LAYOUTS = (_one_folder, _numbered, _same_folders, _copy_of_classes, _all_images, _most_images)


def _find_wrong_level(listing: Listing, all_classes: bool, given: Path) -> tuple[str, list[Path]] | None:
    """The error of the first of `_LAYOUTS` that fits, and the folders of classes to give instead.

    all_classes: DATA.CLASS_FOLDERS, which confirms the classes unless there is one folder alone. given: DATA_PATH.
    """
    tree = Tree(listing)
    question = next(filter(None, (fits(tree) for fits in _LAYOUTS[: 1 if all_classes else None])), None)
    if not question:
        return None
    found = _usable(tree.root / name / tree.tops[name] for name in question.folders if name in tree.several)
    fix = " or ".join(f"give -data_path={quote(str(path))}" for path in found[:_MAX_SHOWN])
    fix = fix or advise_labels(given) or question.fix or other_form(tree.root) or "give the folder of the classes"
    confirm = f"; if {question.is_class}: {_ALL_CLASSES}" if question.is_class else ""
    return f"{tree.root}: {question.problem}: {fix}{confirm}", found


def _usable(folders: Iterable[Path]) -> list[Path]:
    """The first folders, of these or in them, that can be given as DATA_PATH."""
    found = list[Path]()
    for folder in folders:
        try:
            listing = SplitFolders(folder).read("train")
            wrong = _find_wrong_level(listing, False, folder)
        except UserError:
            continue
        found += wrong[1] if wrong else [] if listing.findings else [folder]
        if len(found) >= _MAX_SHOWN:
            break
    return found


def has_class_folders(root: Path) -> bool:
    """Tells whether `root`, or the only folder with images in it, contains two folders with images."""
    folders = (root / name for name in sorted(_folders_in(root)))
    found = list(islice((folder for folder in folders if has_images(folder, deep=True)), 2))
    return len(found) > 1 or (len(found) == 1 and has_class_folders(found[0]))
