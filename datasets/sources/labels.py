"""DATA.LABELS: labels in the paths of images, and the expressions that fit images without class folders."""

import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from shlex import quote

import numpy as np

from configs.schema import Data
from configs.yaml_io import shorten
from datasets.sources.class_folders import FoundFiles, images_in, named_after_images, notes_on_copies
from datasets.sources.image_files import Listing, listing_arrays
from datasets.sources.names import MASK, label_in, list_names, word_in
from datasets.sources.shared_arrays import StringPacker
from utils.errors import UserError
from utils.notes import Note

NO_SPLIT = "-opts DATA.CLASS_FOLDERS=true"
_MAX_SHOWN = 4
_MAX_TRIED = 100  # images that show quickly that an expression does not fit
_FIELD = r"(\d+)_"
IDENTIFIER = re.compile(r"\d+|(?<![a-zA-Z])[a-zA-Z]$|(?<=[a-z])[A-Z]$")  # 10253, patient_3, site A, siteB


def split_level(paths: Sequence[str]) -> tuple[int, dict[str, str]] | None:
    """The level of folders that are splits, and the split of each one: {train,test1}/cat.0.jpg, cat/{train,val}/0.jpg.

    It is the first level at which a folder has the word of a split; 'none': of images without labels. None without one.
    Raises ValueError with the folders: not all of them have such a word, or two have the same one, or none is train.
    """
    parts = [path.split("/")[:-1] for path in paths]
    for level in range(max(map(len, parts), default=0)):
        names = {folders[level] if level < len(folders) else "" for folders in parts}
        words = {name: word_in(name) or "" for name in names}
        if any(words.values()):
            if not all(words.values()) or len(set(words.values())) < len(words) or "train" not in words.values():
                raise ValueError(list_names(sorted(names - {""}), _MAX_SHOWN))
            return level, words
    return None


class LabelledPaths:
    """The images in DATA_PATH at any depth, with the labels that DATA.LABELS finds in their paths; see `split_level`.

    folders: of each split with labels; of train DATA_PATH itself if the images come without splits. test: the folder of
    test images, perhaps without labels. With DATA.CLASS_FOLDERS, no folder is a split.
    Raises UserError: a folder cannot be listed, it is not clear which folders are splits, or there are no images.
    """

    def __init__(self, data: Data) -> None:
        self.root, self._labels = Path(data.data_path), data.labels or ""
        self._files = FoundFiles(self.root)
        paths, self._notes = _without_masks(images_in(self.root, self._files, set()), self._labels)
        if not paths and not self._files.findings:
            raise UserError(f"{self.root}: contains no images; check -data_path")
        try:
            found = None if data.class_folders else split_level(paths)
        except ValueError as names:
            fix = f"give the folder of one as -data_path, or name them so; if none is a split: {NO_SPLIT}"
            raise UserError(f"{self.root}: which of the folders {names} is train, val or test? Then {fix}") from None
        self._paths_of: dict[str, list[str]] = defaultdict(list)
        self.folders, self.test = {"train": self.root}, None
        for path in paths:
            folders = path.split("/")
            self._paths_of[found[1][folders[found[0]]] if found else "train"].append(path)
        if found:
            place = {split: Path(*one[0].split("/")[: found[0] + 1]) for split, one in self._paths_of.items()}
            classes = self._classes
            labelled = [one for one in place if one != "none" and (one != "test" or classes & self._labels_of(one))]
            self.folders = {split: self.root / place[split] for split in labelled}
            self.test = self.root / place["test"] if "test" in place else None
            shown = ", ".join(f"{split} is {folder.name!r}" for split, folder in sorted(self.folders.items()))
            self._notes.append(Note("log", f"{self.root}: {shown}"))
            if unread := sorted(str(place[split]) for split in place.keys() - self.folders.keys()):
                hint = f"-predict {quote(str(self.root / unread[0]))} labels images"
                self._notes.append(Note("log", f"{self.root}: not read: {list_names(unread)}; {hint}"))

    def _labels_of(self, split: str) -> set[str]:
        return {label_in(self._labels, path) for path in self._paths_of[split]}

    @property
    def _classes(self) -> set[str]:
        return self._labels_of("train") - {""}

    def read(self, split: str) -> Listing:
        """The images of a split, with the labels of the training. Findings: images without a class of the training."""
        if split not in self.folders:
            raise UserError(f"{self.root}: has no folder {split} beside {list_names(sorted(self.folders))}; add it")
        paths, names = self._paths_of[split], sorted(self._classes)
        label_of = {name: label for label, name in enumerate(names)}
        labels = [label_in(self._labels, path) for path in paths]
        targets = np.array([label_of.get(label, -1) for label in labels], np.int64)
        findings = [*self._files.findings]
        if wrong := np.flatnonzero(targets < 0).tolist():
            label, example = labels[wrong[0]], shorten(paths[wrong[0]])
            problem = f"finds the class {shorten(label)}, which train lacks, in" if label else "does not match"
            images = f"{len(wrong)} of {len(paths)} images of {split}, such as {example}"
            findings.append(f"{self.root}: DATA.LABELS {shorten(self._labels)} {problem} {images}; correct it")
        text = f"{self.root}: DATA.LABELS finds {len(names)} classes, {list_names(names, _MAX_SHOWN)}"
        notes = [*self._notes, Note("log", text), *notes_on_copies(self.root, named_after_images(paths), len(paths))]
        arrays = listing_arrays(StringPacker(paths), targets)
        return Listing(self.root, names, arrays, findings=findings, notes=notes + self._files.notes())


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
    paths, _ = _without_masks(images_in(root, FoundFiles(root), set()))
    try:
        splits = split_level(paths)
    except ValueError:
        return None
    level, words = splits or (-1, {})
    of_split = defaultdict[str, list[str]](list)
    for path in paths:
        of_split[words[path.split("/")[level]] if splits else "train"].append(path)
    paths = of_split["train"] + of_split["val"]
    found = list[str]()
    for expression, of_labels in (*_by_folder(paths, level), *_by_file_name(paths), *_by_field()):
        if not all(label_in(expression, path) for path in of_split["train"][:_MAX_TRIED]):
            continue
        labels = Counter(label_in(expression, path) for path in of_split["train"])
        if not {label_in(expression, path) for path in of_split["val"]} <= labels.keys():
            continue
        if "" not in labels and 2 <= len(labels) <= len(paths) / 2 and sorted(labels.values())[-2] > 1:
            options = [f"DATA.LABELS={expression}", *_cases(paths, of_labels)]
            classes = f"{len(labels)} classes, {list_names(sorted(labels), _MAX_SHOWN)}"
            found.append(f"-opts {' '.join(map(quote, options))} reads {classes}")
            if not expression.endswith(_FIELD):  # of these, the user knows which one is the class
                break
    return f"labels are in the paths, as in {shorten(paths[0])}: {' or '.join(found)}" if found else None


