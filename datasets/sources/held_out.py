"""Held-out test images beside the training data: the split 'test'."""

from pathlib import Path
from types import ModuleType

from configs.schema import Data
from datasets.sources.files.class_folders import held_out_classes
from datasets.sources.files.rows import read_lines, table_columns
from utils.errors import UserError
from utils.packages import require

_NAMES = {"folder": "test", "csv": "test.csv", "imagenet2012": "test_list.txt"}  # in DATA_PATH
WITH_TEST = (*_NAMES, "tar")  # the data sets that may come with test images


def tar_shards() -> ModuleType:
    """Imports `datasets.shards.data_set` where it is used; raises UserError if a package is not installed."""
    require("DATA.DATASET tar", "obstore", "braceexpand")
    from datasets.shards import data_set

    return data_set


def check_test_split(data: Data) -> None:
    """Raises UserError if the user asks for the test split, and there are no labelled test images."""
    if data.dataset not in WITH_TEST:
        raise UserError(f"DATA.DATASET {data.dataset} has no test split ({', '.join(WITH_TEST)} have one)")
    if data.dataset == "tar":
        return  # `TarShards` checks it
    root, name = Path(data.data_path), _NAMES[data.dataset]
    if root.exists() and not (root / name).exists():
        raise UserError(f"-split test: {root} has no test images (no {name}); choose another split")
    _, note = find_test_split(data)
    if note:
        raise UserError(note)


def find_test_split(data: Data) -> tuple[bool, str | None]:
    """Tells whether DATA_PATH has test images with labels; returns also a note if it has some without labels.

    They are the folder test, test.csv, test_list.txt or the shards of test. Reading the split reports an unreadable
    folder.

    Raises:
        UserError: a table or list cannot be read; as `splits_of_shards`, so that a run waits once for a server that
            does not answer.
    """
    if data.dataset == "tar":
        return "test" in tar_shards().splits_of_shards(data), None
    path = Path(data.data_path, _NAMES.get(data.dataset, ""))
    if data.dataset not in _NAMES or not path.exists():
        return False, None
    if data.dataset == "folder":
        has_labels, problem = bool(held_out_classes(path.parent)), "has no folder with the name of a class"
    elif data.dataset == "csv":
        has_labels, problem = "target" in table_columns(path), "has no column target"
    else:
        fields = next((line for line in read_lines(path) if line.strip()), "0").split()
        has_labels, problem = fields[-1].isdecimal(), "its first line ends without a label"
    if has_labels:
        return True, None
    return False, f"{path}: {problem}, so that it is not evaluated; -predict {path} labels its images"
