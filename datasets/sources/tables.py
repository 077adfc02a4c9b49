"""Tables of images: CSV files and JSON lines as text in columns, the meaning of the columns, and the rows.

Mistakes in rows are collected, so that one error names all of them. An error is raised at once if nothing can be read.
"""

import contextlib
import csv
import io
import json
import os
import re
import shlex
from array import array
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

from configs.schema import Data
from configs.yaml_io import shorten
from datasets.decoding.images import IMAGE_EXTENSIONS, PHOTO_EXTENSIONS
from datasets.sources.image_files import Listing, listing_arrays
from datasets.sources.names import MASK, SPLIT_NAMES, label_in, split_of, split_of_images, word_in
from datasets.sources.shared_arrays import StringPacker, to_arrays, to_nfc
from utils.errors import Finding, UserError, combine_findings, error_from
from utils.files import open_regular_file
from utils.notes import Note

JSON_LINES, PARQUET = ".jsonl", ".parquet"
TABLE_SUFFIXES = (".csv", ".tsv", JSON_LINES, PARQUET)
ONE_HOT = "\x1f"  # between the names of the columns with a 1
LABEL_DIGITS = 6  # a longer label is a typing error, and would create as many classes
LIST_LABEL = re.compile(r"\s+[0-9]+$")  # of a list for the training
_FIRST = 20  # images of which one shows the folder
_ENDINGS = (*IMAGE_EXTENSIONS, *PHOTO_EXTENSIONS)
_PATH_FOLDER = "\0"  # among the values of columns: the first folders of the paths
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
_BINARY = re.compile(r"[01](\.0*)?|true|false", re.IGNORECASE)


def read_lines(file: Path, encoding: str = "utf-8-sig", errors: str = "surrogateescape") -> Iterator[str]:
    """The lines of a file; bytes that are not in its encoding become surrogates, as in the names of files."""
    try:
        with io.TextIOWrapper(open_regular_file(file), encoding=encoding, errors=errors, newline=None) as lines:
            yield from lines
    except OSError as error:
        fix = "check the path, DATA.DATA_PATH and DATA.DATASET"
        raise error_from(error, f"{file}: cannot be read ({error.strerror}); {fix}") from error


def _find_encoding(file: Path, given: str | None) -> str:
    """UTF-8 or, by its byte order mark, UTF-16; else `given`, as any file is text in some encoding of one byte."""
    for encoding in ("utf-8-sig", "utf-16", *([given] if given else [])):
        with contextlib.suppress(UnicodeError):
            if not any("\0" in line for line in read_lines(file, encoding, "strict")):
                return encoding
    with open_regular_file(file) as stream:
        if stream.read(4) in (b"PK\3\4", b"\xd0\xcf\x11\xe0"):
            raise UserError(f"{file}: is a workbook or an archive; save its table as CSV in UTF-8")
    others = f" or {given}" if given else ""
    problem = f"{file}: is not text in UTF-8{others}"
    raise UserError(f"{problem}; name its encoding: -opts DATA.ENCODING=NAME, such as cp1252 or gb18030")


