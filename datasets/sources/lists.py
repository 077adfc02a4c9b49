"""Lists and tables of images: PaddleViT's text lists, and CSV files with one or several labels per image.

Legend: N images, C classes.
"""

import os
import re
import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path

import numpy as np

from configs.schema import Data
from configs.schema.data import properties_of
from configs.yaml_io import shorten
from datasets.sources.image_files import ImageFiles, Listing, listing_arrays
from datasets.sources.names import SPLIT_NAMES, find_split_names, list_names
from datasets.sources.rows import LIST_LABEL, ONE_HOT, Rows, table_rows
from datasets.sources.samples import check_target_bytes
from datasets.sources.source import Numbers, Source, without_labels
from datasets.sources.split import split_listing
from datasets.sources.tables import LABEL_DIGITS, Table, find_layout, read_lines
from utils.errors import UserError
from utils.notes import Note

_SEPARATORS = "|;,"
_WHOLE_NUMBER = re.compile(rf"(\d{{1,{LABEL_DIGITS}}})(?:\.0*)?")  # also 3.0, as pandas writes a column with gaps
_NUMBER_AS_NAME = re.compile(r"([+-]?\d{1,18})(?:\.0*)?")
METADATA = ("metadata.csv", "metadata.jsonl", "_classes.csv")  # of Hugging Face's imagefolder, and of Roboflow
_KINDS = "patient|subject|participant|person|case|lesion|animal|specimen|slide"
_GROUP = re.compile(rf"patients?|({_KINDS})[ _-]?(id|no|nr|number)", re.IGNORECASE)
_NO_LABEL = "target is empty; fill it in or remove the line, or set DATA.MULTI_LABEL=true if an image may have no label"
_FEW = 10  # images: so few may be all of class 0
Part = tuple[Table, str | None]


class Lists(Source):
    """PaddleViT's lists `train_list.txt` and `val_list.txt` in DATA_PATH, and `test_list.txt`.

    A line is a path relative to DATA.IMAGE_ROOT (default: the list's folder), white space, and a label.
    """

    def read(self, split: str) -> ImageFiles:
        """As `Source.read`. Findings: a missing path or label, a label that is not a whole number, and so on."""
        if self.root.is_file():
            fix = "give a folder of images, or a table (.csv, .tsv, .jsonl, .parquet)"
            raise UserError(f"{self.root}: is a file that is not read; {fix}")
        rows = self._rows(split)
        names_of = {target: [target] for target in rows.target_ids}
        if not self.data.labels:
            return ImageFiles(_to_listing(rows, names_of, (), rows, Numbers()))
        train_rows = rows if split == "train" else self._rows("train")
        return ImageFiles(_to_listing(rows, names_of, train_rows.target_ids, train_rows, self.numbers))

    def _rows(self, split: str) -> Rows:
        file = self.root / f"{split}_list.txt"
        image_root = Path(self.data.image_root) if self.data.image_root else None
        rows = Rows(file, image_root, labels=self.data.labels)
        for number, line in enumerate(read_lines(file), 1):
            fields = line.strip().rsplit(maxsplit=1)  # a path may contain spaces
            if self.data.labels and fields:
                rows.add(number, LIST_LABEL.sub("", line.strip()))
            elif len(fields) == 1:
                problem = f"{shorten(fields[0])} is not a path and a label; write both, separated by a space"
                rows.add_finding(number, problem)
            elif fields:
                rows.add(number, *fields)
        return rows

    @classmethod
    def recognize(cls, data: Data) -> str:
        root = Path(data.data_path)
        if not root.is_dir() or any((root / f"{split}_list.txt").exists() for split in ("train", "val")):
            return data.dataset
        return "folder" if any(one.name[0] != "." for one in root.iterdir()) else data.dataset

    @classmethod
    def find_test(cls, data: Data) -> tuple[bool, str | None]:
        if not (path := Path(data.data_path) / "test_list.txt").exists():
            return False, None
        fields = next((line for line in read_lines(path) if line.strip()), "0").split()
        has_labels = data.labels or fields[-1].isdecimal()
        return (True, None) if has_labels else without_labels(path, "its first line ends without a label")


