"""Lists and tables of images: PaddleViT's text lists, and CSV files with one or several labels per image.

Legend: N images, C classes.
"""

import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import Path

import numpy as np

from configs.schema import Data
from configs.yaml_io import shorten
from datasets.sources.class_names import list_names, positions
from datasets.sources.groups import suggest_groups
from datasets.sources.listing import name_like, paths_in
from datasets.sources.question import Question, Way, on_all_rows, with_columns, without_empty
from datasets.sources.samples import ImageFiles, check_target_bytes, listing_arrays, spread
from datasets.sources.shared_arrays import StringPacker, to_arrays
from datasets.sources.source import Source, Wanted, without_labels
from datasets.sources.split import History, count_known
from datasets.sources.tables.cells import UNKNOWN_MARK, multi_hot
from datasets.sources.tables.columns import find_layout
from datasets.sources.tables.files import (
    FOLDERS,
    LABEL_DIGITS,
    METADATA,
    TABLE_SUFFIXES,
    Layout,
    Table,
    TextList,
    table_file,
)
from datasets.sources.tables.joins import check_splits_beside, open_for
from datasets.sources.tables.rows import TableRows, table_rows
from utils.errors import Unavailable, UserError
from utils.notes import Note

_WHOLE_NUMBER = re.compile(r"([+-]?\d{1,18})(?:\.0*)?")  # also 3.0, as pandas writes a column with gaps
_NUMBERS = re.compile(r"[\[( ]*\d+([\s,;|]+\d+)+[\]) ]*")  # several in a target
_NUMBER = re.compile(r"[+-]?\d+(\.\d*)?")  # float() reads the names nan and inf, too
_FOLDS = re.compile(r"(?i)(k|cv)?[ _-]?folds?([ _-]?(id|no|nr|number))?")
_MOST_FOLDS = 20
_NO_LABEL = re.compile(r"(?i)(no|without)[ _-](findings?|labels?|disease)|none|nothing|normal|healthy|negative")


@dataclass(eq=False)
class TableSplit:
    """The rows of a split in a table, all without a split, which are read once."""

    table: Table
    data: Data
    split: str | None = None

    @cached_property
    def rows(self) -> TableRows:
        return table_rows(self.table, self.data, self.split)