class Table:
    """A table in a file: its columns. Iteration yields the number of a line, and the text in each column, or what is
    wrong with the line.

    encoding: of a file that is not in UTF-8. notes: lines for the log.
    """

    root: Path | None = None  # of the paths, if it is not the folder of the table
    image_column = ""  # of images in the table itself
    class_column = ""  # of labels, if the table says so
    layouts: dict[str, "Layout"]  # each split of a table needs it

    def __init__(self, file: Path, encoding: str | None = None) -> None:
        self.file, self.layouts, self.notes = file, {}, list[Note]()
        self._encoding, self._start, self.header = _find_encoding(file, encoding), 0, list[str]()
        self._is_json = file.suffix.lower() == JSON_LINES
        if self._is_json:
            self.header = list(dict.fromkeys(chain.from_iterable(record or () for _, record in self._objects())))
            return
        first, second = [*islice(read_lines(file, self._encoding), 2), "", ""][:2]
        if marked := re.fullmatch(r"\"?sep=(.)\"?\s*", first):  # a line for Excel, before the header
            self._start, first = 1, second
        self._separator = marked[1] if marked else max(_SEPARATORS, key=first.count)
        name = self._encoding.removesuffix("-sig")
        if (self._separator, name) != (",", "utf-8"):
            self.notes.append(Note("log", f"{file}: separator {self._separator!r}, encoding {name}"))
        with contextlib.suppress(csv.Error, StopIteration):
            self.header = [name.strip() for name in next(self._reader())]

    def classes_of(self, column: str = "") -> tuple[str, ...]:
        """The names of all classes, if the table has them beside its rows."""
        return ()

    def __iter__(self) -> Iterator[tuple[int, list[str] | str]]:
        if self._is_json:
            for line, record in self._objects():
                if record is None:
                    yield line, "is not a JSON object; write one for each image in a line"
                else:
                    values = [
                        value[0] if isinstance(value, list) and len(value) == 1 else value
                        for value in map(record.get, self.header)
                    ]
                    yield line, ["" if value is None else str(value).strip().strip(_INVISIBLE) for value in values]
            return
        reader, width = self._reader(), len(self.header)
        try:
            next(reader, None)
            for row in reader:
                line, texts = reader.line_num + self._start, [text.strip().strip(_INVISIBLE) for text in row]
                if len(row) == width and any(texts):
                    yield line, texts
                elif any(texts):  # spreadsheets write empty rows
                    yield line, "the number of fields differs from the header's; quote a path that contains a separator"
        except csv.Error as error:  # the lines after it cannot be parsed reliably
            yield reader.line_num + self._start, f"is not valid CSV ({error}); correct the line"

    def _reader(self) -> Any:
        lines = islice(read_lines(self.file, self._encoding), self._start, None)
        return csv.reader(lines, delimiter=self._separator, skipinitialspace=True, strict=True)

    def _objects(self) -> Iterator[tuple[int, dict[str, Any] | None]]:
        for number, line in enumerate(read_lines(self.file, self._encoding), 1):
            if line.strip():
                record = None
                with contextlib.suppress(ValueError, RecursionError):
                    record = json.loads(line)
                yield number, record if isinstance(record, dict) else None


@dataclass(frozen=True)
class Layout:
    """The meaning of the columns of a table.

    path: the column of paths. labels: the column of labels or, with `is_one_hot`, a column of 0 and 1 for each class.
    split: the column of splits; None without one. split_of: the split of each of its values, in lower case, or without
    such a column of each first folder of the paths; empty if the table has no splits.
    """

    path: str
    labels: tuple[str, ...]
    is_one_hot: bool
    split: str | None
    split_of: Mapping[str, str]

    @property
    def splits(self) -> set[str]:
        return set(self.split_of.values())