class Tables(Source):
    """DATA_PATH/train.csv and DATA_PATH/val.csv, see `read_table`; or one table, with splits in it or to be split.

    A table is also one of `METADATA` in the folder of a split, or in DATA_PATH. The split 'test' is DATA_PATH/test.csv,
    or the rows of test; 'all' is one table without splits.
    """

    def read(self, split: str) -> ImageFiles:
        parts = self.parts(self.data)
        train = parts.get("train")
        if train and split != "test" and "val" not in parts:
            listing = read_table(train, train, self.data, self.numbers)
            if len(listing.paths):
                listing = split_listing(listing, split, self.splitter)
        elif split in parts:
            listing = read_table(parts[split], train or parts[split], self.data, self.numbers)
        else:
            raise UserError(f"{self.root}: has no images of the split {split}; add a table or rows of it")
        if train and split == "train":
            listing.notes += _notes_on_groups(train[0], self.data)
        return self.images(listing, [table for table, _ in parts.values()])

    def images(self, listing: Listing, tables: Sequence[Table]) -> ImageFiles:
        """The images of a listing, from these tables."""
        return ImageFiles(listing)

    @classmethod
    def find(cls, data: Data) -> dict[str, Table]:
        """The table of each split, or of 'all'; raises UserError if there is none."""
        root = Path(data.data_path)
        files = (
            {split: table_file(root, split) for split in ("train", "val", "test")} if root.is_dir() else {"all": root}
        )
        found = {split: file for split, file in files.items() if file.is_file()}
        if not {"train", "val"} & found.keys():
            metadata = [root / name for name in METADATA if (root / name).is_file()]
            found |= {"all": metadata[0]} if metadata else {} if found else dict(islice(files.items(), 1))
        return {split: Table(file, data.encoding) for split, file in found.items()}

    @classmethod
    def parts(cls, data: Data) -> dict[str, Part]:
        """The table of each split, and the split of its rows to read; 'train' is one table without splits."""
        tables = cls.find(data)
        whole = tables.get("all") or (None if "val" in tables else tables.get("train"))
        if not whole:
            return {split: (table, None) for split, table in tables.items()}
        splits = find_layout(whole, data).splits
        of_whole: dict[str, Part] = {split: (whole, split) for split in splits} or {"train": (whole, None)}
        return {split: (table, None) for split, table in tables.items() if table is not whole} | of_whole

    @classmethod
    def splits_of(cls, data: Data) -> Collection[str]:
        parts = cls.parts(data)
        if "all" in cls.find(data) and parts.keys() == {"train"}:  # one table
            return ()
        return [split for split in parts if split != "test" or cls.find_test(data)[0]]

    @classmethod
    def find_test(cls, data: Data) -> tuple[bool, str | None]:
        path, part = table_file(Path(data.data_path), "test"), None
        with suppress(UserError):  # of the training table, or of one without labels
            part = cls.parts(data).get("test")
        if not (path := part[0].file if part else path).exists():
            return False, None
        try:
            rows = table_rows(part[0], data, part[1]) if part else Rows(path)
        except UserError:  # an unreadable table is reported when it is read
            return without_labels(path, "has no column of labels")
        labels, few = [*filter(None, rows.target_ids)], len(rows.lines) < _FEW
        if len(labels) == 1 and re.fullmatch(rf"(-1{'' if few else '|0'})(\.0*)?", labels[0]):
            problem = f"all labels of the split test are {labels[0]}, as of images without labels"
            return without_labels(path, problem)
        return (True, None) if labels else without_labels(path, "no row of the split test has a label")


def table_file(root: Path, split: str) -> Path:
    """The table of a split, by its name (see `find_split_names`): train.csv, valid/metadata.csv; it may not exist."""
    stems = {name.removesuffix(".csv") for name in (os.listdir(root) if root.is_dir() else ())}
    named = [name for name in stems if SPLIT_NAMES.get(name.lower()) == split]
    for ending in (".csv", *(f"/{name}" for name in METADATA)):
        names = [name for name in named if Path(f"{root}/{name}{ending}").exists()]
        if names:
            return Path(f"{root}/{find_split_names(names, root)[split]}{ending}")
    return root / f"{split}.csv"


