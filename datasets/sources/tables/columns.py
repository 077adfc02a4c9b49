"""The meaning of the columns of a table: paths, labels, splits; by DATA.COLUMNS, their names, and their values."""

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import replace
from itertools import chain, pairwise
from typing import Any

from configs.schema import Data
from configs.yaml_io import shorten
from datasets.decoding.images import is_image_name
from datasets.sources.class_names import list_names
from datasets.sources.path_words import (
    SPLIT_NAMES,
    SPLIT_WORD,
    SPLIT_WORDS,
    any_word_in,
    hidden_splits,
    with_evaluation,
)
from datasets.sources.question import PLACEHOLDER, Question, Way, on_all_rows, with_columns
from datasets.sources.tables.cells import (
    NO_LABELS,
    CellValues,
    Columns,
    are_cells,
    may_be_cells,
    ways_on,
)
from datasets.sources.tables.files import FOLDERS, Cells, Layout, Table
from datasets.sources.tables.places import Places
from datasets.sources.tables.search import find_places, with_folder
from utils.errors import UserError
from utils.notes import Note

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
_LIKELY_LABELS = (
    *_LABELS,
    re.compile(
        "dx|diagnos.*|findings?(labels?)?|befunde?|klasse|kategorie|expression|emotion|disease|pathology|choice|grade|taxon|genus|"
        "(common|vernacular|scientific)name"
    ),
    re.compile(".*(label|class|diagnos|categor|species).*"),
)
_NO_LABEL = re.compile(  # of a person, a place, a device, an image; also as CellProfiler writes them
    "((image)?metadata(well|plate|replicate|concentration|dose).*|(image)?(metadata)?(path|file)name.*|"
    "(patient|subject|case|lesion|person|study|visit|series|site|hospital|center|centre|clinic|scanner|device|camera|"
    "group|user|annotator|author|well|plate|replicate|concentration|dose)(id|no|nr|number|name)?|(patient)?(age|sex|gender|race)|alter|geschlecht|"
    "weight|height|width|size|depth|date|time|year|month|day|fold|(sub)?set|split|part|partition|location|locali[sz]ation|region|country|"
    "city|view.*|orientation|side|laterality|format|source|license|url|quality|count|index|unnamed.*)?"
)
_MAYBE_SPLITS = {"dataset", "fold", "phase", "usage", "mode", "part", "stage"}
_SPLIT_FLAG = re.compile("(?:is)?(?:in)?(train|val|test)(?:ing|id|idation)?(?:image|img|sample|set|split)?")
_MAX_SEEN = 10_000  # folders in memory
Values = Mapping[str, Collection[str]]  # of each column
_NAME_OF_SPLITS = re.compile(
    rf"{_SPLIT_FLAG.pattern}|(data|train|val|test)*(split|partition)s?(name|id|set|type)?\d*|(sub)?set"
)
Split = tuple[str | None, Mapping[str, str]]  # `Layout.split` and `split_of`


def find_layout(table: Table, data: Data, predicts: bool = False) -> Layout:
    """The meaning of the columns, by DATA.COLUMNS, their names, and their values; a note names them.

    predicts: only the column of paths is needed: DATA.COLUMNS' one if the table has it, or the only column.
    Raises UserError: a column is missing, or it is not clear which one is meant.
    """
    if table.layout:
        return table.layout
    header = table.header
    if _lacks_header(table):
        raise UserError(
            f"{table.file}:1: has no header, but the row {shorten(header)}; "
            "write the names of the columns above it, such as image_path and target"
        )
    given = dict[Any, Any](table.columns) | data.given_columns
    if table.is_list:  # without names of columns
        given = {"split": None} if "split" in given else {}
    path = given.get("path")
    if not predicts:
        named = (value for key, value in given.items() if key not in ("cells", "threshold"))
        table.require(chain.from_iterable(map(_columns_in, named)))
    elif path not in header:
        path = header[0] if len(header) == 1 else None
    paths = _names(header, path, "image_path", _PATHS)
    others = [name for name in header if name not in paths]
    labels = _names(others, given.get("label"), "target", _LABELS)
    if len(paths) != 1:
        raise _unclear_columns(table, data, paths, labels, needs_labels=not (predicts or data.labels))
    table.layout = Layout(paths[0], ()) if predicts else _columns_to_read(table, data, given, paths[0], labels)
    return table.layout


