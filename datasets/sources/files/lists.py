"""Lists and tables of images: PaddleViT's text lists, and CSV files with one or several labels per image.

Legend: N images, C classes.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

import numpy as np

from configs.reading.yaml_io import shorten
from configs.schema import Data
from datasets.sources.files.class_folders import other_form
from datasets.sources.files.image_files import ImageFiles, Listing, listing_arrays
from datasets.sources.files.rows import COLUMNS, LABEL_DIGITS, Columns, Rows, read_lines, table_columns, table_rows
from datasets.sources.files.split_folders import has_class_folders
from datasets.sources.source import Source
from datasets.sources.split import split_listing
from datasets.sources.split_names import SPLIT_NAMES, find_split_names
from utils.errors import UserError

_SEPARATORS = "|;,"
_WHOLE_NUMBER = re.compile(rf"(\d{{1,{LABEL_DIGITS}}})(?:\.0*)?")  # also 3.0, as pandas writes a column with gaps
_MAX_TARGET_BYTES = 10**10
_NO_LABEL = "target is empty; fill it in or remove the line, or set DATA.MULTI_LABEL=true if an image may have no label"


class Lists(Source):
    """PaddleViT's lists `train_list.txt` and `val_list.txt` in DATA_PATH, and `test_list.txt`; see `read_list`."""

    def read(self, split: str) -> ImageFiles:
        return ImageFiles(read_list(self.root / f"{split}_list.txt", self.data.image_root))

    @classmethod
    def recognize(cls, data: Data) -> str:
        root = Path(data.data_path)
        if not root.is_dir() or any((root / f"{split}_list.txt").exists() for split in ("train", "val")):
            return data.dataset
        return "folder" if has_class_folders(root) or other_form(root) else data.dataset

    @classmethod
    def test_path(cls, data: Data) -> Path:
        return Path(data.data_path) / "test_list.txt"

    @classmethod
    def find_no_test_labels(cls, path: Path, data: Data) -> str | None:
        fields = next((line for line in read_lines(path) if line.strip()), "0").split()
        return None if fields[-1].isdecimal() else "its first line ends without a label"


class Tables(Source):
    """DATA_PATH/train.csv and DATA_PATH/val.csv, see `read_table`; a single file is split.

    The split 'test' is DATA_PATH/test.csv. The split 'all' is a single file, or val.csv.
    """

    def read(self, split: str) -> ImageFiles:
        path, root, multi_label = self.root, self.data.image_root, self.data.multi_label
        columns: Columns = {**(self.data.columns or {}), **({"group": self.data.groups} if self.data.groups else {})}
        train_file, val_file = path if path.is_file() else table_file(path, "train"), table_file(path, "val")
        if split == "test":
            file = table_file(path, "test")
        elif val_file.is_file():
            file = train_file if split == "train" else val_file
        else:
            part = "val" if split == "all" and not path.is_file() else split
            listing = read_table(train_file, train_file, multi_label, root, columns)
            return ImageFiles(split_listing(listing, part, self.splitter))
        may_lack_train = split in ("all", "test") and not train_file.is_file()
        return ImageFiles(read_table(file, file if may_lack_train else train_file, multi_label, root, columns))

    @classmethod
    def has_splits(cls, data: Data) -> bool:
        return any(table_file(Path(data.data_path), split).exists() for split in ("train", "val", "test"))

    @classmethod
    def test_path(cls, data: Data) -> Path:
        return table_file(Path(data.data_path), "test")

    @classmethod
    def find_no_test_labels(cls, path: Path, data: Data) -> str | None:
        label = {**COLUMNS, **(data.columns or {})}["label"]
        return None if label in table_columns(path) else f"has no column {label}"


def table_file(root: Path, split: str) -> Path:
    """The table of a split, by its name (see `find_split_names`): train.csv, valid.csv; it may not exist."""
    names = [name for name, of in SPLIT_NAMES.items() if of == split and (root / f"{name}.csv").exists()]
    return root / f"{find_split_names(names, root).get(split, split)}.csv"