def find_layout(table: Table, data: Data) -> Layout:
    """The meaning of the columns, by DATA.COLUMNS, their names, and their values.

    Raises UserError: a column is missing, or it is not clear which one is meant.
    """
    given: dict[Any, Any] = {"label": table.class_column or None, **(data.columns or {})}
    if (asked := json.dumps([given, data.groups, data.labels])) in table.layouts:
        return table.layouts[asked]
    header = table.header
    paths = [table.image_column] if table.image_column else _names(header, given.get("path"), _PATHS)
    labels = [] if data.labels else _names([one for one in header if one not in paths], given.get("label"), _LABELS)
    others = [name for name in header if name not in (*paths, *labels, data.groups)]
    values = _distinct_values(table, paths)
    split, split_of = _find_split(table, others, values, given)
    split_of = split_of if len(set(split_of.values())) > 1 else {}
    rest = [name for name in others if name != split and not re.fullmatch(r"(Unnamed: \d+)?", name)]  # pandas' index
    is_one_hot = not isinstance(given.get("label") or "", str)
    if data.labels:
        is_one_hot = False
    elif not labels and len(rest) > 1 and all(_are(_BINARY, values[name]) for name in rest):
        labels, is_one_hot = rest, True
    elif not labels and paths and len(rest) == 1 and 2 * len(values[rest[0]]) <= len(values.get(paths[0], ())):
        labels = rest  # its values recur
    of_objects = {name for name in header if any(value.startswith("{") for value in values[name])}
    labels = [name for name in labels if name not in of_objects or given.get("label")]
    for key, names in (("path", paths), ("label", labels)):
        may_differ = key == "label" and (is_one_hot or data.labels)
        if (len(names) != 1 and not may_differ) or any(header.count(name) != 1 for name in names):
            images = [name for name in header if any(one.lower().endswith(IMAGE_EXTENSIONS) for one in values[name])]
            path = [*paths, *images, "NAME"][0]
            rest = [name for name in rest if name not in {path, *of_objects}]
            binary = [name for name in rest if _are(_BINARY, values[name])]
            few = sorted(rest, key=lambda name: (len(values[name]) < 2, len(values[name])))
            label = [*labels, *([binary] if len(binary) > 1 else few), "NAME"][0]
            raise _unclear(table, key, names, _option(given, path=path, label=label))
    return table.layouts.setdefault(asked, Layout(paths[0], tuple(labels), is_one_hot, split, split_of))


def _unclear(table: Table, key: str, names: Sequence[str], option: str) -> UserError:
    fix, header = f"name the columns, such as {option}", table.header
    if len(header) < 2 or any(name.lower().endswith(IMAGE_EXTENSIONS) for name in header):
        fix = "write the names of the columns, of paths and labels, into the first line"
    elif any(header.count(name) > 1 for name in names):
        fix = "give each column a name of its own"
    problem = f"'{key}' is {' or '.join(map(shorten, names)) or 'not clear'} in the columns {shorten(header)}"
    return UserError(f"{table.file}:1: {problem}; {fix}")


def _option(given: Mapping[Any, Any], **changes: str | Sequence[str] | None) -> str:
    """DATA.COLUMNS with changes, as the shell reads it."""
    columns = {key: name for key, name in given.items() if name} | changes
    return f"-opts {shlex.quote(f'DATA.COLUMNS={json.dumps(columns, ensure_ascii=False)}')}"


def _names(header: Sequence[str], given: Any, known: Sequence[re.Pattern[str]]) -> list[str]:
    """The given columns, else those with the documented name, else those with a name of the first or second set."""
    if given:
        return [given] if isinstance(given, str) else list(given)
    documented = [name for name in header if name in _DOCUMENTED and known[0].fullmatch(_plain(name))]
    named = ([name for name in header if kind.fullmatch(_plain(name))] for kind in known)
    return documented or next(filter(None, named), [])


def _plain(name: str) -> str:
    return re.sub(r"[\W_]+", "", name.lower())


def _distinct_values(table: Table, paths: Sequence[str]) -> dict[str, set[str]]:
    """Some values of each column, all if there are at most `_MAX_DISTINCT`; and the first folders of the paths."""
    columns = (*table.header, _PATH_FOLDER)
    found: list[set[str]] = [set() for _ in columns]
    place = table.header.index(paths[0]) if paths and paths[0] in table.header else None
    for _, record in table:
        if not isinstance(record, str):
            folder = "" if place is None else _first_folder(record[place])
            for values, text in zip(found, (*record, folder), strict=True):
                if len(values) <= _MAX_DISTINCT:
                    values.add(text)
    return dict(zip(columns, found, strict=True))


def _first_folder(path: str) -> str:
    """The first folder of a path, '' without one: 'train' of 'train/a/1.jpg'."""
    return path.removeprefix("./").partition("/")[0] if "/" in path else ""