def _lacks_header(table: Table) -> bool:
    """Whether the first line names an image or, without a known name of a column, has a value of its column."""
    header = table.header
    if any(map(is_image_name, header)):
        return True
    if _names(header, None, "image_path", (*_PATHS, *_LABELS)):
        return False
    return any(cells[name] == name != "" for _, cells in table for name in header)


def _columns_to_read(table: Table, data: Data, given: Columns, path: str, named: list[str]) -> Layout:
    """named: the columns of labels by their names, or by DATA.COLUMNS."""
    others = [name for name in table.header if name not in (path, *named, data.groups)]
    places = find_places(table, path, data)
    folders = _Folders(path, places)
    values = _values_of(table, folders)
    split, split_of = _find_split(table, others, values, given, data, folders)
    labels = list[str]()
    is_one_hot = False
    if not data.labels:
        index = re.compile(r"(Unnamed: \d+)?")  # of pandas
        rest = [name for name in others if name != split and not index.fullmatch(name)]
        labels, is_one_hot = _find_labels(named, given.get("label"), path, rest, values)
        if "Confidence" in rest and _says_absent(values["Confidence"], labels):
            raise UserError(f"{table.file}:1: 0 in Confidence says that an image lacks the label; remove these rows")
        if not is_one_hot and len(labels) != 1:
            raise _unclear_columns(table, data, [path], labels, needs_labels=True)
    used = f"paths {shorten(path)}, labels {shorten(labels)}, splits {shorten(split or 'none')}"
    text = f"{table.file}: of the columns {shorten(table.header)} it reads {used} (DATA.COLUMNS)"
    table.notes.append(Note("log", text))
    return Layout(path, tuple(labels), is_one_hot, split, split_of, CellValues(given), places)


def _says_absent(confidences: Set[str], labels: Sequence[str]) -> bool:
    """Whether 0 says that an image lacks the label: in Open Images' tables, and beside 1 alone."""
    is_known = "LabelName" in labels or are_cells(confidences)
    return is_known and not confidences.isdisjoint(("0", "0.0"))


def _columns_in(value: Any) -> list[str]:
    """The columns that a value of DATA.COLUMNS names."""
    if isinstance(value, dict):
        return [value["column"]]
    return value if isinstance(value, list) else [*filter(None, [value])]


def _values_of(table: Table, folders: "_Folders | None" = None) -> dict[str, set[str]]:
    """The values of each column, all if they are few. folders: gets the paths."""
    values: dict[str, set[str]] = {name: set() for name in table.header}
    for _, cells in table:
        if folders:
            folders.add(cells)
        for name, text in cells.items():
            if len(values[name]) <= 30:
                values[name].add(text)
    return values


class _Folders:
    """The names of the folders in the paths of a table, by level: which level is of splits, if one is.

    path: the column of paths.
    """

    def __init__(self, path: str, places: Places) -> None:
        self._path = path
        self.places = places
        self._seen = set[str]()  # most images are in few folders
        self._folders = set[tuple[str, ...]]()  # of a path, '' of those without the word of a split
        self._words = defaultdict[int, set[str]](set)
        self._others = defaultdict[int, set[str]](set)
        self._inner = defaultdict[int, set[str]](set)  # the folders in those with words of splits

    def add(self, cells: Cells) -> None:
        folder = self.places.folder_in(cells[self._path])
        if folder in self._seen:
            return
        if len(self._seen) < _MAX_SEEN:
            self._seen.add(folder)
        names = self.places.folders(cells[self._path])
        marked = tuple(name if any_word_in(name) in SPLIT_NAMES else "" for name in names)  # none: without labels
        self._folders.add(marked)
        for level, (name, next_name) in enumerate(pairwise([*names, ""])):
            if marked[level]:
                self._words[level].add(name)
                self._inner[level].add(next_name)
            elif len(self._others[level]) < _MAX_SEEN:
                self._others[level].add(name)

    def find(self) -> tuple[int, dict[str, str], set[str]]:
        """The first level of splits, and the split of each name in lower case: others, and paths without a folder, are
        of train; and the names of other splits in them: c/test beside train/c, val/c.
        """
        level, split_of = self._first_level()
        return level, split_of, hidden_splits(self._folders, level)

    def _first_level(self) -> tuple[int, dict[str, str]]:
        """-1 without one. Others are of train beside its word, or if most recur in the folders of splits:
        {a,b}/0.jpg test/{a,b}/0.jpg.
        """
        for level, words in sorted(self._words.items()):
            others = self._others[level]
            split_of = with_evaluation({name.lower(): any_word_in(name) for name in words})
            recurring = others & self._inner[level]
            kinds = {_beside_word(name) for name in words} - {""}  # train station and test strip are no splits
            are_clear = len(kinds) < 2 and (
                not others or "train" in split_of.values() or 2 * len(recurring) > len(others)
            )
            if others or min(map(len, self._folders)) <= level:
                split_of[""] = "train"
            if are_clear and len({*split_of.values()}) > 1:
                return level, split_of
        return -1, {}