def read_list(file: Path, root: str | None = None) -> Listing:
    """Reads a text file with one image per line: its path relative to `root`, white space, its label.

    root: default: the file's folder.

    Error messages, by file and line: a missing path or label, a label that is not a whole number, a path outside the
    folder, an image with two labels.

    Raises:
        UserError: the file cannot be read.
    """
    rows = Rows(file, root)
    for number, line in enumerate(read_lines(file), 1):
        fields = line.strip().rsplit(maxsplit=1)  # a path may contain spaces
        if len(fields) == 1:
            rows.add_finding(
                number, f"{shorten(fields[0])} is not a path and a label; write both, separated by a space"
            )
        elif fields:
            rows.add(number, *fields)
    return _to_listing(rows, {target: [target] for target in rows.target_ids}, (), file)


def read_table(
    file: Path,
    train_file: Path,
    multi_label: bool = False,
    root: str | None = None,
    columns: Columns | None = None,
) -> Listing:
    """Reads a CSV file with a column of paths (relative to `root`) and one of targets: whole numbers or names.

    root: default: the file's folder. columns: of DATA.COLUMNS.

    Target names are sorted, and their positions are the labels. The names in `train_file` count for both splits; it may
    be the same file as `file`.

    With `multi_label`, a target has no, one or several labels, and `targets` of the listing are multi-hot, int8 (N, C).
    The label separator is the first of | ; , in the targets of `train_file`, else of `file`; else white space.

    Error messages: see `read_list`; also a name that `train_file` does not contain.

    Raises:
        UserError: a file cannot be read or lacks a column; several labels per image without `multi_label`.
    """
    rows = table_rows(file, root, columns)
    train_rows = rows if file == train_file else table_rows(train_file, root, columns)
    if multi_label:
        separator = _find_separator(train_rows.target_ids) or _find_separator(rows.target_ids)
        known = dict.fromkeys(name for target in train_rows.target_ids for name in split_labels(target, separator))
        names_of = {target: split_labels(target, separator) for target in rows.target_ids}
        return _to_listing(rows, names_of, known, train_file, multi_label=True)
    known = dict.fromkeys(filter(None, train_rows.target_ids))
    if several := next((target for target in known if _has_several_labels(target, known)), None):
        line = train_rows.lines[train_rows.row_target_ids.index(train_rows.target_ids[several])]
        raise UserError(
            f"{train_file}:{line}: target {shorten(several)} has several labels; train with several: "
            "-dataset=csv -opts DATA.MULTI_LABEL=true, or write one per image"
        )
    return _to_listing(rows, {target: [target] if target else [] for target in rows.target_ids}, known, train_file)


def _find_separator(targets: Iterable[str]) -> str | None:
    """Returns the separator of labels; None is white space."""
    text = "\n".join(targets)
    return next((mark for mark in _SEPARATORS if mark in text), None)


def split_labels(target: str, separator: str | None) -> list[str]:
    """The labels of a target, each once, in order; without brackets, and quotes in them, as in "['cat', 'dog']"."""
    bare = target.strip()
    is_bracketed = bare[:1] in "[(" and bare[-1:] in "])" if bare else False
    parts = (bare[1:-1] if is_bracketed else bare).split(separator)
    names = (part.strip().strip("'\"") if is_bracketed else part.strip() for part in parts)
    return list(dict.fromkeys(filter(None, names)))


def _has_several_labels(target: str, known: Collection[str]) -> bool:
    """Recognizes numbers, as in '0 3' and '[0, 3]', and names that are all targets themselves, as in 'cat|dog'."""
    numbers = re.split(r"[\s,;|]+", target.strip("[]() "))
    if len(numbers) > 1 and all(map(str.isdecimal, numbers)):
        return True
    names = [name.strip() for name in re.split(r"[,;|]", target)]
    return len(names) > 1 and all(name in known for name in names)


