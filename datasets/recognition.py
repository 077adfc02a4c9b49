"""Which data set DATA_PATH is: a table, parquet files, class folders, or what DATA.DATASET says."""

import re
from collections import defaultdict
from itertools import chain
from pathlib import Path

from configs.schema import Data
from configs.schema.data import properties_of
from datasets.sources.folders.class_folders import has_class_folders
from datasets.sources.formats import refuse_format
from datasets.sources.groups import package_groups
from datasets.sources.listed.lists import METADATA, table_file
from datasets.sources.listed.parquet import parquet_files
from datasets.sources.path_words import split_of_images
from datasets.sources.source import source_class
from datasets.sources.tables.files import PARQUET, TABLE_SUFFIXES
from datasets.sources.tables.joins import is_camera_package
from utils.distributed import ProcessContext, find_on_main
from utils.errors import UserError


def recognize_dataset(data: Data, context: ProcessContext) -> Data:
    """Replaces the data set by the one that DATA_PATH is: a table, parquet files, or class folders without lists.

    Every rank must call it. Raises UserError for DATA.MULTI_LABEL and a data set with one label per image.
    """
    if not properties_of(data.dataset).may_be_table:
        return data  # its packages may be missing where it is not read

    source_class(data.dataset)  # its packages are installed

    def recognize() -> tuple[str, str | None]:
        if "://" in data.data_path:
            has_shards = re.search(r"^(s3|gs)://|\.tar\b", data.data_path)
            fix = "add it" if has_shards else "download it, and give a folder"
            raise UserError(f"{data.data_path}: is a URL, which only -dataset=tar reads; {fix}")
        refuse_format(data.data_path)
        found = recognize_table(data) or _recognize_folders(data)
        return found, data.groups or (found == "csv" and package_groups(data)) or None

    found, groups = find_on_main(recognize, context)
    kind = properties_of(found)
    is_read = f"{data.data_path} is read as {found}"
    if data.multi_label and not kind.multi_label:
        raise UserError(
            f"DATA.MULTI_LABEL needs a table or tar shards, but {is_read}; "
            "give a table: -data_path=TABLE.csv, or -dataset=csv or tar"
        )
    if data.labels and not kind.may_be_table:
        raise UserError(f"DATA.LABELS needs a path of each image, but {is_read}; remove it")
    return data.changed(dataset=found, groups=groups)


def recognize_table(data: Data) -> str | None:
    """The data set of DATA_PATH if it is a table, or a folder of images with train.csv or a table of Hugging Face's."""
    root = Path(data.data_path)
    if root.is_file():
        kinds = dict.fromkeys(TABLE_SUFFIXES, "csv") | {PARQUET: "parquet"}
        return kinds.get(root.suffix.lower())
    if is_camera_package(root) and not data.class_folders:
        return "csv"
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
    if not train.is_file() or any(root.glob("*_list.txt")) or data.class_folders:
        return None
    return "csv"


def _recognize_folders(data: Data) -> str:
    """`folder` for class folders without PaddleViT's lists, else DATA.DATASET."""
    root = Path(data.data_path)
    has_lists = any(root.joinpath(f"{split}_list.txt").exists() for split in ("train", "val"))
    may_be_folder = properties_of(data.dataset).may_be_folder and not has_lists
    return "folder" if may_be_folder and any(root.glob("[!.]*")) else data.dataset


def _are_in_class_folders(root: Path) -> bool:
    """Whether class folders are in the folders of train, else of other splits and of all images, else in `root`."""
    found = defaultdict(list)
    for path in root.glob("*/"):
        found[split_of_images(path.name)].append(path)
    found.pop(None, None)
    return any(map(has_class_folders, found["train"] or [*chain(*found.values())] or [root]))