def _beside_word(name: str) -> str:
    """The letters of a name beside the word of a split: seg of seg_train."""
    return "" if name.lower() in SPLIT_WORDS else _plain(re.sub(r"\d", "", SPLIT_WORD.sub("", name)))


def _find_labels(named: list[str], given: Any, path: str, rest: list[str], values: Values) -> tuple[list[str], bool]:
    """The columns of labels, and whether each is of a class.

    The given ones, else the `named` one, else the `rest` if all are of 0 and 1, or the only one if images share values.
    """
    if given:
        return named, isinstance(given, list)
    if not named:
        if len(rest) > 1 and all(values[name] and are_cells(values[name]) for name in rest):
            return rest, True
        if len(rest) == 1 and 2 * len(values[rest[0]]) <= len(values[path]):
            named = rest
    return [name for name in named if not _has_objects(values[name])], False


def likely_columns(
    table: Table, stems: Set[str] = frozenset(), names: Sequence[str] = ()
) -> tuple[list[Columns], bool]:
    """DATA.COLUMNS that may fit, and whether the labels are known by names or cells.

    Else there is one for the columns of 0 and 1, and for each other column of few values, fewest first, whose name is
    none of `_NO_LABEL`, or one without a label; none without a column of paths. stems: names of images, which are in
    that column. names: of the columns that may be labels, if not of all.
    """
    header = table.header
    values = _values_of(table)
    paths = _path_columns(header, values, stems)
    if not paths or "probability_1" in header or "label_probability" in header:  # predictions, suspect labels
        return [], False
    path = with_folder(table, paths[0])
    rest = [name for name in names or header if name != paths[0] and not _is_no_label(name, values[name])]
    several = [name for name in rest if len(values[name]) > 1]
    labels = _label_columns(several)
    cells = [] if labels else _columns_of_cells(rest, values)
    few = [name for name in several if len(values[name]) <= len(values[paths[0]]) / 2 and name not in cells]
    few.sort(key=lambda name: len(values[name]))
    found: list[Columns] = [{"path": path, "label": label} for label in labels or few]
    if cells:
        texts = set[str]().union(*(values[name] for name in cells))
        found.insert(0, {"path": path, "label": cells, **ways_on(sorted(texts), {})[0]})
    return found or [{"path": path}], bool(labels or cells)


def _is_no_label(name: str, values: Collection[str]) -> bool:
    return bool(_NO_LABEL.fullmatch(_plain(name)) or splits_of(name, values) or _has_objects(values))


def _columns_of_cells(names: list[str], values: Values) -> list[str]:
    """The columns of 0 and 1, perhaps with gaps, if they are three, or two without others."""
    found = [name for name in names if may_be_cells(values[name])]
    return found if len(found) + (found == names) > 2 else []


def _path_columns(header: Sequence[str], values: Values, stems: Set[str]) -> list[str]:
    """The columns that may be of paths: of names of images, else by their names, else of most of the stems."""
    images = [name for name in header if any(map(is_image_name, values[name]))]
    known = _names(images or header, None, "image_path", _PATHS) or images
    if known:
        return known
    numbers = {name: len(stems & {*values[name]}) for name in header}
    return [name for name in sorted(header, key=lambda name: -numbers[name]) if numbers[name]]


