"""The properties of the data sets, by DATA.DATASET; code asks for a property, not for a name."""

from dataclasses import dataclass, replace
from typing import Literal

IMAGENET_CLASSES = 1000


@dataclass(frozen=True)
class DataSet:
    """A data set.

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


_IMAGENET = DataSet(num_classes=IMAGENET_CLASSES, synsets="imagenet")
DATA_SETS: dict[str, DataSet] = {
    "imagenet2012": DataSet(may_be_folder=True, may_be_table=True, has_test=True, num_classes=IMAGENET_CLASSES),
    "folder": DataSet(may_be_table=True, may_lack_splits=True, has_test=True),
    "csv": DataSet(
        has_columns=True, may_be_table=True, may_lack_splits=True, has_test=True, multi_label=True, groups_by="column"
    ),
    "parquet": DataSet(has_columns=True, may_lack_splits=True, has_test=True, groups_by="field"),
    "caltech101": DataSet(),
    "caltech256": DataSet(),
    "cifar10": DataSet(in_memory=True),
    "cifar100": DataSet(in_memory=True),
    "tar": DataSet(may_lack_splits=True, has_test=True, multi_label=True, groups_by="field"),
    "digits": DataSet(has_files=False, in_memory=True),
    "fake": DataSet(has_files=False, in_memory=True),
    "imagenet-a": replace(_IMAGENET, synsets="imagenet_a"),
    "imagenet-r": replace(_IMAGENET, synsets="imagenet_r"),
    "imagenet-v2": _IMAGENET,
    "imagenet-real": _IMAGENET,
}


def properties_of(name: str) -> DataSet:
    """Returns the properties of a data set; of an unknown one, perhaps of an old run, the defaults."""
    return DATA_SETS.get(name, DataSet())