def _are(known: re.Pattern[str], values: Collection[str]) -> bool:
    return bool(values) and all(map(known.fullmatch, values))


def _find_split(
    table: Table, others: Sequence[str], values: Mapping[str, Collection[str]], given: Mapping[Any, Any]
) -> tuple[str | None, Mapping[str, str]]:
    """`Layout.split` and `split_of`: of DATA.COLUMNS, else of a column among the `others`, else of the paths."""
    if "split" in given:
        split = given["split"]
        split_of = _splits_of(split, values.get(split, ())) if split else {}
        if split and not split_of:
            fix = "write train, val or test in it, or give a column is_valid of 0 and 1"
            raise UserError(f"{table.file}:1: column {shorten(split)} (DATA.COLUMNS) is not of splits; {fix}")
        return split, split_of
    usable, unclear = list[str](), list[str]()
    for name in others:
        plain, split_of = _plain(name), _splits_of(name, values[name])
        if len(set(split_of.values())) > 1:
            usable.append(name)
            if plain in SPLIT_NAMES:  # 0 and 1: of an attribute, or of a class
                unclear.append(name)
        elif not split_of and len(values[name]) > 1:
            is_named = plain not in SPLIT_NAMES and bool(_SPLIT.fullmatch(plain) or _SPLIT_FLAG.fullmatch(plain))
            is_named |= plain in _MAYBE_SPLITS and any(text.lower() in _SPLIT_WORDS for text in values[name])
            is_named |= plain in ("set", "subset") and _are(re.compile("[0-3]"), values[name])  # of MatConvNet
            if is_named:
                unclear.append(name)
    if len(usable) < 2 and not unclear:
        split = next(iter(usable), None)
        return split, _splits_of(split or _PATH_FOLDER, values[split or _PATH_FOLDER])
    names, values_of = dict.fromkeys([*usable, *unclear]), values[(unclear or usable)[0]]
    use = f"name it: {_option(given, split=usable[0])}" if usable else "write train, val and test in it"
    raise UserError(
        f"{table.file}:1: is {' or '.join(map(shorten, names))} the column of splits, with "
        f"{shorten(sorted(values_of))}? Then {use}; {_option(given, split=None)} trains on all rows"
    )


def _splits_of(name: str, values: Collection[str]) -> dict[str, str]:
    """The split of each value, in lower case; empty if they are not splits."""
    lower = {value.lower() for value in values}
    if lower <= _SPLIT_WORDS.keys():
        return {value: _SPLIT_WORDS[value] for value in lower}
    if (flag := _SPLIT_FLAG.fullmatch(_plain(name))) and _are(_BINARY, lower):
        other = "train" if flag[1] != "train" else "val"
        return {value: flag[1] if _is_one(value) else other for value in lower}
    return {}


def _is_one(text: str) -> bool:
    return text[:1] in ("1", "t", "T")