def _to_listing(
    rows: Rows, names_of: Mapping[str, list[str]], known: Collection[str], train_file: Path, multi_label: bool = False
) -> Listing:
    """The listing of rows.

    Args:
        names_of: the labels in each target, in the order of `rows.target_ids`.
        known: the labels in `train_file`. If the first one is a number, or there is none, all labels are numbers.
    """
    if not rows.target_ids and not rows.findings:
        rows.findings.append(f"{rows.file}: lists no images; add one line per image")
    if is_numeric := _is_number(next(iter(known), "0")):
        used = {name for names in names_of.values() for name in names}.union(known)
        label_of = {name: int(match[1]) for name in used if (match := _WHOLE_NUMBER.fullmatch(name))}
        class_names = [str(label) for label in range(max(label_of.values(), default=0) + 1)]
        problem = "is not a class number; number the classes from 0"
    else:
        class_names = sorted(known)
        label_of = {name: label for label, name in enumerate(class_names)}
        problem = f"is not in {train_file}; correct it or add it there"
    labels_of, wrong = [], {}
    for target_id, names in enumerate(names_of.values()):
        labels_of.append([label_of[name] for name in names if name in label_of])
        if unknown := [name for name in names if name not in label_of]:
            wrong[target_id] = f"label {shorten(unknown[0])} {problem}"
        elif not names and not multi_label:
            wrong[target_id] = _NO_LABEL
    target_ids, lines = np.frombuffer(rows.row_target_ids, np.int32), np.frombuffer(rows.lines, np.int32)
    for index in np.flatnonzero(np.isin(target_ids, list(wrong))):
        rows.add_finding(lines[index], wrong[target_ids[index]])
    if multi_label:
        targets = _multi_hot(labels_of, target_ids, len(class_names), rows.file)
    else:
        targets = np.array([(*labels, -1)[0] for labels in labels_of], dtype=np.int64)[target_ids]
    arrays = listing_arrays(rows.paths, targets, lines)
    listing = Listing(
        rows.root, class_names, arrays, rows.file, rows.findings, rows.notes, has_class_names=not is_numeric
    )
    _report_repeated_images(listing)
    return listing


def _multi_hot(labels_of: list[list[int]], target_ids: np.ndarray, num_classes: int, file: Path) -> np.ndarray:
    """int8 (N, C), 1 for the labels of each image. target_ids: indices of `labels_of`, int (N,)."""
    if (num_bytes := len(target_ids) * num_classes) > _MAX_TARGET_BYTES:
        raise UserError(
            f"{file}: {len(target_ids)} images of {num_classes} classes need {num_bytes / 1e9:.0f} GB for their "
            f"labels, more than {_MAX_TARGET_BYTES / 1e9:.0f}; check the highest label, or divide the data"
        )
    targets = np.zeros((len(labels_of), num_classes), dtype=np.int8)
    for row, labels in zip(targets, labels_of, strict=True):
        row[labels] = 1
    return targets[target_ids]


def _report_repeated_images(listing: Listing) -> None:
    """Adds an error for each image with two targets, and a note about images that are repeated with one target."""
    arrays = listing.arrays
    crcs, lines, targets = arrays["paths_crcs"], arrays["lines"], arrays["targets"]
    in_order = np.sort(crcs)
    recurring = in_order[1:][in_order[1:] == in_order[:-1]]
    first_index: dict[str, int] = {}
    repeated_lines = []
    for index in np.flatnonzero(np.isin(crcs, recurring)).tolist():
        path = listing.paths[index]
        first = first_index.setdefault(path, index)
        if first == index:
            continue
        repeated_lines.append(lines[index])
        if not np.array_equal(targets[first], targets[index]):
            listing.findings.append(
                f"{listing.file}:{lines[index]}: {shorten(path)} has other labels in line {lines[first]}; write "
                "all its labels in one line, and remove the other"
            )
    if repeated_lines:
        listing.notes.append(
            f"{listing.file}: {len(repeated_lines)} image(s) are listed more than once; the first repetition is in "
            f"line {repeated_lines[0]}"
        )


def _is_number(target: str) -> bool:
    try:
        float(target)
    except ValueError:
        return False
    return True
