"""Which data set DATA_PATH is: a table, parquet files, class folders, or what DATA.DATASET says."""

import re
from collections import defaultdict
from itertools import chain
from pathlib import Path

from configs.schema import Data
from configs.schema.data import properties_of
from datasets.sources.folders.class_folders import FoundFiles, has_class_folders
from datasets.sources.folders.labels import by_split, without_masks
from datasets.sources.formats import refuse_format
from datasets.sources.listed.parquet import parquet_files
from datasets.sources.listing import forget_listings, paths_in
from datasets.sources.path_words import split_of_images, word_in
from datasets.sources.source import source_class
from datasets.sources.tables.files import METADATA, PARQUET, TABLE_SUFFIXES, table_file
from datasets.sources.tables.joins import is_camera_package
from utils.distributed import ProcessContext, find_on_main
from utils.errors import UserError


def recognize_dataset(data: Data, context: ProcessContext, has_columns_of_run: bool = False) -> Data:
    """Replaces the data set by the one that DATA_PATH is: a table, parquet files, or class folders without lists.

    has_columns_of_run: DATA.COLUMNS are of the run, and left out if the data are tables in place of folders, or the
    reverse. Every rank must call it. Raises UserError for DATA.MULTI_LABEL and a data set with one label per image.
    """
    try:
        return data.changed(**find_on_main(lambda: find_changes(data, has_columns_of_run), context))
    except UserError:
        forget_listings()  # no reading follows
        raise


def find_changes(data: Data, has_columns_of_run: bool = False) -> dict[str, str | None]:
    """The options that `recognize_dataset` changes; none of a data set that is named."""
    if not properties_of(data.dataset).may_be_table:
        return {}
    source_class(data.dataset)  # its packages are installed
    if "://" in data.data_path:
        has_shards = re.search(r"^(s3|gs)://|\.tar\b", data.data_path)
        fix = "add it" if has_shards else "download it, and give a folder"
        raise UserError(f"{data.data_path}: is a URL, which only -dataset=tar reads; {fix}")
    refuse_format(data.data_path)
    _refuse_camera_packages(data)
    found = recognize_table(data) or _recognize_folders(data)
    kind = properties_of(found)
    is_read = f"{data.data_path} is read as {found}"
    if data.multi_label and not kind.multi_label:
        raise UserError(
            f"DATA.MULTI_LABEL needs a table or tar shards, but {is_read}; "
            "give a table: -data_path=TABLE.csv, or -dataset=csv or tar"
        )
    if data.labels and not kind.may_be_table:
        raise UserError(f"DATA.LABELS needs a path of each image, but {is_read}; remove it")
    problem = _problem_of_columns(data, found)
    if problem and has_columns_of_run:
        return {"dataset": found, "columns": None}
    if [*data.given_columns] == ["group"] and found == "folder" and not has_columns_of_run:
        problem = "read as folders; name the level of the classes, too, as {label: 1, group: 2}"
    if problem:
        raise UserError(f"DATA.COLUMNS {data.given_columns}: {data.data_path} is {problem}")
    return {"dataset": found} | _roles_of(data, found)


def _problem_of_columns(data: Data, dataset: str) -> str:
    """Why DATA.COLUMNS do not fit: names of columns with folders, or levels with a table; '' if they fit."""
    roles = data.given_columns
    levels = [role for role in ("label", "group") if isinstance(roles.get(role), int)]
    if dataset != "folder":
        return "a table; give the names of its columns" if levels else ""
    if len(levels) < len(roles):
        return "read as folders; give levels of folders from 1, as {label: 1, group: 2}, or a table as -data_path"
    return ""


def _roles_of(data: Data, dataset: str) -> dict[str, str | None]:
    """DATA.GROUPS and DATA.LABELS of the columns of a table, or of the levels of folders, in DATA.COLUMNS.

    The level of splits has no number: {label: 1} is the class of cat/1.jpg and of train/cat/1.jpg.
    """
    given = data.given_columns
    if dataset != "folder":
        return {"groups": given["group"]} if "group" in given else {}
    split = -1
    if given and not data.class_folders:
        root = Path(data.data_path)
        paths, _ = without_masks(FoundFiles(root).all_images())
        split, split_of, _ = by_split(root, paths)
        of_split = "[^/]+/"
        named = [*filter(word_in, split_of)]
        if len(named) < len(split_of):  # train has none
            of_split = f"(?:(?:{'|'.join(map(re.escape, named))})/)?+"  # possessive: a split is no label
    found = dict[str, str | None]()
    for role, number in given.items():
        levels = ["[^/]+/"] * (number - 1)
        if 0 <= split < number:
            levels.insert(split, of_split)
        found[{"label": "labels", "group": "groups"}[role]] = f"^{''.join(levels)}([^/]+)/"
    return found


def _refuse_camera_packages(data: Data) -> None:
    """Raises UserError: DATA_PATH, its table, or a folder in it is a Camera Trap Data Package."""
    root = Path(data.data_path)
    folders = [root, *(root / name for name in FoundFiles(root).top()[0])] if root.is_dir() else []
    if root.name == "media.csv":
        folders = [root.parent]
    found = next(filter(is_camera_package, folders), None)
    if found and not data.class_folders:
        folders_are = "if the folders are the classes, -opts DATA.CLASS_FOLDERS=true"
        text = "is a Camera Trap Data Package: docs/data.md#camera-traps makes a table of its images"
        raise UserError(f"{found}: {text}; {folders_are}")


def recognize_table(data: Data) -> str | None:
    """The data set of DATA_PATH if it is a table, or a folder of images with train.csv or a table of Hugging Face's."""
    root = Path(data.data_path)
    if root.is_file():
        kinds = dict.fromkeys(TABLE_SUFFIXES, "csv") | {PARQUET: "parquet"}
        return kinds.get(root.suffix.lower())
    found = _table_in(root, data)
    if found and _are_in_class_folders(root):
        return None
    return found


def _table_in(root: Path, data: Data) -> str | None:
    """The data set of the tables in a folder; train.csv alone is none beside lists, or with DATA.CLASS_FOLDERS."""
    train, val = (table_file(root, split) for split in ("train", "val"))
    metadata = [root / name for name in METADATA] + [file for file in (train, val) if file.name in METADATA]
    if any(file.is_file() for file in metadata):
        return "csv"
    if parquet_files(root):
        return "parquet"
    if not train.is_file() or paths_in(root, "*_list.txt") or data.class_folders:
        return None
    return "csv"


def _recognize_folders(data: Data) -> str:
    """`folder` for class folders without PaddleViT's lists, else DATA.DATASET."""
    root = Path(data.data_path)
    has_lists = any(root.joinpath(f"{split}_list.txt").exists() for split in ("train", "val"))
    may_be_folder = properties_of(data.dataset).may_be_folder and not has_lists
    return "folder" if may_be_folder and paths_in(root, "[!.]*") else data.dataset


def _are_in_class_folders(root: Path) -> bool:
    """Whether class folders are in the folders of train, else of other splits and of all images, else in `root`."""
    found = defaultdict(list)
    for path in paths_in(root, "*/"):
        found[split_of_images(path.name)].append(path)
    found.pop(None, None)
    return any(map(has_class_folders, found["train"] or [*chain(*found.values())] or [root]))
