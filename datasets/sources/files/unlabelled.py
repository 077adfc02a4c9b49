"""Images without labels, for a prediction: one image, a folder, or a list of images."""

import csv
import os
import re
from collections.abc import Iterator
from pathlib import Path

from configs.reading.yaml_io import shorten
from datasets.sources.arrays.strings import StringPacker
from datasets.sources.files.class_folders import read_images
from datasets.sources.files.image_files import ImageFiles
from datasets.sources.files.listing import Listing, unlabelled_arrays
from datasets.sources.files.rows import read_lines
from utils.errors import UserError

_LIST_EXTENSIONS = (".txt", ".csv")
_LABEL = re.compile(r"\s+[0-9]+$")  # of a list for the training


def unlabelled(path: str) -> ImageFiles:
    """The images of `path`, each with the label 0; whether they can be read is found when they are read.

    A folder: its images at any depth, in the order of their paths. A list `.txt`: one path per line, after which a
    label is ignored. A table `.csv`: the column image_path. Their paths are absolute, or relative to the list's folder;
    an image that is listed twice is read twice. Any other file is an image.

    Raises:
        UserError: `path` does not exist or cannot be read, or contains no images.
    """
    if os.path.isdir(path):
        return ImageFiles(read_images(Path(path)))
    if not os.path.exists(path):
        raise UserError(f"-predict {path}: no such file or folder; give an image, a folder of images or a list")
    folder, name = os.path.split(path)
    if not name.lower().endswith(_LIST_EXTENSIONS):
        return _without_labels(Path(folder), StringPacker([name]))
    read = _paths_in_table if name.lower().endswith(".csv") else _paths_in_list
    paths = StringPacker(read(Path(path)))
    if not len(paths):
        raise UserError(f"{path}: lists no images; write one path per line")
    return _without_labels(Path(folder), paths)


def _without_labels(root: Path, paths: StringPacker) -> ImageFiles:
    return ImageFiles(Listing(root, ["0"], unlabelled_arrays(paths), has_class_names=False))


def _paths_in_list(file: Path) -> Iterator[str]:
    for number, line in enumerate(read_lines(file, "check the path"), 1):
        if path := _LABEL.sub("", line.strip()):
            yield _checked(path, file, number)


def _paths_in_table(file: Path) -> Iterator[str]:
    table = csv.DictReader(read_lines(file, "check the path"), strict=True)
    try:
        if list(table.fieldnames or ()).count("image_path") != 1:
            raise UserError(f"{file}:1: the header lacks image_path; name the column of the paths image_path")
        for record in table:
            path = (record["image_path"] or "").strip()
            if not path:
                raise UserError(f"{file}:{table.line_num}: image_path is empty; fill it in or remove the line")
            yield _checked(path, file, table.line_num)
    except csv.Error as error:
        raise UserError(f"{file}:{table.reader.line_num}: is not valid CSV ({error}); correct the line") from error


def _checked(path: str, file: Path, line: int) -> str:
    if "\0" in path:
        raise UserError(f"{file}:{line}: {shorten(path)} is not a path; save the list as text in UTF-8")
    return path