class Rows:
    """The rows of a list or table. Equal target texts are stored once, in the order in which they first occur.

    root: folder of relative paths (default: the file's). anywhere: paths may be outside of it and of the file's folder.
    labels: DATA.LABELS, in place of the targets.
    classes: the names of the columns of 0 and 1, or of the classes if the table has them, in the order of the labels.
    """

    def __init__(self, file: Path, root: str | None = None, anywhere: bool = False, labels: str | None = None) -> None:
        self.file, self.root, self._anywhere, self._labels = file, Path(root) if root else file.parent, anywhere, labels
        self.paths, self.row_target_ids, self.lines = StringPacker(), array("i"), array("i")
        self.target_ids: dict[str, int] = {}
        self.classes: tuple[str, ...] = ()
        self.findings: list[Finding] = []
        self.notes: list[Note] = []
        self.outside: list[tuple[int, str]] = []  # lines with a path that leads out of the folder
        self._endings: dict[str, dict[str, list[str]]] = {}  # by folder

    def add(self, line: int, path: str, target: str = "") -> None:
        if not path or "\0" in path:
            fix = "save the file as text in UTF-8" if path else "fill it in or remove the line"
            self.add_finding(line, f"{shorten(path)} is not a path; {fix}")
            return
        if not self._anywhere and (path.startswith("/") or ".." in path.split("/")):
            absolute = os.path.abspath(os.path.join(self.root, path))
            roots = (f"{os.path.abspath(folder)}{os.sep}" for folder in (self.root, self.file.parent))
            if not absolute.startswith(tuple(roots)):
                self.outside.append((line, path))
                return
            path = os.path.relpath(absolute, self.root)
        elif not self._anywhere and ("./" in path or "//" in path):
            path = os.path.normpath(path)
        path = self._with_ending(line, path)
        if self._labels and not (target := label_in(self._labels, path)):
            self.add_finding(line, f"DATA.LABELS {shorten(self._labels)} does not match {shorten(path)}; correct it")
            return
        self.paths.add(path)
        self.row_target_ids.append(self.target_ids.setdefault(to_nfc(target), len(self.target_ids)))
        self.lines.append(line)

    def _with_ending(self, line: int, path: str) -> str:
        """The path of the one image whose name is `path` without its ending, as in tables of ids; else `path`."""
        if path.lower().endswith(_ENDINGS):
            return path
        folder, name = os.path.split(path)
        if folder not in self._endings:
            found = self._endings[folder] = dict[str, list[str]]()
            with contextlib.suppress(OSError):
                with os.scandir(self.root / folder) as entries:
                    files = [entry.name for entry in entries if entry.is_file()]
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
        self.findings.append(f"{self.file}:{line}: {problem}")


def table_rows(table: Table, data: Data, split: str | None = None) -> Rows:
    """The rows of a table with a column of paths and one of targets, which may be empty; only the rows of `split`.

    The images are in DATA.IMAGE_ROOT, else in the table's folder, else in the split's folder in it (train/ or
    train_images/ of train.csv), else in the only folder in it that has them, apart from other splits
    and masks.
    """
    file = table.file
    layout = find_layout(table, data)
    path_place, *label_places = (table.header.index(name) for name in (layout.path, *layout.labels))
    root = table.root or data.image_root
    if not root and not table.image_column:
        paths = (record[path_place] for _, record in table if not isinstance(record, str))
        root = _find_folder(file, islice((path for path in paths if ".." not in path), _FIRST)) or file.parent
    rows = Rows(file, str(root) if root else None, bool(table.image_column), data.labels)
    rows.notes += table.notes
    if root not in (None, table.root, data.image_root, file.parent):
        rows.notes.append(Note("log", f"{file}: the images are in {root}"))
    used = {layout.path, *layout.labels, layout.split, data.groups}
    if unused := [name for name in table.header if name not in used]:
        rows.notes.append(Note("log", f"{file}: columns that are not used: {shorten(unused)}"))
    if layout.splits:
        place = f"in the column {shorten(layout.split)}" if layout.split else "the first folders of the paths"
        rows.notes.append(Note("log", f"{file}: the splits are {place} (DATA.COLUMNS)"))
    rows.classes = layout.labels if layout.is_one_hot else table.classes_of(*layout.labels[:1])
    if layout.is_one_hot:
        columns = shorten(list(layout.labels))
        rows.notes.append(Note("log", f"{file}: the classes are the columns {columns}, each of 0 and 1"))
    split_place = table.header.index(layout.split) if layout.split else path_place
    for line, record in table:
        if isinstance(record, str):
            rows.add_finding(line, record)
            continue
        path, target = record[path_place], record[label_places[0]] if label_places else ""
        of_split = record[split_place] if layout.split else _first_folder(path)
        if split and layout.split_of[of_split.lower()] != split:
            continue
        if layout.is_one_hot:
            cells = (record[place] for place in label_places)
            target = ONE_HOT.join(name for name, cell in zip(layout.labels, cells, strict=True) if _is_one(cell))
        rows.add(line, path, target)
    return rows


