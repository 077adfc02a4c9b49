"""Tables of images: CSV files and JSON lines as text in columns, the meaning of the columns, and the rows.

Mistakes in rows are collected, so that one error names all of them. An error is raised at once if nothing can be read.
"""

import contextlib
import csv
import io
import json
import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

from configs.schema import Data
from configs.yaml_io import shorten
from datasets.decoding.images import IMAGE_EXTENSIONS
from datasets.sources.names import SPLIT_NAMES
from utils.errors import UserError, error_from
from utils.files import open_regular_file
from utils.notes import Note

JSON_LINES, PARQUET = ".jsonl", ".parquet"
TABLE_SUFFIXES = (".csv", ".tsv", JSON_LINES, PARQUET)
LABEL_DIGITS = 6  # a longer label is a typing error, and would create as many classes
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
_PIXELS = re.compile(r"(\d+ ){99,}\d+")
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
    _check_form(table, values, paths)
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


def column_of_paths(table: Table, data: Data) -> str:
    """The column of paths in a table of images to predict: DATA.COLUMNS' one, else by its name, or the only one."""
    header, given = table.header, (data.columns or {}).get("path")
    named = [name for name in header if name == given] or _names(header, None, _PATHS)
    columns = named if len(header) > 1 else header
    if len(columns) != 1 or header.count(columns[0]) != 1:
        raise _unclear(table, "path", columns, _option(data.columns or {}, path=[*columns, "NAME"][0]))
    return columns[0]


def _check_form(table: Table, values: Mapping[str, Collection[str]], paths: Sequence[str]) -> None:
    """Raises UserError for a table without a header, or without paths and with the pixels of the images in columns."""
    header = table.header
    if any(name.lower().endswith(IMAGE_EXTENSIONS) for name in header):
        names = {name: "split" for name in header if name.lower() in _SPLIT_WORDS}
        names |= {name: "image_path" for name in header if name.lower().endswith(IMAGE_EXTENSIONS)}
        fix = f"write this line above it: {','.join(names.get(name, 'target') for name in header)}"
        raise UserError(f"{table.file}:1: has no header, but the row {shorten(header)}; {fix}")
    texts = [name for name in header if any(_PIXELS.fullmatch(value) for value in values[name])]
    pixels = texts or [name for name in header if re.fullmatch(r"(?i)(pixel|px)_?\d+", name)]
    if paths or not pixels:
        return
    place, folder = "the pixels of the images are in its columns", table.file.parent
    fix = "write each image to a file in the folder of its class; of MNIST, -dataset=torchvision/MNIST reads such files"
    if texts and "Usage" in header:
        move = f"mkdir {folder / 'fer2013'} && mv {table.file} {folder / 'fer2013'}"
        fix = f"{move}, then -dataset=torchvision/FER2013 -data_path={folder}"
    raise UserError(f"{table.file}:1: {place}; {fix}")


def _unclear(table: Table, key: str, names: Sequence[str], option: str) -> UserError:
    fix, header = f"name the columns, such as {option}", table.header
    if len(header) < 2:
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
            folder = "" if place is None else first_folder(record[place])
            for values, text in zip(found, (*record, folder), strict=True):
                if len(values) <= _MAX_DISTINCT:
                    values.add(text)
    return dict(zip(columns, found, strict=True))


def first_folder(path: str) -> str:
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
        return {value: flag[1] if is_one(value) else other for value in lower}
    return {}


def is_one(text: str) -> bool:
    return text[:1] in ("1", "t", "T")
