"""Images without labels, for a prediction: one image, a folder, or a list of images."""

import os
import re
from pathlib import Path

from datasets.sources.arrays.strings import StringPacker
from datasets.sources.files.class_folders import read_images
from datasets.sources.files.image_files import ImageFiles, Listing, listing_arrays
from datasets.sources.files.rows import Rows, read_lines, table_rows
from utils.errors import Unavailable, UserError, combine_findings

_ARCHIVES = (".zip", ".tar", ".tgz", ".gz", ".bz2", ".xz", ".zst", ".7z", ".rar")
_LABEL = re.compile(r"\s+[0-9]+$")  # of a list for the training


def unlabelled(path: str) -> ImageFiles:
    """The images of `path`, each with the label 0; whether they can be read is found when they are read.

    A folder: its images at any depth, in the order of their paths. A list `.txt`: one path per line, after which a
    label is ignored. A table `.csv`: the column image_path. Their paths are absolute, or relative to the list's folder;
    an image that is listed twice is read twice. Any other file is an image.

    Raises:
        UserError: `path` does not exist or cannot be read, or contains no images; in one error, all mistakes of a list.
    """
    file = Path(path)
    if os.path.isdir(path):
        return ImageFiles(read_images(file))
    if not os.path.exists(path):
        raise Unavailable(f"{path}: no such file or folder; give an image, a folder of images or a list")
    refuse_archive(path)
    if file.suffix.lower() not in (".txt", ".csv"):
        paths, notes = StringPacker([file.name]), []
    else:
        rows = table_rows(file, with_targets=False) if file.suffix.lower() == ".csv" else _list_rows(file)
        if rows.findings:
            raise combine_findings(f"{path}: {len(rows.findings)} problems", rows.findings)
        if not len(rows.paths):
            raise UserError(f"{path}: lists no images; write one path per line")
        paths, notes = rows.paths, rows.notes
    return ImageFiles(Listing(file.parent, ["0"], listing_arrays(paths), notes=notes, has_class_names=False))


def refuse_archive(path: str) -> None:
    """Raises UserError for an archive in place of the folder that it contains."""
    if path.lower().endswith(_ARCHIVES) and os.path.isfile(path):
        raise UserError(f"{path}: is an archive; unpack it, and give the folder that it contains")


def _list_rows(file: Path) -> Rows:
    rows = Rows(file, anywhere=True)
    for number, line in enumerate(read_lines(file), 1):
        if path := _LABEL.sub("", line.strip()):
            rows.add(number, path)
    return rows