class Tables(Source):
    """DATA_PATH/train.csv and DATA_PATH/val.csv, see `read_table`; or one table, with splits in it or to be split.

    A table is also one of `METADATA` in the folder of a split, or in DATA_PATH. The split 'test' is DATA_PATH/test.csv,
    or the rows of test; 'all' is one table without splits.
    """

    def read(self, split: str) -> ImageFiles:
        parts = self.splits
        of_train = parts.get("train", parts.get("all", parts[split]))
        listing = read_table(parts[split], of_train, self.wanted)
        if self.reads_train and split in ("train", "all"):
            table = parts[split].table
            if self.uncut and not parts[split].split and "split" not in self.data.given_columns:
                listing.notes += check_splits_beside(listing, table, self.data)
            if table.doubt:
                raise table.doubt
            if self.wanted.suggests:
                listing.notes += suggest_groups(listing, self.data, table, self.uncut is not None)
                listing.notes += _notes_on_folds(table, self.data) if self.uncut else []
        return listing

    def find(self) -> Mapping[str, Table]:
        """The table of each split, or of 'all'; raises UserError if there is none."""
        root = self.root
        data = self.data
        if not root.is_dir():
            return {"all": open_for(root, data)}
        files = {split: table_file(root, split) for split in ("train", "val", "test")}
        found = {split: file for split, file in files.items() if file.is_file()}
        metadata = [root / name for name in METADATA if (root / name).is_file()]
        if metadata and found.keys().isdisjoint(("train", "val")):
            found["all"] = metadata[0]
        if not found:
            if not data.multi_label and paths_in(root, "[!.]*/"):
                more = " -opts DATA.IMAGE_ROOT=null" if data.image_root else ""
                raise UserError(
                    f"{root}: has no table train.csv or val.csv; "
                    f"give the file of another table, or for class folders -dataset=folder{more}"
                )
            found = files  # the error names a file that is not there
        return {split: open_for(file, data) for split, file in found.items()}

    @cached_property
    def splits(self) -> dict[str, TableSplit]:
        """The rows of each split; 'all' is one table without splits."""
        tables = self.find()
        parts = {split: TableSplit(table, self.data) for split, table in tables.items()}
        whole = "all" if "all" in tables else "train"
        if whole not in tables:
            return parts
        layout = find_layout(tables[whole], self.data)
        splits = {*layout.split_of.values()}
        if "val" in tables:  # of train.csv, rows of val and test are not trained on
            file = tables[whole].file
            if layout.split == FOLDERS and "test" in splits:
                ways = [on_all_rows(self.data), Way("remove their rows")]
                raise Question(f"{file}: images of train are in folders of test; ", ways)
            if "val" in splits and layout.split != FOLDERS:
                text = f"rows of val in column {layout.split} are not read, beside {tables['val'].file}"
                tables[whole].notes.append(Note("screen", f"{file}: {text}"))
            splits = splits - {"val"} if layout.split != FOLDERS else set()
        if splits:
            del parts[whole]
        return {split: TableSplit(tables[whole], self.data, split) for split in splits} | parts

    @property
    def way_to_folds(self) -> str:  # type: ignore[override]
        """For a column of splits, the option that joins train and val."""
        table = self.splits["train"].table
        layout = find_layout(table, self.data)
        if self.splits["val"].table != table or layout.split in (None, FOLDERS):
            return super().way_to_folds
        tests = sorted({text for text in table.column(layout.split) if layout.split_of[text.lower()] == "test"})
        split = {"column": layout.split, "test": tests} if tests else None
        return f"-opts {with_columns(self.data, {'split': split}).options} joins train and val"

    def find_test(self) -> tuple[bool, str | None]:
        part = None
        with suppress(UserError):  # an unreadable table is reported when it is read
            part = self.splits.get("test")
        if not part:
            return False, None
        table = part.table
        try:
            rows = part.rows
        except UserError:
            return without_labels(table.file, "has no column of labels")
        labels = {" ".join(_known_labels(target)) for target in rows.target_ids} - {""}
        first = next(iter(rows.target_ids), ())
        if not labels or (table.is_list and not first):  # perhaps the number of a path is no label
            return without_labels(table.file, "no row of the split test has a label")
        unknown = "-1|0" if len(rows.lines) >= 10 else "-1"  # so many are hardly all of class 0
        if len(labels) == 1 and re.fullmatch(rf"({unknown})(\.0*)?", labels.pop()):
            return without_labels(table.file, "all labels of the split test are 0 or -1, as of images without labels")
        return True, None


class Lists(Tables):
    """PaddleViT's lists `train_list.txt` and `val_list.txt` in DATA_PATH, and `test_list.txt`.

    A line is a path relative to DATA.IMAGE_ROOT (default: the list's folder), white space, and a label.
    """

    def find(self) -> dict[str, Table]:
        root = self.root
        needed = "a folder with train/ and val/, or with train_list.txt and val_list.txt"
        if root.is_file():
            raise UserError(f"{root}: is a file; give {needed}, or a table ({', '.join(TABLE_SUFFIXES)})")
        if not paths_in(root, "*"):  # perhaps a disk that is not mounted yet
            problem = "is empty" if root.is_dir() else f"no such folder{name_like(root)}"
            raise Unavailable(f"{root}: {problem}; give class folders, {needed} (-data_path)")
        files = {split: root / f"{split}_list.txt" for split in ("train", "val", "test")}
        lists = dict[str, Table]()
        for split, file in files.items():
            if split != "test" or file.exists():
                lists[split] = TextList(file)
                lists[split].layout = Layout("path", ("label",))
        return lists


