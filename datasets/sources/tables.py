"""Files that list images, one row per image: text lists, CSV files and JSON lines; the meaning of their columns, and
where the images are.

An error is raised at once if nothing can be read.
"""

import contextlib
import csv
import io
import json
import os
import re
from array import array
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from shlex import quote
from typing import Any

from configs.schema import Data
from configs.yaml_io import shorten
from datasets.decoding.images import IMAGE_EXTENSIONS, PHOTO_EXTENSIONS
from datasets.sources.names import MASK, SPLIT_NAMES, label_in, split_of, split_of_images, word_in
from datasets.sources.samples import Listing, listing_arrays
from datasets.sources.shared_arrays import StringPacker, to_arrays, to_nfc
from utils.errors import Finding, UserError, combine_findings, error_from
from utils.files import open_regular_file
from utils.notes import Note

CHOICES = '{"choices"'  # Label Studio's CSV: {"choices": ["cat", "dog"]} beside plain names
_OBJECT = re.compile(rf"(?!{CHOICES}){{")
TEXT_LIST, JSON_LINES, PARQUET = ".txt", ".jsonl", ".parquet"
TABLE_SUFFIXES = (".csv", ".tsv", JSON_LINES, PARQUET)
LABEL_DIGITS = 6  # a longer label is a typing error, and would create as many classes
_FOLDERS = "the first folders of the paths"  # in place of a column of splits
_SEPARATORS = ",;\t|"  # spreadsheets write semicolons where the comma is the decimal sign
_INVISIBLE = " \u200b\u200c\u200d\u200e\u200f\u2060\ufeff"  # of web pages and spreadsheets
_MAX_DISTINCT = 30  # values of a column that are compared
# Names of columns, in lower case without signs; names of the second kind count if there is none of the first kind.
_PATHS = (
    re.compile("(image|img|file|rel|relative)*paths?|(image|img|file)+names?|(image|img)*files?|images?|imgs?"),
    re.compile("(image|img|file)?ids?|idcode"),
    re.compile("(photo|isic)ids?"),
)
_LABELS = (
    re.compile("(class|label|category|species|target)(name)?s?|classes|categories|breed|diagnosis"),
    re.compile("(class|label|category|target)(id|idx|index)"),
)
_DOCUMENTED = {"image_path", "target"}
_SPLIT = re.compile(r"(data|train|val|test)*(split|partition)s?(name|id|set|type)?\d*")
_MAYBE_SPLITS = {"set", "subset", "dataset", "fold", "phase", "usage", "mode", "part", "stage"}
_SPLIT_FLAG = re.compile("(?:is)?(train|val|test)(?:ing|id|idation)?(?:image|img|sample|set|split)?")
_SPLIT_WORDS = {**SPLIT_NAMES, "dev": "val", "eval": "val", "evaluation": "val"}
_LABELLED = re.compile(r"(.*\S)\s+([0-9]+(?:\.0*)?)")  # a line of a list
_OTHER_WIDTH = "the number of fields differs from the header's; quote a path that contains a separator"
_ONE = re.compile("[1tT]")
_BINARY = re.compile(r"[01](\.0*)?|true|false", re.IGNORECASE)
_MAX_TRIED = 200  # images that show the folder
_MAX_SEARCHED = 200_000  # files and folders among which images are found by their names
_ENDINGS = (*IMAGE_EXTENSIONS, *PHOTO_EXTENSIONS)
_MASKS = re.compile(rf"(.*[ ._-])?({MASK})([ ._-].*)?", re.IGNORECASE)

Cells = dict[str, str]  # the text in each column of a row


def read_lines(file: Path, encoding: str = "utf-8-sig", errors: str = "surrogateescape") -> Iterator[str]:
    """The lines of a file; bytes that are not in its encoding become surrogates, as in the names of files."""
    try:
        with io.TextIOWrapper(open_regular_file(file), encoding=encoding, errors=errors, newline=None) as lines:
            yield from lines
    except OSError as error:
        fix = "check the path, DATA.DATA_PATH and DATA.DATASET"
        raise error_from(error, f"{file}: cannot be read ({error.strerror}); {fix}") from error


