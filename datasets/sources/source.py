"""The interface of a data set: `Source`, which reads the samples of its splits."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import cast

from configs.schema import Data
from configs.schema.data import DATA_SETS, TORCHVISION
from datasets.sources.samples import Samples
from datasets.sources.split import Splitter
from utils.errors import UserError, did_you_mean
from utils.system import require


@dataclass(frozen=True)
class Numbers:
    """When labels of a table that are numbers are the names of classes.

    known: the classes of a checkpoint: if they contain all numbers. are_names: if they are not 0, 1, 2, ...
    """

    known: Collection[str] = ()
    are_names: bool = False


class Source:
    """A data set, opened with the options DATA. splitter: splits data without a validation split.

    Raises UserError: it cannot be opened.
    """

    has_folds = False  # DATA.FOLDS are its own, not the splitter's
    numbers = Numbers()  # of a table; folders are checked to be classes unless these are known

    def __init__(self, data: Data, splitter: Splitter | None = None) -> None:
        self.data = data
        self.root = Path(data.data_path)
        self.splitter = splitter or Splitter(data)

    def read(self, split: str) -> Samples:
        """Reads 'train' or 'val'; 'all' if it has no splits; 'test' if it may have one.

        Raises UserError: nothing can be read, or there is no such split.
        """
        raise NotImplementedError

    @classmethod
    def splits_of(cls, data: Data) -> Collection[str]:
        """The splits with labels in which the data comes; empty for data with a split 'all'."""
        return "train", "val"

    @classmethod
    def find_test(cls, data: Data) -> tuple[bool, str | None]:
        """Returns whether DATA_PATH has test images with labels, and a note if it has some without labels.

        Reading the split reports an unreadable folder.
        Raises UserError: a table or list cannot be read; a server does not answer.
        """
        return "test" in cls.splits_of(data), None


def part_to_read(split: str, splits: Collection[str], place: object) -> tuple[str, bool]:
    """The split of the data that has a split of the run, and whether it is a part of this: without val, train is cut.

    splits: of the data in `place`; 'all': it has none. Raises UserError: it lacks the split.
    """
    is_part = split != "test" and "val" not in splits
    name = split
    if is_part:
        name = "all" if "all" in splits else "train"
    if name not in splits:
        raise UserError(f"{place}: has no split {split}, only {', '.join(splits)}; add it, or choose another split")
    return name, is_part


def without_labels(path: Path, problem: str) -> tuple[bool, str]:
    """The result of `Source.find_test` for test images without labels."""
    return False, f"{path}: {problem}, so that it is not evaluated; -predict {path} labels its images"


# Of each data set of configs/schema/data.py the class, which is imported when the data set is read, and its packages.
_SOURCES = {
    "imagenet2012": "sources.listed.lists:Lists",
    "folder": "sources.folders.split_folders:ImageFolders",
    "csv": "sources.listed.lists:Tables",
    "parquet": "sources.listed.parquet:Parquet",
    "caltech101": "sources.sets.torchvision_sets:Caltech",
    "caltech256": "sources.sets.torchvision_sets:Caltech",
    "tar": "shards.data_set:TarShards",
    "digits": "sources.sets.in_memory:Digits",
    "fake": "sources.sets.in_memory:Fake",
    "imagenet-a": "sources.sets.imagenet_sets:ImageNetFolders",
    "imagenet-r": "sources.sets.imagenet_sets:ImageNetFolders",
    "imagenet-v2": "sources.sets.imagenet_sets:ImageNetFolders",
    "imagenet-real": "sources.sets.imagenet_sets:ImageNetReal",
}
_PACKAGES = {"parquet": ("pyarrow",), "digits": ("sklearn",), "torchvision/PCAM": ("h5py",)}
_PACKAGES |= dict.fromkeys(("torchvision/Flowers102", "torchvision/StanfordCars", "torchvision/SVHN"), ("scipy",))


def source_class(dataset: str) -> type[Source]:
    """Returns the class of a data set. Raises UserError: an unknown data set; a package is not installed."""
    if dataset not in DATA_SETS:
        hint = did_you_mean(TORCHVISION + dataset.removeprefix(TORCHVISION), DATA_SETS, 0.95)
        names = [name for name in DATA_SETS if not name.startswith(TORCHVISION)]
        known = f"{', '.join(names)}, and {TORCHVISION}NAME as in docs/data.md"
        raise UserError(f"DATA.DATASET: unknown data set {dataset[:80]}{hint} (known: {known})")
    require(f"DATA.DATASET {dataset}", *_PACKAGES.get(dataset, ()))
    source = "sources.sets.torchvision_sets:TorchvisionSet" if DATA_SETS[dataset].torchvision else _SOURCES[dataset]
    return cast(type[Source], resolve_name(f"datasets.{source}"))