def read_table(part: TableSplit, train_part: TableSplit, wanted: Wanted) -> ImageFiles:
    """Reads a table with a column of paths and one of targets: whole numbers or names; or a column for each class.

    Target names are sorted, and their positions are the labels. The names in `train_part` count for both splits; it may
    be the same as `part`.

    With DATA.MULTI_LABEL, a target has no, one or several labels, and `targets` of the listing are multi-hot, int8
    (N, C). The label separator is the first of | ; , in the targets of `train_part`, else of `part`; else white space.

    Findings: a missing path or label, a label that is no whole number below 10^6, a name that `train_part` lacks.
    Raises UserError: a file cannot be read or lacks a column; several labels per image without DATA.MULTI_LABEL.
    """
    table = part.table
    data = wanted.data
    is_list = table.is_list and not data.labels
    rows = part.rows
    if rows.unread:
        raise rows.unread
    train_rows = rows if is_list else train_part.rows
    if not (is_list or data.multi_label):
        _refuse_several_labels(train_rows, data)
    labels_in = _reader_of_labels(train_rows, rows, data.multi_label)
    names_of = [labels_in(target) for target in rows.target_ids]
    in_train = {*chain.from_iterable(map(labels_in, train_rows.target_ids))}
    in_all = in_train.union(*names_of)
    class_names, label_of, has_names = _find_classes(in_all, in_train, is_list, train_rows.classes, wanted)
    notes = [*rows.notes]
    problem = "is not a class number; number the classes from 0, or write names only"
    if has_names:
        problem = f"is not in {train_rows.file}; correct it, or add it there"
        if rows.file == train_rows.file:
            problem = "has no row of train; correct it, or add one"
        notes += _notes_on_words(train_rows.file, class_names)
    labels_of = [[label_of.get(name, -1) for name in names] for names in names_of]
    findings = [*rows.findings]
    if data.multi_label:
        check_target_bytes(rows.file, len(rows.lines), len(class_names))
        of_ids = multi_hot(rows.target_ids if train_rows.classes else names_of, label_of, len(class_names))
        no_label = ""
        if wanted.is_new:
            notes += _notes_on_no_label(train_rows, class_names, names_of, data)
        if table.cut_line:  # the image of such a row would have no labels
            problem_of_end = "has fewer fields than the header, and the file ends in it: is it cut off?"
            findings.append(f"{rows.place(table.cut_line)}: {problem_of_end} Write the rest, or end the line")
    else:
        of_ids = np.array([(*labels, -1)[0] for labels in labels_of], np.int64)
        option = without_empty(data, bool(train_rows.classes)).options
        no_label = f"has no label; fill it in, or read the others with -dataset=csv -opts {option}"
        if is_list:
            no_label = "does not end with a class number; write a path, a space, and a number from 0 or one word"
    findings += _find_wrong_labels(rows, names_of, labels_of, problem, no_label)
    if not rows.target_ids and not findings:
        findings.append(f"{rows.file}: lists no images; add one line per image")
    targets = of_ids[np.frombuffer(rows.row_target_ids, np.int32)]
    lines = np.frombuffer(rows.lines, np.int32)
    arrays = _named_as_before(rows, train_rows, wanted.history) | {"targets": targets, "lines": lines}
    listing = ImageFiles(rows.root, class_names, arrays, rows.file, findings, notes, has_class_names=has_names)
    return _with_repeated(listing, is_list)


