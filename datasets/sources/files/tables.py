"""Tables of images: CSV files and JSON lines as text in columns, and the meaning of their columns."""

import contextlib
import csv
import io
import json
import os
import re
import shlex
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

from configs.yaml_io import shorten
from datasets.decoding.images import IMAGE_EXTENSIONS
from datasets.sources.split_names import SPLIT_NAMES
from utils.errors import UserError, error_from
from utils.files import open_regular_file

JSON_LINES, PARQUET = ".jsonl", ".parquet"
TABLE_SUFFIXES = (".csv", ".tsv", JSON_LINES, PARQUET)
ONE_HOT = "\x1f"  # between the names of the columns with a 1
_CHUNK = 1 << 20
_PATH_FOLDER = "\0"  # among the values of columns: the first folders of the paths
_SEPARATORS = ",;\t|"  # spreadsheets write semicolons where the comma is the decimal sign
_MAX_DISTINCT = 30  # values of a column that are compared
# Names of columns, in lower case without signs; names of the second kind count if there is none of the first kind.
_PATHS = (
    re.compile("(image|img|file|rel|relative)*paths?|(image|img|file)+names?|(image|img)*files?|images?|imgs?"),
    re.compile("(image|img|file)?ids?|idcode"),
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
BINARY = {"0": False, "1": True, "0.0": False, "1.0": True, "false": False, "true": True}


def read_lines(file: Path, encoding: str = "utf-8-sig") -> Iterator[str]:
    """The lines of a file; bytes that are not in its encoding become surrogates, as in the names of files."""
    with _open_text(file, encoding, "surrogateescape") as lines:
        yield from lines


@contextlib.contextmanager
def _open_text(file: Path, encoding: str, errors: str) -> Iterator[io.TextIOWrapper]:
    try:
        with io.TextIOWrapper(open_regular_file(file), encoding=encoding, errors=errors, newline=None) as text:
            yield text
    except OSError as error:
        raise error_from(
            error, f"{file}: cannot be read ({error.strerror}); check the path, DATA.DATA_PATH and DATA.DATASET"
        ) from error


def _find_encoding(file: Path, given: str | None) -> str:
    """UTF-8 or, by its byte order mark, UTF-16; else `given`. Every file is text in some encoding of one byte.

    Raises:
        UserError: another encoding.
    """
    for encoding in ("utf-8-sig", "utf-16", *([given] if given else [])):
        with contextlib.suppress(UnicodeError), _open_text(file, encoding, "strict") as text:
            if all("\0" not in chunk for chunk in iter(lambda: text.read(_CHUNK), "")):
                return encoding
    with open_regular_file(file) as stream:
        if stream.read(4) in (b"PK\3\4", b"\xd0\xcf\x11\xe0"):
            raise UserError(f"{file}: is a workbook or an archive; save its table as CSV in UTF-8")
    others = f" or {given}" if given else ""
    raise UserError(
        f"{file}: is not text in UTF-8{others}; name its encoding: -opts DATA.ENCODING=NAME, such as cp1252 or gb18030"
    )


class Table:
    """A table in a file: its columns. Iteration yields the number of a line, and the text in each column, or what is
    wrong with the line.

    encoding: of a file that is not in UTF-8. notes: lines for the log.
    """

    root: Path | None = None  # of the paths, if it is not the folder of the table
    image_column = ""  # of images in the table itself
    class_column = ""  # of labels, if the table says so

    def __init__(self, file: Path, encoding: str | None = None) -> None:
        self.file, self.files, self.notes = file, [file], list[str]()
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
            self.notes.append(f"{file}: separator {self._separator!r}, encoding {name}")
        with contextlib.suppress(csv.Error, StopIteration):
            self.header = [name.strip() for name in next(self._reader())]

    @property
    def version(self) -> Hashable:
        """Differs if the content differs."""
        stats = [(file, os.stat(file)) for file in self.files]
        return (*self.header, *self.notes, *((file, stat.st_mtime_ns, stat.st_size) for file, stat in stats))

    def classes_of(self, column: str) -> tuple[str, ...]:
        """The names of all classes, if the table has them beside its rows."""
        return ()

    def __iter__(self) -> Iterator[tuple[int, list[str] | str]]:
        if self._is_json:
            for line, record in self._objects():
                if record is None:
                    yield line, "is not a JSON object; write one for each image in a line"
                else:
                    values = map(record.get, self.header)
                    yield line, ["" if value is None else str(value).strip() for value in values]
            return
        reader, width = self._reader(), len(self.header)
        try:
            next(reader, None)
            for row in reader:
                line, texts = reader.line_num + self._start, [text.strip() for text in row]
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


def first_folder(path: str) -> str:
    """The first folder of a path, '' without one: 'train' of 'train/a/1.jpg'."""
    return path.removeprefix("./").partition("/")[0] if "/" in path else ""


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


def find_layout(
    place: str, header: Sequence[str], records: Iterable[Sequence[str]], given: Mapping[Any, Any], path: str = ""
) -> Layout:
    """Finds the columns by DATA.COLUMNS, their names, and their values.

    place: of the header, for errors. given: DATA.COLUMNS, and 'group'. path: the column of images, if it is known.

    Raises:
        UserError: a column is missing, or it is not clear which one is meant.
    """
    paths = [path] if path else _names(header, given.get("path"), _PATHS)
    labels = _names([name for name in header if name not in paths], given.get("label"), _LABELS)
    others = [name for name in header if name not in (*paths, *labels, given.get("group"))]
    values = _distinct_values(header, records, paths)
    split = given["split"] if "split" in given else _find_split(place, others, values, given)
    split_of = _splits_of(split, values.get(split, ())) if split else {}
    if split and not split_of:
        fix = "write train, val or test in it, or give a column is_valid of 0 and 1"
        raise UserError(f"{place}: column {shorten(split)} (DATA.COLUMNS) is not of splits; {fix}")
    if "split" not in given and not split:
        split_of = _splits_of(_PATH_FOLDER, values[_PATH_FOLDER])
    split_of = split_of if len(set(split_of.values())) > 1 else {}
    rest = [name for name in others if name != split and not re.fullmatch(r"(Unnamed: \d+)?", name)]  # pandas' index
    is_one_hot = not isinstance(given.get("label") or "", str)
    if not labels and len(rest) > 1 and all(_are(values[name], BINARY) for name in rest):
        labels, is_one_hot = rest, True
    elif not labels and paths and len(rest) == 1 and 2 * len(values[rest[0]]) <= len(values.get(paths[0], ())):
        labels = rest  # its values recur
    of_objects = {name for name in header if any(value.startswith("{") for value in values[name])}
    labels = [name for name in labels if name not in of_objects or given.get("label")]
    for key, names in (("path", paths), ("label", labels)):
        if (len(names) != 1 and not (key == "label" and is_one_hot)) or any(header.count(name) != 1 for name in names):
            images = [name for name in header if any(one.lower().endswith(IMAGE_EXTENSIONS) for one in values[name])]
            path = [*paths, *images, "NAME"][0]
            rest = [name for name in rest if name not in {path, *of_objects}]
            binary = [name for name in rest if _are(values[name], BINARY)]
            few = sorted(rest, key=lambda name: (len(values[name]) < 2, len(values[name])))
            label = [*labels, *([binary] if len(binary) > 1 else few), "NAME"][0]
            option = _option(given, path=path, label=label)
            raise _unclear(place, key, names, header, option)
    return Layout(paths[0], tuple(labels), is_one_hot, split, split_of)


def find_path_column(place: str, header: Sequence[str], given: Mapping[Any, Any]) -> str:
    """The column of paths: of DATA.COLUMNS if the table has it, else by its name, or the only column.

    Raises:
        UserError: it is not clear which one is meant.
    """
    named = [name for name in header if name == given.get("path")] or _names(header, None, _PATHS)
    names = named if len(header) > 1 else header
    if len(names) == 1 and header.count(names[0]) == 1:
        return names[0]
    raise _unclear(place, "path", names, header, _option(given, path=[*names, "NAME"][0]))


def _unclear(place: str, key: str, names: Sequence[str], header: Sequence[str], option: str) -> UserError:
    fix = f"name the columns, such as {option}"
    if any(name.lower().endswith(IMAGE_EXTENSIONS) for name in header):
        fix = "write the names of the columns into the first line"
    elif len(header) < 2:
        fix = "write a table with columns of paths and labels, and their names in the first line"
    elif any(header.count(name) > 1 for name in names):
        fix = "give each column a name of its own"
    problem = f"'{key}' is {' or '.join(map(shorten, names)) or 'not clear'} in the columns {shorten(list(header))}"
    return UserError(f"{place}: {problem}; {fix}")


def _option(given: Mapping[Any, Any], **changes: str | Sequence[str] | None) -> str:
    """DATA.COLUMNS with changes, as the shell reads it."""
    columns = {key: name for key, name in given.items() if key != "group" and name} | changes
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


def _distinct_values(
    header: Sequence[str], records: Iterable[Sequence[str]], paths: Sequence[str]
) -> dict[str, set[str]]:
    """Some values of each column, all if there are at most `_MAX_DISTINCT`; and the first folders of the paths."""
    found: list[set[str]] = [set() for _ in (*header, _PATH_FOLDER)]
    place = header.index(paths[0]) if paths and paths[0] in header else None
    for record in records:
        for values, text in zip(found, (*record, "" if place is None else first_folder(record[place])), strict=True):
            if len(values) <= _MAX_DISTINCT:
                values.add(text)
    return dict(zip((*header, _PATH_FOLDER), found, strict=True))


def _are(values: Collection[str], known: Collection[str]) -> bool:
    return bool(values) and all(value.lower() in known for value in values)


def _find_split(
    place: str, others: Sequence[str], values: Mapping[str, Collection[str]], given: Mapping[Any, Any]
) -> str | None:
    """The column of splits among the `others`; one whose values name a single split is none.

    Raises:
        UserError: several columns may be one, or one whose values are not understood, by its name.
    """
    usable, unclear = list[str](), list[str]()
    for name in others:
        plain, split_of = _plain(name), _splits_of(name, values[name])
        if len(set(split_of.values())) > 1:
            usable.append(name)
            unclear += [name] * (plain in SPLIT_NAMES)  # 0 and 1: of an attribute, or of a class
        elif not split_of and len(values[name]) > 1:
            is_named = plain not in SPLIT_NAMES and bool(_SPLIT.fullmatch(plain) or _SPLIT_FLAG.fullmatch(plain))
            is_named |= plain in _MAYBE_SPLITS and any(text.lower() in _SPLIT_WORDS for text in values[name])
            is_named |= plain in ("set", "subset") and _are(values[name], "0123")  # of MatConvNet
            unclear += [name] * is_named
    if len(usable) < 2 and not unclear:
        return next(iter(usable), None)
    names, values_of = dict.fromkeys([*usable, *unclear]), values[(unclear or usable)[0]]
    use = f"name it: {_option(given, split=usable[0])}" if usable else "write train, val and test in it"
    raise UserError(
        f"{place}: is {' or '.join(map(shorten, names))} the column of splits, with {shorten(sorted(values_of))}? Then "
        f"{use}; {_option(given, split=None)} trains on all rows"
    )


def _splits_of(name: str, values: Collection[str]) -> dict[str, str]:
    """The split of each value, in lower case; empty if they are not splits."""
    if _are(values, _SPLIT_WORDS):
        return {value.lower(): _SPLIT_WORDS[value.lower()] for value in values}
    if (flag := _SPLIT_FLAG.fullmatch(_plain(name))) and _are(values, BINARY):
        other = "train" if flag[1] != "train" else "val"
        return {value.lower(): flag[1] if BINARY[value.lower()] else other for value in values}
    return {}