def _find_folder(file: Path, paths: Iterable[str], others: Sequence[Path] = ()) -> Path | None:
    """The first folder with one of the first paths of a table as a file, in the order of `table_rows`.

    others: come before the only folder of neither masks nor another split that has one. None without such a folder.
    """
    paths = list(paths)

    def contains(folder: Path) -> bool:
        rows = Rows(file, str(folder), anywhere=True)
        for path in paths:
            rows.add(0, path)
        return any(os.path.isfile(folder / path) for path in rows.paths.strings())

    if contains(file.parent):
        return file.parent
    root = file.parent.parent if _is_of_masks(file.parent.name) else file.parent  # ISIC's x_GroundTruth, x_Input
    inside = [path for path in sorted(root.glob("*/")) if not path.name.startswith(".")]
    split = split_of(file.stem)
    of_split = [path for path in inside if split and split_of_images(path.name) == split]
    if found := next(filter(contains, (*of_split, *others)), None):
        return found
    of_others = {"train", "val", "test"} - {split} if split else {"test"}
    usable = (path for path in inside if word_in(path.name) not in of_others and not _is_of_masks(path.name))
    with_images = list(islice(filter(contains, usable), 2))
    return with_images[0] if len(with_images) == 1 else None


def _is_of_masks(folder: str) -> bool:
    return any(re.fullmatch(MASK, part, re.IGNORECASE) for part in re.split(r"[ ._-]+", folder))


def read_unlabelled_list(file: Path, data: Data, trained_root: str | None) -> Listing:
    """The images of a list or a table, with the column and the text that name them; see `datasets.registry.unlabelled`.

    The column of paths is the one of DATA.COLUMNS if the table has it, else found by its name, or the only column.
    Raises UserError: it cannot be read, or lists no images; in one error, all mistakes.
    """
    table = None if file.suffix.lower() == ".txt" else Table(file, data.encoding)
    column, place, notes = "path", 0, list[Note]()
    if table:
        header, given, notes = table.header, (data.columns or {}).get("path"), table.notes
        named = [name for name in header if name == given] or _names(header, None, _PATHS)
        columns = named if len(header) > 1 else header
        if len(columns) != 1 or header.count(columns[0]) != 1:
            raise _unclear(table, "path", columns, _option(data.columns or {}, path=[*columns, "NAME"][0]))
        column, place = columns[0], header.index(columns[0])

    def records() -> Iterator[tuple[int, list[str] | str]]:
        lines = ((number, line.strip()) for number, line in enumerate(read_lines(file), 1))
        yield from table or ((number, [LIST_LABEL.sub("", line)]) for number, line in lines if line)

    given_root = data.image_root if data.image_root != trained_root else None
    first = (record[place] for _, record in records() if not isinstance(record, str))
    others = [file.with_suffix(""), *([Path(trained_root)] if trained_root else [])]
    found = Path(given_root) if given_root else _find_folder(file, islice(first, _FIRST), others)
    rows, listed = Rows(file, str(found or file.parent), anywhere=True), StringPacker()
    for line, record in records():
        if isinstance(record, str):
            rows.add_finding(line, record)
        else:
            rows.add(line, record[place])
            listed.add(record[place])
    if found and found not in (file.parent, Path(given_root or file.parent)):
        notes.append(Note("log", f"{file}: the images are in {found}"))
    elif not found:
        notes.append(
            Note("warning", f"{file}: its images are not in {file.parent}; set DATA.IMAGE_ROOT to their folder")
        )
    if rows.findings:
        raise combine_findings(f"{file}: {len(rows.findings)} problems", rows.findings)
    if not len(rows.paths):
        raise UserError(f"{file}: lists no images; write one path per line")
    arrays = listing_arrays(rows.paths) | to_arrays(listed.strings(), "listed")
    return Listing(rows.root, ["0"], arrays, notes=notes, has_class_names=False, column=column)