def _named_as_before(rows: TableRows, train_rows: TableRows, history: History) -> dict[str, np.ndarray]:
    """The names and files of images as arrays, with the names that the run of the history gave them.

    An earlier version named them by the rule that found them: by paths in the folder of the images, in the table's, or
    in the one around it. The rule whose names the run knows most of counts, of equal ones the present one.
    """
    known = history.of_images
    if known:
        few = spread(len(train_rows.names), 200)
        files = [train_rows.files[index] for index in few]
        names = train_rows.names.strings()
        numbers: dict[Path | None, int] = {None: count_known(known, [names[index] for index in few])}
        for base in (rows.root, rows.file.parent, rows.file.parent.parent):
            numbers.setdefault(base, count_known(known, _relative_to(base, train_rows.root, files)))
        found = max(numbers, key=numbers.__getitem__)
        if found:
            before = StringPacker(_relative_to(found, rows.root, rows.files))
            return listing_arrays(before) | to_arrays(rows.files, "places")
    return listing_arrays(rows.names) | rows.arrays()


def _relative_to(base: Path, root: Path, files: Iterable[str]) -> list[str]:
    """The paths of files in `root` from another folder."""
    return [os.path.relpath(os.path.join(root, file), base) for file in files]


def _reader_of_labels(
    train_rows: TableRows, rows: TableRows, multi_label: bool
) -> Callable[[tuple[str, ...]], list[str]]:
    """Finds the labels in a target: with `multi_label` those between separators, else at most one."""
    if not multi_label:
        return lambda target: [" | ".join(target)] if target else []  # several are no class
    if train_rows.classes:
        return _known_labels
    texts = ["\n".join(chain.from_iterable(one.target_ids)) for one in (train_rows, rows)]
    separator = next((mark for text in texts for mark in "|;," if mark in text), None)
    if not separator and _are_phrases(train_rows):
        separator = "\n"
    return lambda target: split_labels("".join(target), separator)


def _are_phrases(rows: TableRows) -> bool:
    """Whether labels have several words, and few words recur: Lung Opacity, No finding."""
    words = {word for target in rows.target_ids for word in "".join(target).split()}
    return len(words) > len(rows.target_ids) and not any(map(str.isdigit, words))


def _known_labels(target: Iterable[str]) -> list[str]:
    """The labels that are not unknown."""
    return [name for name in target if not name.startswith(UNKNOWN_MARK)]


def _notes_on_words(file: Path, names: Sequence[str]) -> list[Note]:
    words = {word for name in names for word in re.split(r"[,\s]+", name)}
    if len(words) >= len(names) and not _are_decimals(names):  # 0,5 is a grade, or 0 and 5
        return []
    text = f"{file}: the {len(names)} classes combine {len(words)} words: {list_names(names, 2)}"
    fix = "if these are several labels of an image: -dataset=csv -opts DATA.MULTI_LABEL=true"
    return [Note("warning", f"{text}; {fix}")]


def _notes_on_folds(table: Table, data: Data) -> list[Note]:
    """A line about a column of folds, by which the images are not split."""
    layout = find_layout(table, data)
    used = {layout.path, *layout.labels, layout.split, data.groups}
    names = [name for name in table.header if _FOLDS.fullmatch(name) and name not in used]
    notes = []
    for name in names if "split" not in data.given_columns else ():
        values = sorted({*table.column(name)} - {""})
        if 1 < len(values) <= _MOST_FOLDS:
            option = with_columns(data, {"split": {"column": name, "val": values[:1]}}).options
            text = f"the {len(values)} values of {shorten(name)} do not split the images"
            notes.append(Note("screen", f"{table.file}: {text}; -opts {option} validates on one of them"))
    return notes


def _notes_on_no_label(
    rows: TableRows, class_names: Sequence[str], names_of: Sequence[list[str]], data: Data
) -> list[Note]:
    """A line about a label as No Finding that is never beside another one, and counts as a class."""
    notes = []
    for name in filter(_NO_LABEL.fullmatch, class_names):
        is_alone = all(len(names) == 1 for names in names_of if name in names)
        if is_alone and not rows.classes:
            option = with_columns(data, {"cells": {name: 0}}, several=True).options
            text = (
                f"{rows.file}: {shorten(name)} counts as a class in all figures; if it means no label: -opts {option}"
            )
            notes.append(Note("screen", text))
    return notes