@dataclass(frozen=True)
class Layout:
    """The meaning of the columns of a table.

    path: the column of paths. labels: the column of labels or, with `is_one_hot`, a column of 0 and 1 for each class.
    split: the column of splits, or `_FOLDERS`; None without one. split_of: the split of each of its values, in lower
    case; empty if the table has no splits.
    """

    path: str
    labels: tuple[str, ...]
    is_one_hot: bool = False
    split: str | None = None
    split_of: Mapping[str, str] = field(default_factory=dict)

    def split_in(self, cells: Cells) -> str:
        """The split of a row of a table with splits."""
        text = _first_folder(cells[self.path]) if self.split == _FOLDERS else cells[self.split or ""]
        return self.split_of[text.lower()]

    def labels_in(self, cells: Cells) -> list[str]:
        """The text of the label of a row, or the names of its columns with 1; may be empty."""
        if self.is_one_hot:
            return [name for name in self.labels if _ONE.match(cells[name])]
        return [cells[name] for name in self.labels if cells[name]]


class Table:
    """A file that lists images. Iteration yields the number of a line, and the text in each column of it.

    encoding: of a file that is not in UTF-8 or, by its byte order mark, in UTF-16. mistakes: the problem of each line
    that was not yielded. notes: lines for the log. has_numbers: labels are class numbers, or names; None: their texts
    decide.
    """

    has_numbers: bool | None = None
    root: Path | None = None  # of the paths, if it is not the folder of the table
    columns: Mapping[str, str] = {}  # as DATA.COLUMNS, if the table names them
    classes: Mapping[str, tuple[str, ...]] = {}  # the names of all classes of a column, if the table has them
    layout: Layout | None = None  # see `find_layout`

    def __init__(self, file: Path, encoding: str | None = None) -> None:
        self.file, self.notes, self.mistakes, self._separator, self._start = file, list[Note](), dict[int, str](), "", 0
        for self._encoding in ("utf-8-sig", "utf-16", *([encoding] if encoding else [])):
            with contextlib.suppress(UnicodeError):  # any file is text in some encoding of one byte, so none is guessed
                if not any("\0" in line for line in read_lines(file, self._encoding, "strict")):
                    break
        else:
            problem = f"{file}: is not text in UTF-8{f' or {encoding}' if encoding else ''}"
            raise UserError(f"{problem}; name its encoding, such as -opts DATA.ENCODING=cp1252; save a workbook as CSV")
        if file.suffix.lower() == JSON_LINES:
            self.header = list(dict.fromkeys(key for _, record in self._objects() for key in record))
            return
        first, second = [*islice(read_lines(file, self._encoding), 2), "", ""][:2]
        if marked := re.fullmatch(r"\"?sep=(.)\"?\s*", first):  # a line for Excel, before the header
            self._start, first = 1, second
        self._separator = marked[1] if marked else max(_SEPARATORS, key=first.count)
        name = self._encoding.removesuffix("-sig")
        if (self._separator, name) != (",", "utf-8"):
            self.notes.append(Note("log", f"{file}: separator {self._separator!r}, encoding {name}"))
        self.header = next(self._lines(), (0, list[str]()))[1]

    def __iter__(self) -> Iterator[tuple[int, Cells]]:
        if self._separator:
            yield from (
                (line, dict(zip(self.header, row, strict=True))) for line, row in islice(self._lines(), 1, None)
            )
            return
        for line, record in self._objects():
            values = ((name, record.get(name)) for name in self.header)
            texts = ((name, one[0] if isinstance(one, list) and len(one) == 1 else one) for name, one in values)
            yield line, {name: "" if one is None else _clean(str(one)) for name, one in texts}

    def column(self, name: str) -> Iterator[str]:
        return (cells[name] for _, cells in self)

    def _lines(self) -> Iterator[tuple[int, list[str]]]:
        """The header and the rows of a CSV file; spreadsheets write empty rows, which are left out."""
        lines = islice(read_lines(self.file, self._encoding), self._start, None)
        reader, width = csv.reader(lines, delimiter=self._separator, skipinitialspace=True, strict=True), 0
        try:
            for row in reader:
                if any(texts := list(map(_clean, row))):
                    width = width or len(row)
                    if len(row) == width:
                        yield reader.line_num + self._start, texts
                    else:
                        self.mistakes[reader.line_num + self._start] = _OTHER_WIDTH
        except csv.Error as error:  # the lines after it cannot be parsed reliably
            self.mistakes[reader.line_num + self._start] = f"is not valid CSV ({error}); correct the line"

    def _objects(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """The JSON object of each line."""
        for number, line in enumerate(read_lines(self.file, self._encoding), 1):
            record = None
            with contextlib.suppress(ValueError, RecursionError):
                record = json.loads(line)
            if isinstance(record, dict) and record:
                yield number, record
            elif line.strip():
                self.mistakes[number] = "is not a JSON object; write one for each image in a line"


class TextList(Table):
    """PaddleViT's lists: a path, which may contain spaces, white space, and a class number, which may lack."""

    has_numbers, layout = True, Layout("path", ("label",))

    def __init__(self, file: Path) -> None:
        self.file, self.notes, self.mistakes, self.header = file, [], {}, ["path", "label"]

    def __iter__(self) -> Iterator[tuple[int, Cells]]:
        for number, line in enumerate(map(str.strip, read_lines(self.file)), 1):
            if line:
                labelled = _LABELLED.fullmatch(line)
                yield number, {"path": labelled[1] if labelled else line, "label": labelled[2] if labelled else ""}


def _clean(text: str) -> str:
    return text.strip().strip(_INVISIBLE)


def find_layout(table: Table, data: Data, predicts: bool = False) -> Layout:
    """The meaning of the columns, by DATA.COLUMNS, their names, and their values; a note names them.

    predicts: only the column of paths is needed: DATA.COLUMNS' one if the table has it, or the only column.
    Raises UserError: a column is missing, or it is not clear which one is meant.
    """
    if table.layout:
        return table.layout
    header, given = table.header, dict[Any, Any](table.columns) | (data.columns or {})
    if any(name.lower().endswith(IMAGE_EXTENSIONS) for name in header):
        fix = "write the names of the columns above it, such as image_path and target"
        raise UserError(f"{table.file}:1: has no header, but the row {shorten(header)}; {fix}")
    for name in chain.from_iterable(one if isinstance(one, list) else [one] for one in given.values()):
        if name not in (None, *header) and not predicts:
            problem = f"has no column {shorten(name)} (DATA.COLUMNS, DATA.GROUPS)"
            raise UserError(f"{table.file}:1: {problem}; it has {', '.join(map(shorten, header))}")
    path, label, has_labels = given.get("path"), given.get("label"), not (predicts or data.labels)
    if predicts and path not in header:
        path = header if len(header) == 1 else None
    paths = _names(header, path, _PATHS)
    labels = _names([one for one in header if one not in paths], label, _LABELS) if has_labels else []
    others = [name for name in header if name not in (*paths, *labels, data.groups)]
    values: dict[str, set[str]] = {name: set() for name in (*header, _FOLDERS)}  # all of a column, if they are few
    for _, cells in table:
        cells[_FOLDERS] = _first_folder(cells.get([*paths, _FOLDERS][0], ""))
        for name, text in cells.items():
            if len(values[name]) <= _MAX_DISTINCT:
                values[name].add(text)
    split, of_values = (None, {}) if predicts else _find_split(table, others, values, data)
    rest = [name for name in others if name != split and not re.fullmatch(r"(Unnamed: \d+)?", name)]  # pandas' index
    binary = [name for name in rest if _are(_BINARY, values[name])]
    is_one_hot = has_labels and not isinstance(label or "", str)
    if has_labels and not labels and 1 < len(rest) == len(binary):
        labels, is_one_hot = rest, True
    elif has_labels and not labels and len(rest) == 1 and paths:
        labels = rest if 2 * len(values[rest[0]]) <= len(values.get(paths[0], ())) else []
    objects = {name for name in header if any(map(_OBJECT.match, values[name]))}
    labels = [name for name in labels if label or name not in objects]
    for kind, names in (("paths", paths), ("labels", labels)):
        may_differ = kind == "labels" and (is_one_hot or not has_labels)
        if (len(names) != 1 and not may_differ) or any(header.count(name) != 1 for name in names):
            if not names and any(re.fullmatch(r"(?i)(pixel|px)_?\d*s?", name) for name in header):
                fix = "-dataset=torchvision/FER2013 or MNIST reads such sets; of others, write the images to files"
                raise UserError(f"{table.file}:1: the pixels of the images are in its columns; {fix}")
            images = [name for name in header if any(one.lower().endswith(IMAGE_EXTENSIONS) for one in values[name])]
            advice: dict[str, Any] = {"path": [*paths, *images, "NAME"][0]}
            few = [name for name in rest if name != advice["path"] and name not in objects]
            few.sort(key=lambda name: (len(values[name]) < 2, len(values[name])))
            flags = [binary] if len(binary) > 1 else few
            advice |= {"label": [*labels, *flags, "NAME"][0]} if has_labels else {}
            raise _unclear(table, kind, names, data, advice)
    of_values = of_values if len(set(of_values.values())) > 1 else {}
    used = f"paths {shorten(paths[0])}, labels {shorten(labels)}, splits {shorten(split or 'none')}"
    note = Note("log", f"{table.file}: of the columns {shorten(header)} it reads {used} (DATA.COLUMNS)")
    table.notes += [] if predicts else [note]
    table.layout = Layout(paths[0], tuple(labels), is_one_hot, split, of_values)
    return table.layout


def _unclear(table: Table, kind: str, names: Sequence[str], data: Data, advice: Mapping[str, Any]) -> UserError:
    option = quote(f"DATA.COLUMNS={json.dumps({**(data.columns or {}), **advice}, ensure_ascii=False)}")
    fix = f"give each column a name of its own in the first line, and name them: -opts {option}"
    if kind == "splits":
        fix += " (of train, val and test, or of 0 and 1 if it is is_valid; null: trains on all rows)"
    found = f"the {kind} are {' or '.join(map(shorten, names)) or 'not clear'} in the columns {shorten(table.header)}"
    row = next(([cells[name] for name in table.header] for _, cells in table), [])
    return UserError(f"{table.file}:1: {found}, with the row {shorten(row)}; {fix}")


def _names(header: Sequence[str], given: Any, known: Sequence[re.Pattern[str]]) -> list[str]:
    """The given columns, else those with the documented name, else those with a name of the first or second set."""
    if given:
        return [given] if isinstance(given, str) else list(given)
    named = [[name for name in header if kind.fullmatch(_plain(name))] for kind in known]
    return next(filter(None, ([name for name in named[0] if name in _DOCUMENTED], *named)), [])


def _plain(name: str) -> str:
    return re.sub(r"[\W_]+", "", name.lower())


def _first_folder(path: str) -> str:
    """The first folder of a path, '' without one: 'train' of 'train/a/1.jpg'."""
    return path.removeprefix("./").partition("/")[0] if "/" in path else ""


def _are(known: re.Pattern[str], values: Collection[str]) -> bool:
    return bool(values) and all(map(known.fullmatch, values))


def _find_split(
    table: Table, others: Sequence[str], values: Mapping[str, Collection[str]], data: Data
) -> tuple[str | None, Mapping[str, str]]:
    """`Layout.split` and `split_of`: of DATA.COLUMNS, else of a column among the `others`, else of the paths."""
    columns, of_values = data.columns or {}, {name: _splits_of(name, of) for name, of in values.items()}
    usable = [name for name in others if len({*(of_values[name] or {}).values()}) > 1]
    # 0 and 1 of 'train': of an attribute, or of a class
    unclear = [name for name in usable if _plain(name) in SPLIT_NAMES] + [n for n in others if of_values[n] is None]
    if "split" in columns:
        split = columns["split"]
        if not split or of_values.get(split):
            return split, of_values.get(split) or {}
        usable, unclear = [], [split]
    elif len(usable) < 2 and not unclear:
        split = [*usable, _FOLDERS][0]
        return split if len({*(of_values[split] or {}).values()}) > 1 else None, of_values[split] or {}
    raise _unclear(table, "splits", list(dict.fromkeys([*usable, *unclear])), data, {"split": [*usable, None][0]})


def _splits_of(name: str, values: Collection[str]) -> dict[str, str] | None:
    """The split of each value, in lower case; None if only the name is of splits, else empty."""
    lower, plain = {value.lower() for value in values}, _plain(name)
    flag = _SPLIT_FLAG.fullmatch(plain)
    if lower <= _SPLIT_WORDS.keys():
        return {value: _SPLIT_WORDS[value] for value in lower}
    if flag and _are(_BINARY, lower):
        other = "train" if flag[1] != "train" else "val"
        return {value: flag[1] if _ONE.match(value) else other for value in lower}
    is_named = plain not in SPLIT_NAMES and (flag or _SPLIT.fullmatch(plain))
    is_known = plain in _MAYBE_SPLITS and not lower.isdisjoint(_SPLIT_WORDS)
    is_number = plain in ("set", "subset") and _are(re.compile("[0-3]"), values)  # of MatConvNet
    return None if len(values) > 1 and (is_named or is_known or is_number) else {}


class Rows:
    """The rows of a list or table. Equal labels are stored once, in the order in which they first occur.

    root: folder of relative paths. anywhere: paths may be outside of it and of the file's folder.
    labels: DATA.LABELS, in place of the targets. by_name: the path of each image by its name, in place of the paths.
    classes: the names of the columns of 0 and 1, or of the classes if the table has them, in the order of the labels.
    """

    def __init__(
        self,
        file: Path,
        root: Path,
        by_name: Mapping[str, str],
        notes: Sequence[Note] = (),
        anywhere: bool = False,
        labels: str | None = None,
    ) -> None:
        self.file, self.root, self._by_name, self.notes = file, root, by_name, [*notes]
        self._anywhere, self._labels = anywhere, labels
        self.paths, self.row_target_ids, self.lines = StringPacker(), array("i"), array("i")
        self.target_ids: dict[tuple[str, ...], int] = {}
        self.classes: tuple[str, ...] = ()
        self.findings: list[Finding] = []
        self._endings: dict[str, dict[str, list[str]]] = {}  # by folder

    def add(self, line: int, path: str, target: Iterable[str] = ()) -> None:
        if not path or "\0" in path:
            fix = "save the file as text in UTF-8" if path else "fill it in or remove the line"
            self.add_finding(line, f"{shorten(path)} is not a path; {fix}")
            return
        path = self._by_name.get(os.path.basename(path), path) if self._by_name else path
        if not self._anywhere and (path.startswith("/") or ".." in path or "./" in path or "//" in path):
            absolute = os.path.abspath(os.path.join(self.root, path))
            roots = (f"{os.path.abspath(folder)}{os.sep}" for folder in (self.root, self.file.parent))
            if not absolute.startswith(tuple(roots)):  # often of another machine
                fix = "write paths relative to it, or set DATA.IMAGE_ROOT to the folder of all"
                self.add_finding(line, f"path {shorten(path)} is not inside {self.root}; {fix}")
                return
            path = os.path.relpath(absolute, self.root)
        path = self._with_ending(line, path)
        if self._labels and not (target := [*filter(None, [label_in(self._labels, path)])]):
            self.add_finding(line, f"DATA.LABELS {shorten(self._labels)} does not match {shorten(path)}; correct it")
            return
        self.paths.add(path)
        self.row_target_ids.append(self.target_ids.setdefault(tuple(map(to_nfc, target)), len(self.target_ids)))
        self.lines.append(line)

    def _with_ending(self, line: int, path: str) -> str:
        """The path of the one image whose name is `path` without its ending, as in tables of ids; else `path`."""
        if path.lower().endswith(_ENDINGS):
            return path
        folder, name = os.path.split(path)
        if folder not in self._endings:
            found = self._endings[folder] = dict[str, list[str]]()
            with contextlib.suppress(OSError):
                files = [entry.name for entry in os.scandir(self.root / folder) if entry.is_file()]
                for stem, ending in map(os.path.splitext, files):
                    if ending.lower() in _ENDINGS:
                        found.setdefault(stem, []).append(ending)
                for file in files:  # the path is a file itself
                    found.pop(file, None)
        endings = self._endings[folder].get(name, [])
        if len(endings) > 1:
            self.add_finding(line, f"{shorten(path)} is {' and '.join(sorted(endings))}; write the ending, too")
        return path + endings[0] if endings else path

    def add_finding(self, line: int, problem: str) -> None:
        self.findings.append(f"{self.place(line)}: {problem}")

    def place(self, line: int) -> str:
        """A line of the file; the files in a folder are not numbered."""
        return str(self.file) if self.file.is_dir() else f"{self.file}:{line}"


def table_rows(table: Table, data: Data, split: str | None = None, others: Sequence[Path] | None = None) -> Rows:
    """The rows of a table with a column of paths and one of targets, which may be empty; only the rows of `split`.

    The images are in DATA.IMAGE_ROOT, else where `_find_images` finds them. others: of images to predict, whose labels
    are not read, and which may be anywhere.
    """
    predicts, labels = others is not None, data.labels if others is None else None
    layout = find_layout(table, data, predicts)
    inside = os.path.join(os.path.abspath(table.file.parent), "")

    def may_be_read(path: str) -> bool:
        """Paths to read are in the folder of the table, as ../input/a.jpg is in input/data.csv."""
        return predicts or ".." not in path or os.path.abspath(inside + path).startswith(inside)

    paths = filter(may_be_read, table.column(layout.path))
    place = _find_images(table.file, paths, table.root or data.image_root, others or ())
    rows = Rows(table.file, *place, anywhere=predicts or table.root is not None, labels=labels)
    rows.notes[:0] = table.notes
    rows.classes = layout.labels if layout.is_one_hot else table.classes.get([*layout.labels, ""][0], ())
    for line, cells in table:
        if not split or layout.split_in(cells) == split:
            rows.add(line, cells[layout.path], layout.labels_in(cells))
    for line, problem in table.mistakes.items():
        rows.add_finding(line, problem)
    return rows


def _find_images(
    file: Path, paths: Iterable[str], given: str | Path | None, others: Sequence[Path]
) -> tuple[Path, Mapping[str, str], list[Note]]:
    """The folder of the paths of a table, the path in it of each name if they are in several folders, and notes.

    It is the `given` one, else the first of these with one of the paths as a file: the table's folder; the split's
    folder in it (train/ or train_images/ of train.csv); `others`; the only folder in it with an image, apart from other
    splits and masks; several of these, where names are unique.
    """
    if given:
        return Path(given), {}, []
    paths, listed, sample, root, split = iter(paths), list[str](), list[str](), file.parent, split_of(file.stem)

    def contains(folder: Path) -> bool:
        rows = Rows(file, folder, {}, anywhere=True)
        for path in sample:
            rows.add(0, path)
        return any(os.path.isfile(folder / path) for path in rows.paths.strings())

    for some in (islice(paths, _MAX_TRIED), paths):  # of most tables, the others need not be read for this
        listed += some
        sample = listed[:: -(-len(listed) // _MAX_TRIED) or 1]
        if contains(root):
            return root, {}, []
    if _MASKS.fullmatch(root.name):  # ISIC's x_GroundTruth, x_Input
        root = root.parent
    inside = [path for path in sorted(root.glob("*/")) if not path.name.startswith(".")]
    of_split = [path for path in inside if split and split_of_images(path.name) == split]
    of_others = {"train", "val", "test"} - {split} if split else {"test"}
    usable = [path for path in inside if word_in(path.name) not in of_others and not _MASKS.fullmatch(path.name)]
    found = [*islice(filter(contains, (*of_split, *others)), 1)] or [*islice(filter(contains, usable), 2)]
    if len(found) == 1:
        return found[0], {}, [Note("log", f"{file}: the images are in {found[0]}")]
    by_name, most = dict[str, str](), max(_MAX_SEARCHED, 3 * len(listed))
    files = list(islice(chain(root.glob("*"), *(folder.rglob("*") for folder in usable)), most))
    for path in files if len(files) < most else ():
        for key in {path.name, path.stem} if path.suffix.lower() in _ENDINGS else ():
            by_name[key] = "" if key in by_name else str(path.relative_to(root))
    if sample and all(by_name.get(os.path.basename(path)) for path in sample):
        unique = {name: path for name, path in by_name.items() if path}
        return root, unique, [Note("log", f"{file}: the images are in {root}, found by their names")]
    searched = f" nor, by unique names, among {len(files):,}{' or more' * (len(files) == most)} files in it"
    text = f"no image of {file} is found in {root}{searched}; set DATA.IMAGE_ROOT"
    return file.parent, {}, [Note("warning", text)]


def read_unlabelled_list(file: Path, data: Data, trained_root: str | None) -> Listing:
    """The images of a list or a table, with the column and the text that name them; see `datasets.registry.unlabelled`.

    Raises UserError: it cannot be read, or lists no images; in one error, all mistakes.
    """
    table = TextList(file) if file.suffix.lower() == TEXT_LIST else Table(file, data.encoding)
    given = data.model_copy(update={"image_root": data.image_root if data.image_root != trained_root else None})
    others = [file.with_suffix(""), *([Path(trained_root)] if trained_root else [])]
    rows, column = table_rows(table, given, others=others), find_layout(table, given, predicts=True).path
    if rows.findings:
        raise combine_findings(f"{file}: {len(rows.findings)} problems", rows.findings)
    if not len(rows.paths):
        raise UserError(f"{file}: lists no images; write one path per line")
    arrays = listing_arrays(rows.paths) | to_arrays(StringPacker(table.column(column)).strings(), "listed")
    return Listing(rows.root, ["0"], arrays, notes=rows.notes, has_class_names=False, column=column)
