"""Held-out test images beside the training data: the split 'test'."""

from pathlib import Path

from configs.schema import Data
from datasets.sources.files.class_folders import class_names_in, held_out_classes
from datasets.sources.files.rows import read_lines, table_columns
from datasets.sources.tar import tar_shards
from utils.errors import UserError

_NAMES = {"folder": "test", "csv": "test.csv", "imagenet2012": "test_list.txt"}  # in DATA_PATH
WITH_TEST = (*_NAMES, "tar")  # the data sets that may come with test images


def check_test_split(data: Data) -> None:
    """Raises UserError if the user asks for the test split, and there are no labelled test images."""
    if data.dataset not in WITH_TEST:
        raise UserError(f"DATA.DATASET {data.dataset} has no test split ({', '.join(WITH_TEST)} have one)")
    if data.dataset == "tar":
        return  # `TarShards` checks it
    root, name = Path(data.data_path), _NAMES[data.dataset]
    if root.exists() and not (root / name).exists():
        kind = "folder" if data.dataset == "folder" else "file"
        raise UserError(f"-split test: {root} has no test images (no {kind} {name}); choose another split")
    _, note = find_test_split(data)
    if note:
        raise UserError(note)


def find_test_split(data: Data) -> tuple[bool, str | None]:
    """Tells whether DATA_PATH has test images with labels; returns also a note if it has some without labels.

    They are the folder test, test.csv, test_list.txt or the shards of test. Reading the split reports an unreadable
    file or folder.

    Raises:
        UserError: as `splits_of_shards`, so that a run waits once for a server that does not answer.
    """
    if data.dataset == "tar":
        return "test" in tar_shards().splits_of_shards(data), None
    find = {"folder": _in_folder, "csv": _in_table, "imagenet2012": _in_list}.get(data.dataset)
    if find is None:
        return False, None
    has_test, problem = find(Path(data.data_path))
    path = Path(data.data_path, _NAMES[data.dataset])
    note = f"{path}: {problem}, so that it is not evaluated; -predict {path} labels its images"
    return has_test, note if problem else None


def _in_folder(root: Path) -> tuple[bool, str | None]:
    test, train = root / "test", root / "train"
    if not test.is_dir():
        return False, None
    if held_out_classes(root):
        return True, None
    try:
        if train.is_dir():
            class_names_in(train)
        elif any(entry.is_dir() for entry in test.iterdir()):
            return False, None
    except (UserError, OSError):
        return False, None
    return False, "has no folder with the name of a class"


def _in_table(root: Path) -> tuple[bool, str | None]:
    file = root / "test.csv"
    if not file.is_file():
        return False, None
    return (True, None) if "target" in table_columns(file) else (False, "has no column target")


def _in_list(root: Path) -> tuple[bool, str | None]:
    file = root / "test_list.txt"
    if not file.is_file():
        return False, None
    first = next((line for line in read_lines(file) if line.strip()), "")
    has_label = not first or first.split()[-1].isdecimal()
    return (True, None) if has_label else (False, "its first line ends without a label")
