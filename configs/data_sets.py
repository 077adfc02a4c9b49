"""The data sets, by DATA.DATASET, and their properties; all other code asks for a property, not for a name."""

from dataclasses import dataclass
from typing import Literal

IMAGENET_CLASSES = 1000


@dataclass(frozen=True)
class DataSet:
    """A data set.

    source: 'module:class', a subclass of `datasets.sources.source.Source`.
    packages: imported by its module, or when it is read.
    has_columns: DATA.COLUMNS names its columns.
    may_be_folder: without its files, class folders in DATA_PATH are read as the data set `folder`.
    may_be_table: a table or parquet files in DATA_PATH are read as such.
    has_files: DATA_PATH names its files. in_memory: its images are in memory, so that it needs no workers.
    may_lack_splits: may come without splits; the split 'all' is then all images. has_test: may have a split 'test'.
    multi_label: its images may have several labels (DATA.MULTI_LABEL).
    groups_by: what DATA.GROUPS names: a part of the path or a table of paths, a column, a field of the .json.
    num_classes: the number of classes, also of those without an image here; None: of the classes found.
    synsets: timm's list of the classes of ImageNet that it has: a set for evaluations, which mask the other classes.
    """

    source: str
    packages: tuple[str, ...] = ()
    has_columns: bool = False
    may_be_folder: bool = False
    may_be_table: bool = False
    has_files: bool = True
    in_memory: bool = False
    may_lack_splits: bool = False
    has_test: bool = False
    multi_label: bool = False
    groups_by: Literal["path", "column", "field"] = "path"
    num_classes: int | None = None
    synsets: str | None = None


def _imagenet(source: str = "ImageNetFolders", synsets: str = "imagenet") -> DataSet:
    return DataSet(f"datasets.sources.files.imagenet_sets:{source}", num_classes=IMAGENET_CLASSES, synsets=synsets)


DATA_SETS: dict[str, DataSet] = {
    "imagenet2012": DataSet(
        "datasets.sources.files.lists:Lists",
        may_be_folder=True,
        may_be_table=True,
        has_test=True,
        num_classes=IMAGENET_CLASSES,
    ),
    "folder": DataSet(
        "datasets.sources.files.split_folders:ClassFolders", may_be_table=True, may_lack_splits=True, has_test=True
    ),
    "csv": DataSet(
        "datasets.sources.files.lists:Tables",
        has_columns=True,
        may_be_table=True,
        may_lack_splits=True,
        has_test=True,
        multi_label=True,
        groups_by="column",
    ),
    "parquet": DataSet(
        "datasets.sources.parquet:Parquet",
        ("pyarrow",),
        has_columns=True,
        may_lack_splits=True,
        has_test=True,
        groups_by="field",
    ),
    "caltech101": DataSet("datasets.sources.files.class_folders:Caltech101"),
    "caltech256": DataSet("datasets.sources.files.class_folders:Caltech256"),
    "cifar10": DataSet("datasets.sources.in_memory:Cifar10", in_memory=True),
    "cifar100": DataSet("datasets.sources.in_memory:Cifar100", in_memory=True),
    "tar": DataSet(
        "datasets.shards.data_set:TarShards",
        ("obstore", "braceexpand"),
        may_lack_splits=True,
        has_test=True,
        groups_by="field",
    ),
    "digits": DataSet("datasets.sources.in_memory:Digits", ("sklearn",), has_files=False, in_memory=True),
    "fake": DataSet("datasets.sources.in_memory:Fake", has_files=False, in_memory=True),
    "imagenet-a": _imagenet(synsets="imagenet_a"),
    "imagenet-r": _imagenet(synsets="imagenet_r"),
    "imagenet-v2": _imagenet(),
    "imagenet-real": _imagenet("ImageNetReal"),
}


def properties_of(name: str) -> DataSet:
    """Returns the properties of a data set; of an unknown one, perhaps of an old run, the defaults."""
    return DATA_SETS.get(name, DataSet(""))
