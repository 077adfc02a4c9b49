"""Lists and tables of images: PaddleViT's text lists and CSV files.

`findings` collects the mistakes, so that one error names all of them. An error is raised at once if nothing can be
read.
"""

import re
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import numpy as np

from configs.reading.yaml_io import shorten
from configs.schema import Data
from datasets.sources.files.image_files import ImageFiles
from datasets.sources.files.listing import Listing
from datasets.sources.files.multi_label import read_multi_label_table
from datasets.sources.files.rows import Rows, is_class_number, is_number, make_listing, read_lines, table_rows
from datasets.sources.split import split_listing

_NO_LABEL = "target is empty; fill it in or remove the line, or set DATA.MULTI_LABEL=true if an image may have no label"
_SEVERAL_LABELS = (
    "has several labels; train with several: -dataset=csv -opts DATA.MULTI_LABEL=true, or write one per image"
)


def imagenet2012(data: Data, split: str) -> ImageFiles:
    """PaddleViT's lists `train_list.txt` and `val_list.txt` in DATA_PATH, and `test_list.txt`; see `read_list`."""
    return ImageFiles(read_list(Path(data.data_path) / f"{split}_list.txt"))


def has_lists(root: Path) -> bool:
    return any((root / f"{split}_list.txt").exists() for split in ("train", "val"))


def csv_tables(data: Data, split: str) -> ImageFiles:
    """DATA_PATH/train.csv and DATA_PATH/val.csv, see `read_table`; a single file is split.

    The split 'test' is DATA_PATH/test.csv. The split 'all' is a single file, or val.csv.
    """
    path = Path(data.data_path)
    train_file = path if path.is_file() else path / "train.csv"
    val_file, test_file = path / "val.csv", path / "test.csv"
    read = read_multi_label_table if data.multi_label else read_table
    if split == "test":
        return ImageFiles(read(test_file, train_file if train_file.is_file() else test_file))
    if split == "all" and path.is_file():
        return ImageFiles(read(path, path))
    if split == "all" and val_file.is_file():
        return ImageFiles(read(val_file, train_file if train_file.is_file() else val_file))
    if not val_file.is_file():
        return ImageFiles(split_listing(read(train_file, train_file), data, split))
    return ImageFiles(read(val_file if split == "val" else train_file, train_file))


def read_list(file: Path) -> Listing:
    """Reads a text file with one image per line: its path relative to the file's folder, white space, its label.

    Error messages, by file and line: a missing path or label, a label that is not a whole number, a path outside the
    folder, an image with two labels.

    Raises:
        UserError: the file cannot be read.
    """
    rows = Rows(file)
    for number, line in enumerate(read_lines(file), 1):
        fields = line.strip().rsplit(maxsplit=1)  # a path may contain spaces
        if len(fields) == 1:
            rows.add_finding(
                number, f"{shorten(fields[0])} is not a path and a label; write both, separated by a space"
            )
        elif fields:
            rows.add(number, *fields)
    return _with_numeric_labels(rows)


def read_table(file: Path, train_file: Path) -> Listing:
    """Reads a CSV file with the columns image_path (relative to the file's folder) and target: whole numbers or names.

    Target names are sorted, and their positions are the labels. The names in `train_file` count for both splits; it may
    be the same file as `file`.

    Error messages: see `read_list`; also a name that `train_file` does not contain. A target with several labels gives
    the only message about targets.

    Raises:
        UserError: a file cannot be read or lacks a column.
    """
    rows = table_rows(file)
    train_rows = rows if file == train_file else table_rows(train_file)
    train_targets = list(filter(None, train_rows.target_ids))
    if train_targets and is_number(train_targets[0]):
        return _with_numeric_labels(rows)
    class_names = sorted(train_targets)
    label_of = {name: label for label, name in enumerate(class_names)}
    problem = f"is not in {train_file}; correct it or add it there"
    listing = _to_listing(rows, label_of, class_names, "target", problem)
    if file != train_file and any(_has_several_labels(name, class_names) for name in class_names):
        listing.findings[:] = read_table(train_file, train_file).findings  # all others follow from it
    return listing


def _with_numeric_labels(rows: Rows) -> Listing:
    """The listing of rows whose targets are the labels."""
    label_of = {text: int(text) for text in rows.target_ids if is_class_number(text)}
    class_names = [str(label) for label in range(max(label_of.values(), default=0) + 1)]
    listing = _to_listing(rows, label_of, class_names, "label", "is not a class number; number the classes from 0")
    return replace(listing, has_class_names=False)


def _to_listing(rows: Rows, label_of: dict[str, int], class_names: list[str], noun: str, problem: str) -> Listing:
    if not rows.target_ids and not rows.findings:
        rows.findings.append(f"{rows.file}: lists no images; add one line per image")
    texts = list(rows.target_ids)
    singles = {*texts, *class_names} - {""}
    several = {text for text in texts if _has_several_labels(text, singles)}
    labels = np.array([-1 if text in several else label_of.get(text, -1) for text in texts], dtype=np.int64)
    target_ids, lines = np.frombuffer(rows.row_target_ids, np.int32), np.frombuffer(rows.lines, np.int32)
    targets = labels[target_ids]
    wrong = [(lines[index], texts[target_ids[index]]) for index in np.flatnonzero(targets < 0)]
    with_several = [(line, text) for line, text in wrong if text in several]
    if with_several:  # the other targets are read differently with DATA.MULTI_LABEL, without which they may look wrong
        line, text = with_several[0]
        count = f" ({len(with_several) - 1} other lines too)" if len(with_several) > 1 else ""
        rows.findings.insert(0, f"{rows.file}:{line}: {noun} {shorten(text)} {_SEVERAL_LABELS}{count}")
    else:
        for line, text in wrong:
            rows.add_finding(line, f"{noun} {shorten(text)} {problem}" if text else _NO_LABEL)

    def conflict(first: int, index: int) -> str:
        return f"has label {targets[index]}, but label {targets[first]} in line {lines[first]}; remove the wrong line"

    return make_listing(rows, class_names, targets, targets, conflict)


def _has_several_labels(target: str, targets: Collection[str]) -> bool:
    """Recognizes numbers, as in '0 3' and '[0, 3]', and names that are all targets themselves, as in 'cat|dog'."""
    numbers = re.split(r"[\s,;|]+", target.strip("[]() "))
    if len(numbers) > 1 and all(map(str.isdecimal, numbers)):
        return True
    names = [name.strip() for name in re.split(r"[,;|]", target)]
    return len(names) > 1 and all(name in targets for name in names)