def _label_columns(names: Sequence[str]) -> list[str]:
    """The columns whose names are of labels, the usual ones first; else those whose names contain such a word."""
    *usual, containing = _LIKELY_LABELS
    found = [name for kind in usual for name in names if kind.fullmatch(_plain(name))]
    return list(dict.fromkeys(found)) or [name for name in names if containing.fullmatch(_plain(name))]


def _has_objects(values: Iterable[str]) -> bool:
    return any(map(NO_LABELS.match, values))


def _unclear_columns(
    table: Table, data: Data, paths: Sequence[str], labels: Sequence[str], needs_labels: bool
) -> UserError:
    """The error that names likely columns. needs_labels: not only paths."""
    guesses, _ = likely_columns(table)
    advice = {"path": "NAME", "label": "NAME", **dict(*guesses[:1])}
    kind = "paths"
    names = paths
    hint = ""
    if len(paths) == 1:
        kind = "labels"
        names = labels
        hint = " (a name or number in each cell, or columns of 0 and 1)"
        advice["path"] = with_folder(table, paths[0])
    if not names and any(re.fullmatch(r"(?i)(pixel|px)_?\d*s?", name) for name in table.header):
        fix = "write the images to files, as docs/data.md#torchvisions-data-sets does"
        return UserError(f"{table.file}:1: the pixels of the images are in its columns; {fix}")
    if labels:
        advice["label"] = labels[0]
    if not needs_labels:
        del advice["label"]
    if advice["path"] == "NAME":
        hint = (
            "; if another table has the paths, give the folder of the images as -data_path: tables beside it are found"
        )
    answer = with_columns(data, advice)
    if needs_labels and "NAME" not in advice.values():
        answer = answer.tried() or answer
    found = f"the {kind} are {' or '.join(map(shorten, names)) or 'not clear'} in the columns {shorten(table.header)}"
    text = f"-opts {answer.options}{hint}"
    way = Way(text) if "NAME" in advice.values() else Way(text, answer)
    return Question(f"{table.file}:1: {found}{table.unread}; name them: ", [way])


def _names(header: Sequence[str], given: Any, documented: str, known: Iterable[re.Pattern[str]]) -> list[str]:
    """The given columns, else those with the documented name, else those with a name of the first or second set."""
    exact = [name for name in header if name == documented]
    by_kind = ([name for name in header if kind.fullmatch(_plain(name))] for kind in known)
    return next(filter(None, (_columns_in(given), exact, *by_kind)), [])


def _plain(name: str) -> str:
    return re.sub(r"\.\d+$|[\W_]+", "", name.lower())  # target.1: the second of this name


def _find_split(
    table: Table, others: Sequence[str], values: Values, given: Columns, data: Data, folders: _Folders
) -> Split:
    """Of the given columns, else of a column among the `others`, else of the paths."""
    splits = {name: splits_of(name, of) for name, of in values.items()}
    if "split" in given:
        return _given_split(table, given["split"], splits, data)
    several = {name: split_of for name, split_of in splits.items() if len({*split_of.values()}) > 1}
    usable = [name for name in others if name in several]
    unclear = [name for name in others if _is_unclear_split(name, values[name], splits[name])]
    if len(usable) > 1 or unclear:
        names = [*dict.fromkeys([*usable, *unclear])]
        raise _wrong_values(table, names[0], f"splits may be in {list_names(names)}", data)
    for name in usable:
        return name, several[name]
    folders.places.level, split_of, doubtful = folders.find()
    if doubtful:
        problem = f"rows in the folders {list_names(sorted(doubtful))} may be of test or val"
        fix = "write the split of each row (train, val, test) into a column split"
        table.doubt = Question(f"{table.file}: {problem}; {fix}; or ", [on_all_rows(data)])
    if split_of:
        return FOLDERS, split_of
    for name in others:
        if _NAME_OF_SPLITS.fullmatch(_plain(name)) and splits[name]:  # all rows are of one
            is_train = "train" in splits[name].values()
            table.doubt = None if is_train else _wrong_values(table, name, "no row is of train", data)
    return None, {}