def read_table(part: Part, train_part: Part, data: Data, numbers: Numbers = Numbers()) -> Listing:  # noqa: B008
    """Reads a table with a column of paths and one of targets: whole numbers or names; or a column for each class.

    part: the table, and the split of the rows to read; None: all rows.

    Target names are sorted, and their positions are the labels. The names in `train_part` count for both splits; it may
    be the same as `part`.

    With DATA.MULTI_LABEL, a target has no, one or several labels, and `targets` of the listing are multi-hot, int8
    (N, C). The label separator is the first of | ; , in the targets of `train_part`, else of `part`; else white space.

    Error messages: as of `Lists.read`; also a name that `train_part` does not contain.
    Raises UserError: a file cannot be read or lacks a column; several labels per image without DATA.MULTI_LABEL.
    """
    (table, split), (train_table, of_train) = part, train_part
    rows = table_rows(table, data, split)
    train_rows = rows if part == train_part else table_rows(train_table, data, of_train)
    if data.multi_label:
        separator = _find_separator(train_rows.target_ids) or _find_separator(rows.target_ids)
        separator = ONE_HOT if train_rows.classes else separator
        labels = (name for target in train_rows.target_ids for name in split_labels(target, separator))
        known = dict.fromkeys(train_rows.classes or labels)
        names_of = {target: split_labels(target, separator) for target in rows.target_ids}
        return _to_listing(rows, names_of, known, train_rows, numbers, multi_label=True)
    targets = dict.fromkeys(filter(None, train_rows.target_ids))
    parts_of = Counter(part.strip() for target in targets for part in re.split(r"[|;]", target))
    recurring = {*targets, *(part for part, count in parts_of.items() if count > 1)}
    if several := next((target for target in targets if _has_several_labels(target, recurring)), None):
        line = train_rows.lines[train_rows.row_target_ids.index(train_rows.target_ids[several])]
        text = f"{train_table.file}:{line}: target {shorten(several.replace(ONE_HOT, ' | '))} has several labels"
        raise UserError(f"{text}; train with several: -dataset=csv -opts DATA.MULTI_LABEL=true, or write one per image")
    known = dict.fromkeys(train_rows.classes or targets)
    names_of = {target: [target] if target else [] for target in rows.target_ids}
    return _to_listing(rows, names_of, known, train_rows, numbers)


def _notes_on_groups(table: Table, data: Data) -> list[Note]:
    """Names a column that may be DATA.GROUPS by its name, with values that recur and are more than a few categories."""
    layout = find_layout(table, data)
    named = [name for name in table.header if _GROUP.fullmatch(name)]
    names = [name for name in named if name not in (layout.path, *layout.labels, layout.split)]
    if not names or data.groups or properties_of(data.dataset).groups_by != "column":
        return []
    place, option = table.header.index(names[0]), shlex.quote(f"DATA.GROUPS={names[0]}")
    values = Counter(record[place] for _, record in table if not isinstance(record, str))
    text = f"{table.file}: {shorten(names[0])} has {len(values):,} values in {values.total():,} rows"
    note = Note("screen", f"{text}; to keep the images of each in one split: -opts {option}")
    return [note] if 4 < len(values) < values.total() else []


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
    """Recognizes numbers, as in '0 3' and '[0, 3]', and names that are all known, as in 'cat|dog'."""
    if ONE_HOT in target:
        return True
    numbers = re.split(r"[\s,;|]+", target.strip("[]() "))
    if len(numbers) > 1 and all(map(str.isdecimal, numbers)):
        return True
    if target[:1] in ("[", "(") and len(split_labels(target, ",")) > 1:
        return True
    names = [name.strip() for name in re.split(r"[,;|]", target)]
    return len(names) > 1 and all(name in known for name in names)


