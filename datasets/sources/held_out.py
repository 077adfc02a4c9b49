"""Held-out test images beside the training data: the split 'test'."""

from pathlib import Path
from types import ModuleType

from configs.schema import Data
from datasets.sources.files.lists import table_file
from datasets.sources.files.rows import read_lines, table_columns
from datasets.sources.files.split_folders import find_split_folders
from utils.errors import UserError
from utils.packages import require

WITH_TEST = ("folder", "csv", "imagenet2012", "tar")  # the data sets that may come with test images


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
    path = _test_path(data)
    if Path(data.data_path).exists() and not path.exists():
        raise UserError(f"-split test: {data.data_path} has no test images (no {path.name}); choose another split")
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
    if data.dataset not in WITH_TEST or not (path := _test_path(data)).exists():
        return False, None
    if data.dataset == "folder":
        has_labels = "test" in find_split_folders(path.parent).folders
        problem = "has no folder with the name of a class"
    elif data.dataset == "csv":
        has_labels, problem = "target" in table_columns(path), "has no column target"
    else:
        fields = next((line for line in read_lines(path) if line.strip()), "0").split()
        has_labels, problem = fields[-1].isdecimal(), "its first line ends without a label"
    if has_labels:
        return True, None
    return False, f"{path}: {problem}, so that it is not evaluated; -predict {path} labels its images"


def _test_path(data: Data) -> Path:
    """The folder, table or list of the test images, which may not exist."""
    root = Path(data.data_path)
    if data.dataset == "folder":
        return root / ((root.is_dir() and find_split_folders(root).test) or "test")
    return table_file(root, "test") if data.dataset == "csv" else root / "test_list.txt"