def _given_split(table: Table, given: Any, splits: Mapping[str, Mapping[str, str]], data: Data) -> Split:
    """Of DATA.COLUMNS: a column with values, a column with words of splits, or none."""
    if isinstance(given, dict):
        return given["column"], _split_by_values(table, given, data)
    split_of = splits.get(given, {})
    if given and not split_of:
        raise _wrong_values(table, given, "its values are no words of splits", data)
    return given, split_of if len({*split_of.values()}) > 1 else {}


def _split_by_values(table: Table, given: Columns, data: Data) -> dict[str, str]:
    """The split of each value, in lower case, of the column that DATA.COLUMNS names with values of val and test.

    Raises UserError: a value that the column lacks, or that is listed twice, or no value is left for train.
    """
    listed = [(str(value).lower(), part) for part in ("val", "test") for value in given.get(part, ())]
    part_of = dict(listed)
    known = {value.lower() for value in table.column(given["column"])}
    problems = [f"it has no value {shorten(value)}" for value, _ in listed if value not in known]
    if len(part_of) < len(listed) or known <= part_of.keys():
        problems.append("list each value once, and leave one for train")
    if problems:
        raise _wrong_values(table, given["column"], problems[0], data)
    return dict.fromkeys(known, "train") | part_of


def _wrong_values(table: Table, column: str, problem: str, data: Data) -> Question:
    """The question about a column of splits that names its values, their numbers of rows, and a way to list them.

    How many rows have a value is no evidence of its split.
    """
    counts = Counter(table.column(column)).most_common()
    shown = list_names([f"{value} ({rows})" for value, rows in counts])
    split: Any = None
    fix = "trains on all rows"
    if len({*splits_of(column, dict(counts)).values()}) > 1:
        split = column
        fix = "reads it (null: trains on all rows)"
    elif len(counts) > 1:
        split = {"column": column, **_parts_of([value for value, _ in counts])}
        fix = "reads these rows (null in place of {...}: splits by no column)"
    answer = with_columns(data, {"split": split})
    if isinstance(split, dict) and [PLACEHOLDER] in split.values():
        note = f", with the value of test, or of val, in place of {PLACEHOLDER}"
        answer = replace(with_columns(data, {"split": None}), options=answer.options, note=note)
    ways = [Way(f"-opts {answer.options} {fix}{answer.note}", answer)]
    return Question(f"{table.file}:1: DATA.COLUMNS split {shorten(column)}: {problem}; it has {shown}; ", ways)


def _parts_of(values: Iterable[str]) -> dict[str, list[str]]:
    """The values of val and of test by their words; `PLACEHOLDER` if no value has one, or one has none of a split."""
    found = defaultdict(list)
    for value in values:
        found[any_word_in(value)].append(value)
    known = {part: found[part] for part in ("val", "test") if found[part]}
    return known if known and not found[""] else {"test": [PLACEHOLDER]}


def splits_of(name: str, values: Collection[str]) -> dict[str, str]:
    """The split of each value, in lower case; empty if they are not of splits."""
    lower = {value.lower() for value in values}
    split_of = with_evaluation({value: SPLIT_WORDS[value] for value in lower & SPLIT_WORDS.keys()})
    if len(split_of) == len(lower):
        return split_of
    flag = _SPLIT_FLAG.fullmatch(_plain(name))
    if not (flag and are_cells(lower)):
        return {}
    other = "val" if flag[1] == "train" else "train"
    meaning = CellValues({})
    return {value: flag[1] if meaning[value] else other for value in lower}


def _is_unclear_split(name: str, values: Collection[str], split_of: Mapping[str, str]) -> bool:
    """Whether a column has several values, of train and of others or with a name as of splits, not surely of splits."""
    plain = _plain(name)
    if len(values) < 2:
        return False
    if plain in SPLIT_NAMES:  # 0 and 1 of 'train': of an attribute, or of a class
        return len({*split_of.values()}) > 1
    if split_of:
        return False
    parts = {SPLIT_WORDS.get(value.lower()) for value in values} - {None}
    are_mixed = "train" in parts and len(parts) > 1
    return are_mixed or bool(_NAME_OF_SPLITS.fullmatch(plain) or (plain in _MAYBE_SPLITS and parts))