def _find_wrong_labels(
    rows: TableRows, names_of: Sequence[list[str]], labels_of: Sequence[list[int]], problem: str, no_label: str
) -> Iterator[str]:
    """The rows with a wrong label, or, given the problem `no_label`, without one."""
    wrong = {}
    for target_id, labels in enumerate(labels_of):
        if -1 in labels:
            wrong[target_id] = f"label {shorten(names_of[target_id][labels.index(-1)])} {problem}"
        elif not labels and no_label:
            wrong[target_id] = no_label
    target_ids = np.frombuffer(rows.row_target_ids, np.int32)
    found = np.flatnonzero(np.isin(target_ids, [*wrong])).tolist()
    also = ""
    if len(wrong) == len(labels_of) == 1 < len(found):  # one mistake in all of them
        also = f" (as all {len(found)} rows)"
        del found[1:]
    for row in found:
        yield f"{rows.place(rows.lines[row])}: {shorten(rows.names.strings()[row])}{also}: {wrong[target_ids[row]]}"


def split_labels(target: str, separator: str | None) -> list[str]:
    """The labels of a target, each once, in order; without brackets, and quotes in them, as in "['cat', 'dog']"."""
    bare = target.strip()
    quotes = ""
    bracketed = re.fullmatch(r"[\[(](.*)[\])]", bare, re.DOTALL)
    if bracketed:
        bare = bracketed[1]
        quotes = "'\""
    names = (part.strip().strip(quotes) for part in bare.split(separator))
    return list(dict.fromkeys(filter(None, names)))


def _are_decimals(texts: Iterable[str]) -> bool:
    """Whether all are as 1,5; where images have several labels, their number differs."""
    return all(re.fullmatch(r"\d+,\d+", text) for text in texts)


def _refuse_several_labels(rows: TableRows, data: Data) -> None:
    """Raises UserError for numbers, as '0 3' and '[0, 3]', and for names that recur, as 'cat|dog'."""
    texts = [" | ".join(target) for target in rows.target_ids if target]
    if _are_decimals(texts):
        return
    parts_of = Counter(part.strip() for text in texts for part in re.split(r"[|;]", text))
    known = {*texts, *(part for part, count in parts_of.items() if count > 1)}
    for target, target_id in rows.target_ids.items():
        text = " | ".join(target)
        names = [name.strip() for name in re.split(r"[,;|]", text)]
        is_marked = "|" in text and not known.isdisjoint(names)
        are_known = len(names) > 1 and known.issuperset(names)
        is_list = text[:1] in ("[", "(") and len(split_labels(text, ",")) > 1
        if len(target) > 1 or is_marked or are_known or is_list or _NUMBERS.fullmatch(text):
            line = rows.lines[rows.row_target_ids.index(target_id)]
            several = with_columns(data, {}, several=True)
            options = f"-dataset=csv -opts {several.options}"
            ways = [Way(f"{options} trains with several, or write one per image (1, not 1,0)", several)]
            if kept := _one_per_image(rows):
                left_out = list_names([name for name in rows.classes if name not in kept])
                one = replace(with_columns(data, {"label": kept}), note=f", without the labels {left_out}")
                ways.append(Way(f"-dataset=csv -opts {one.options} trains with one per image{one.note}", one))
            raise Question(f"{rows.file}:{line}: target {shorten(text)} has several labels; ", ways)


def _one_per_image(rows: TableRows) -> list[str]:
    """The columns of which each row has exactly one 1, without others that a row with the most labels has, if any."""
    most = max(rows.target_ids, key=len)
    for kept in most:
        left_out = {*most} - {kept}
        labels = [{*target} - left_out for target in rows.target_ids]
        has_one_each = all(len(names) == 1 for names in labels)
        is_always_kept = all(names == {kept} for names in labels)
        if left_out and has_one_each and not is_always_kept:
            return [name for name in rows.classes if name not in left_out]
    return []