def _to_listing(
    rows: Rows,
    names_of: Mapping[str, list[str]],
    known: Collection[str],
    train_rows: Rows,
    numbers: Numbers,
    multi_label: bool = False,
) -> Listing:
    """The listing of rows.

    names_of: the labels in each target, in the order of `rows.target_ids`.
    known: the labels in `train_rows`. If the first one is a number, or there is none, all labels are numbers.
    """
    if rows.outside:  # often of another machine
        (line, path), others = rows.outside[0], len(rows.outside) - 1
        problem = f"path {shorten(path)} is not inside {rows.root}{f', nor {others} others' if others else ''}"
        rows.add_finding(line, f"{problem}; write paths relative to it, or set DATA.IMAGE_ROOT to the folder of all")
    if not rows.target_ids and not rows.findings:
        rows.findings.append(f"{rows.file}: lists no images; add one line per image")
    used = {name for names in names_of.values() for name in names}.union(known)
    first_is_number, are_numbers = _is_number(next(iter(known), "0")), list(map(_is_number, known))
    is_numeric = first_is_number if numbers.known else 2 * sum(are_numbers) >= len(are_numbers)
    is_numeric &= not train_rows.classes
    problem = f"is not in {train_rows.file}; correct it or add it there"
    if is_numeric and (named := _number_names(used, known, numbers)):
        class_names = sorted({named[name] for name in known if name in named}, key=float)
        position = {name: label for label, name in enumerate(class_names)}
        label_of = {name: position[number] for name, number in named.items() if number in position}
        problem += ", or set MODEL.NUM_CLASSES, which keeps the numbers as they are"
        note = f"{train_rows.file}: the numbers are names of {len(class_names)} classes: {list_names(class_names)}"
        rows.notes.append(Note("log", f"{note} (MODEL.NUM_CLASSES keeps the numbers as they are)"))
        is_numeric = False
    elif is_numeric:
        label_of = {name: int(match[1]) for name in used if (match := _WHOLE_NUMBER.fullmatch(name))}
        class_names = [str(label) for label in range(max(label_of.values(), default=0) + 1)]
        problem = "is not a class number; number the classes from 0"
    else:
        class_names = list(train_rows.classes) or sorted(known)
        label_of = {name: label for label, name in enumerate(class_names)}
    labels_of, wrong = [], {}
    for target_id, names in enumerate(names_of.values()):
        labels_of.append([label_of[name] for name in names if name in label_of])
        if unknown := [name for name in names if name not in label_of]:
            mixed = "is not a class number, unlike most labels; correct it, or write names only"
            wrong[target_id] = f"label {shorten(unknown[0])} {problem if unknown[0] not in known else mixed}"
        elif not names and not multi_label:
            wrong[target_id] = _NO_LABEL
    target_ids, lines = np.frombuffer(rows.row_target_ids, np.int32), np.frombuffer(rows.lines, np.int32)
    for index in np.flatnonzero(np.isin(target_ids, list(wrong))):
        rows.add_finding(lines[index], wrong[target_ids[index]])
    if multi_label:
        check_target_bytes(rows.file, len(target_ids), len(class_names))
        of_ids: np.ndarray = np.zeros((len(labels_of), len(class_names)), dtype=np.int8)
        for row, labels in zip(of_ids, labels_of, strict=True):
            row[labels] = 1
    else:
        of_ids = np.array([(*labels, -1)[0] for labels in labels_of], dtype=np.int64)
    arrays = listing_arrays(rows.paths, of_ids[target_ids], lines)
    listing = Listing(
        rows.root, class_names, arrays, rows.file, rows.findings, rows.notes, has_class_names=not is_numeric
    )
    _report_repeated_images(listing)
    return listing


def _number_names(used: Collection[str], known: Collection[str], numbers: Numbers) -> dict[str, str]:
    """{label: name} of all labels that are whole numbers, '7' of '07' and '7.0'; empty if numbers are the labels."""
    found = {name: match[1] for name in used if (match := _NUMBER_AS_NAME.fullmatch(name))}
    named = {name: name if name in numbers.known else str(int(number)) for name, number in found.items()}
    in_train = {float(named[name]) for name in known if name in named}
    if numbers.known:
        return named if all(map(_NUMBER_AS_NAME.fullmatch, numbers.known)) else {}
    return named if numbers.are_names and in_train != set(range(len(in_train))) else {}


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
            text = f"{listing.file}:{lines[index]}: {shorten(path)} has other labels in line {lines[first]}"
            listing.findings.append(f"{text}; write all its labels in one line, and remove the other")
    if repeated_lines:
        text = f"{listing.file}: {len(repeated_lines)} image(s) are listed more than once"
        listing.notes.append(Note("log", f"{text}; the first repetition is in line {repeated_lines[0]}"))


def _is_number(target: str) -> bool:
    return re.fullmatch(r"[+-]?\d+(\.\d*)?", target) is not None  # float() reads the names nan and inf, too