def notes_on_folders(listing: Listing) -> list[Note]:
    """Notes if class folders contain folders alone: cases of each class, colon/{p01,p02}, or classes: colon/{aca,n}."""
    inner = defaultdict[str, set[str]](set)
    for folder in listing.sizes:
        name, _, below = folder.partition("/")
        inner[name].add(below.partition("/")[0])
    if len(inner) < 2 or any("" in names for names in inner.values()):
        return []
    paths = [*listing.paths]
    for option in _cases(paths, 0):
        cases = [(label_in(option.partition("=")[2], path), path.partition("/")[0]) for path in paths]
        number = len({case for case, _ in cases})
        if number == len(set(cases)):
            text = f"{number} folders with numbers in the class folders, such as {shorten(cases[0][0])}"
            fix = f"to keep the images of each in one split: -opts {quote(option)}"
            return [Note("screen", f"{listing.root}: {text}; {fix}")]
    if any(len(names) < 2 for names in inner.values()):
        return []
    shown = f"the classes are {list_names(sorted(inner), _MAX_SHOWN)}"
    inside = f"their folders, such as {os.path.dirname(paths[0])!r}, are not; if they are"
    return [Note("log", f"{listing.root}: {shown}; {inside}: -opts {quote('DATA.LABELS=^[^/]+/([^/]+)/')}")]


def _by_folder(paths: Sequence[str], split: int) -> Iterator[tuple[str, int]]:
    """The innermost level of folders with names that recur, and its number: 10253/{0,1}, patient1/study1_{ill,well}."""
    folders = [path.split("/")[:-1] for path in paths]
    for level in reversed(range(min(map(len, folders), default=0))):
        parents = defaultdict[str, set[str]](set)
        for parts in folders:
            parents[parts[level]].add("/".join(one for number, one in enumerate(parts[:level]) if number != split))
        recurs = len(parents) > 1 and (level < split or max(map(len, parents.values())) > 1)
        if recurs and level != split:
            text = r"[^/]*\d_([^/\d_]+)" if all(re.fullmatch(r".*\d_[^\d_]+", name) for name in parents) else "([^/]+)"
            yield f"^{'[^/]+/' * level}{text}/", level
            return


def _by_file_name(paths: Sequence[str]) -> Iterator[tuple[str, int]]:
    """The text before a number, cat.0.jpg, great_pyrenees_12.jpg, cat (3).jpg, and the first field: lamp.x1y.jpg."""
    before_number = [rf"(.+){separator}\d+" for separator in ("_", r"\.", "-", r" \(?")] + [r"([^/\d]*[^\W\d_])\d+"]
    for expression in (*before_number, *(rf"([^/{mark}]+){mark}[^/]+$" for mark in ("\\.", "_", "-"))):
        whole = rf"{expression}\)?\.\w+$" if expression in before_number else expression
        pairs = ((label_in(expression, path), label_in(whole, path)) for path in paths)
        if all(label == of_whole and re.search(r"[^\W\d_]", label) for label, of_whole in pairs):
            yield expression, -1


def _by_field() -> Iterator[tuple[str, int]]:
    """Each number in 25_1_2_20170116.jpg."""
    yield from ((rf"(?:^|/)(?:[^/_]+_){{{number}}}{_FIELD}", -1) for number in range(_MAX_SHOWN))


def _cases(paths: Sequence[str], of_labels: int) -> list[str]:
    """DATA.GROUPS: the level of folders with most names, if all have numbers, as of patients; empty without one."""
    folders = [path.split("/")[:-1] for path in paths]
    best = (2, "")
    for level in range(min(map(len, folders), default=0)):
        names = {parts[level] for parts in folders}
        if level != of_labels and all(map(IDENTIFIER.search, names)) and len(names) <= len(paths) / 2:
            best = max(best, (len(names), f"^{'[^/]+/' * level}([^/]+)/"))
    return [f"DATA.GROUPS={best[1]}"] if best[1] else []