def _find_classes(
    names: Set[str], in_train: Set[str], is_list: bool, classes: Sequence[str], wanted: Wanted
) -> tuple[list[str], dict[str, int], bool]:
    """The names of the classes, the label of each of `names`, and whether they are more than the labels.

    in_train: the names in the training, which are numbers if most are, or of a list. A whole
    number is '7' of '07' and '7.0'. Numbers are names of the classes of a checkpoint if all of these are numbers, else
    if those in the training are not 0, 1, 2, ...
    """
    if is_list:
        wanted = Wanted(Data())
    elif classes or not _are_numbers(in_train, wanted):
        class_names = [*(classes or sorted(in_train))]
        return class_names, positions(class_names), True
    numbers = {}
    for name in names:
        if match := _WHOLE_NUMBER.fullmatch(name):
            numbers[name] = match[1]
    name_of = {text: text if text in wanted.class_names else str(int(number)) for text, number in numbers.items()}
    trained = {name_of[text] for text in in_train if text in name_of}
    are_names = wanted.may_name_by_number and {*map(float, trained)} != set(range(len(trained)))
    if wanted.class_names:
        are_names = all(map(_WHOLE_NUMBER.fullmatch, wanted.class_names))
    if numbers and are_names:
        class_names = sorted(trained, key=float)
        position = positions(class_names)
        return class_names, {text: position[name] for text, name in name_of.items() if name in position}, True
    labels = {
        text: int(number) for text, number in numbers.items() if number.isdecimal() and len(number) <= LABEL_DIGITS
    }
    return [*map(str, range(max(labels.values(), default=0) + 1))], labels, False


def _are_numbers(names: Collection[str], wanted: Wanted) -> bool:
    if wanted.may_name_by_number and any(re.fullmatch(r"0\d+", name) for name in names):  # as 007, of folders
        return False
    each = [_NUMBER.fullmatch(name) is not None for name in names]
    return 2 * sum(each) >= len(each)


def _with_repeated(listing: ImageFiles, is_list: bool) -> ImageFiles:
    """An image with other labels in several rows has them all, or without several labels an error for each row.

    A note counts rows that are there twice. is_list: as of `Table`.
    """
    lines = listing.arrays["lines"]
    targets = listing.arrays["targets"]
    _, position, counts = np.unique(listing.arrays["paths_crcs"], return_inverse=True, return_counts=True)
    rows_of = defaultdict(list)
    for index in np.flatnonzero(counts[position] > 1).tolist():
        rows_of[listing.paths[index]].append(index)
    again = []
    joined = []
    fix = "remove one"
    if not is_list:
        fix = "-dataset=csv -opts DATA.MULTI_LABEL=true gives an image the labels of all its rows, or remove one"
    for path, (first, *others) in rows_of.items():
        differs = (targets[others] != targets[first]).any(tuple(range(1, targets.ndim)))
        if not differs.any():
            again += others
        elif targets.ndim == 2:
            targets[first] = targets[[first, *others]].max(0)
            joined += others
        elif os.path.isfile(listing.name(first)):  # else the paths are wrong
            for index in np.compress(differs, others).tolist():
                text = f"{listing.file}:{lines[index]}: {shorten(path)} has another label in line {lines[first]}"
                listing.findings.append(f"{text}; {fix}")
    if again:
        example = f"{shorten(listing.paths[again[0]])} in line {lines[again[0]]}"
        text = f"{listing.file}: {len(again)} rows name an image and its label again, such as {example}"
        listing.notes.append(Note("screen", f"{text}; each row counts as an image"))
    if not joined:
        return listing
    text = f"{listing.file}: {len(joined)} rows add labels to an image of another row, such as line {lines[joined[0]]}"
    listing.notes.append(Note("screen", text))
    return listing.select(np.setdiff1d(np.arange(len(targets)), joined))
