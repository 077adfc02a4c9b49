"""The interface of a data set: `Source`, which is opened once and reads the images of its splits."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from pkgutil import resolve_name
from typing import cast

from configs.schema import Data
from configs.schema.data import DATA_SETS, TORCHVISION, spelling
from datasets.sources.class_names import BYTES, NATURAL, read_class_list
from datasets.sources.samples import Samples
from datasets.sources.split import History
from utils.errors import UserError, did_you_mean
from utils.system import require


@dataclass(frozen=True)
class Wanted:
    """What a run reads.

    splits: 'train', 'val', 'test', or 'all': all images of data without splits. with_test: 'test', too, if there is one
    with labels. class_names: of a checkpoint, after DATA.RENAME. of_weights: the class names of weights before
    DATA.RENAME, which may name them. num_classes: of the model; None stands for `number_of_classes`. history: of the
    split of data without a validation split. predicts: labels and missing files do not matter. is_new: for a new
    training: labels of a table that are not 0, 1, 2, ... are names, unless `num_classes` is given. is_dry: no file is
    written beside the data. suggests: notes have options that may fit better.
    """

    data: Data
    splits: tuple[str, ...] = ()
    class_names: Sequence[str] = ()
    of_weights: Sequence[str] = ()
    num_classes: int | None = None
    history: History = field(default_factory=History)
    predicts: bool = False
    is_new: bool = False
    with_test: bool = False
    is_dry: bool = False
    suggests: bool = True

    @property
    def trains(self) -> bool:
        """Whether the images are for a training, which also validates; else one split is read."""
        return len(self.splits) > 1

    @property
    def listed_classes(self) -> list[str]:
        """The names of classes in the file DATA.CLASSES; none for a rule of sorting."""
        classes = self.data.classes
        return [] if classes in (None, NATURAL, BYTES) else read_class_list(Path(classes))

    @property
    def may_name_by_number(self) -> bool:
        """Whether labels of a table that are not 0, 1, 2, ... are names."""
        return self.is_new and self.num_classes is None and not self.listed_classes


class Source:
    """A data set, opened with what a run wants of it. Raises UserError: it cannot be opened.

    has_folds: DATA.FOLDS are its own. way_to_folds: advice about data with a validation split.
    """

    has_folds = False
    way_to_folds = "give the training part alone with -data_path"

    def __init__(self, wanted: Wanted) -> None:
        self.wanted = wanted
        self.data = wanted.data
        self.root = Path(self.data.data_path)
        self.reads_train = "train" in wanted.splits

    @property
    def splits(self) -> Collection[str]:
        """The splits in which the data come; 'all', perhaps beside 'test', if they have no others."""
        return "train", "val"

    def read(self, split: str) -> Samples:
        """All images of one of `splits`, with labels. Raises UserError: nothing can be read."""
        raise NotImplementedError

    def find_test(self) -> tuple[bool, str | None]:
        """Returns whether there are test images with labels, and a note if there are some without labels."""
        return "test" in self.splits, None

    @property
    def uncut(self) -> str | None:
        """The split that is cut into train and val; None for data with val."""
        if "val" in self.splits:
            return None
        return "all" if "all" in self.splits else "train"

    def split_for(self, split: str) -> str:
        """The one of `splits` that has the images of a split of the run. Raises UserError: there is none."""
        if split == "test":
            has_test, note = self.find_test()
            if not has_test:
                raise UserError(note or f"-split test: {self.data.data_path} has no test images; choose another split")
            return split
        if split == "all" and "all" not in self.splits:
            raise UserError(
                f"-split all: {self.data.dataset} comes in splits; give one of them, or a folder to -predict"
            )
        name = self.uncut or split
        if name not in self.splits:
            raise UserError(
                f"{self.data.data_path}: has no split {split}, only {', '.join(self.splits)}; "
                "add it, or choose another split"
            )
        return name

    def split_to_evaluate(self) -> str:
        """The split with labels that an evaluation of data other than the training's reads."""
        if "all" in self.splits:
            return "all"
        return "test" if self.uncut and self.find_test()[0] else "val"


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
_PACKAGES = {"parquet": ("pyarrow",), "digits": ("sklearn",)}
_PACKAGES |= dict.fromkeys(("torchvision/Flowers102", "torchvision/StanfordCars", "torchvision/SVHN"), ("scipy",))


def source_class(dataset: str) -> type[Source]:
    """Returns the class of a data set. Raises UserError: an unknown data set; a package is not installed."""
    if spelling(dataset) in ("torchvisionfer2013", "torchvisionpcam"):
        raise UserError(
            f"DATA.DATASET: {dataset} is not read; docs/data.md#torchvisions-data-sets writes its images to files"
        )
    if dataset not in DATA_SETS:
        hint = did_you_mean(TORCHVISION + dataset.removeprefix(TORCHVISION), DATA_SETS, 0.95)
        names = [name for name in DATA_SETS if not name.startswith(TORCHVISION)]
        raise UserError(
            f"DATA.DATASET: unknown data set {dataset[:80]}{hint} (known: "
            f"{', '.join(names)}, and {TORCHVISION}NAME as in docs/data.md)"
        )
    require(f"DATA.DATASET {dataset}", *_PACKAGES.get(dataset, ()))
    source = "sources.sets.torchvision_sets:TorchvisionSet" if DATA_SETS[dataset].torchvision else _SOURCES[dataset]
    return cast(type[Source], resolve_name(f"datasets.{source}"))
