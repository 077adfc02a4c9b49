"""Tables and lists beside folders of images: they may give the images other labels than the folders."""

import json
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple

from configs.schema import Data
from datasets.decoding.images import IMAGE_EXTENSIONS
from datasets.sources.class_folders import FoundFiles
from datasets.sources.columns import likely_columns
from datasets.sources.listing import list_directory
from datasets.sources.lists import table_file
from datasets.sources.names import list_names
from datasets.sources.rows import open_table, table_rows
from datasets.sources.shared_arrays import to_nfc
from datasets.sources.tables import JSON_LINES, TEXT_LIST
from utils.errors import UserError
from utils.files import open_regular_file

_PLACES = ("..", "../meta", "../labels", "../val")
_SUFFIXES = (".csv", ".tsv", JSON_LINES, TEXT_LIST, ".json")
_ANY = "latin-1"  # reads any file: the labels are compared, not used
_MAX_FILES = 20  # in a folder; more are of single images
_MAX_SHOWN = 4


def files_beside(root: Path) -> list[Path]:
    """The tables, lists and .json files in `root`, in the folders in it, and near it."""
    found = list[Path]()
    for name in ("", *_PLACES, *FoundFiles(root).top()[0]):
        folder = Path(os.path.normpath(root / name))
        with suppress(OSError):
            files = [folder / file for file in list_directory(folder)[1] if file.lower().endswith(_SUFFIXES)]
            found += files if len(files) <= _MAX_FILES else []
    return found


def names_images(file: Path, class_names: Collection[str] = ()) -> bool:
    """Whether the first lines name images or classes: `requirements-dev.txt` beside the data is no list."""
    with suppress(OSError), open_regular_file(file) as opened:
        text = opened.read(4096).decode("utf-8-sig", "replace")
        words = {*re.split(r"[\s,;|\"'/\\]+", to_nfc(text))}
        return not words.isdisjoint(class_names) or any(word.lower().endswith(IMAGE_EXTENSIONS) for word in words)
    return False


class TableBeside(NamedTuple):
    """A table or list with labels of most of the images in a folder.

    labels: of the images, by their paths. advice: the flags that train on it, and its classes.
    """

    file: Path
    labels: dict[str, str]
    advice: str


def tables_beside(root: Path, folder: Path, paths: Sequence[str]) -> Iterator[TableBeside]:
    """The tables in or beside `root` with labels of most of the images `paths`, which are relative to `folder`.

    A column of labels without such a name is the only one with few values that are no function of the folders.
    """
    for file in [file for file in files_beside(root) if file.suffix != ".json"]:
        with suppress(UserError, ValueError):  # a column without a name cannot be given
            columns, is_named = likely_columns(open_table(file, _ANY))
            found = [(given, _labels_of(file, given, folder, paths)) for given in columns]
            if not is_named:
                found = [(given, labels) for given, labels in found if not _follow_folders(labels)]
            if len(found) != 1:
                continue
            ((given, labels),) = found
            names = sorted({*labels.values()})
            if len(names) > 1 and 2 * len(labels) >= len(paths):
                place = next((one for one in (root, file.parent) if table_file(one, "train") == file), file)
                words = f"-dataset=csv -data_path={quote(str(place))}"
                if file.suffix.lower() != TEXT_LIST:
                    words += f" -opts {quote(f'DATA.COLUMNS={json.dumps(given, ensure_ascii=False)}')}"
                classes = f"{len(names)} classes, {list_names(names, _MAX_SHOWN)}"
                yield TableBeside(file, labels, f"{words} trains on its {classes}")


def _follow_folders(labels: Mapping[str, str]) -> bool:
    return len({(os.path.dirname(path), one) for path, one in labels.items()}) == len({*map(os.path.dirname, labels)})


def _stem(path: str) -> str:
    return os.path.splitext(path.rpartition("/")[2])[0]


def _labels_of(file: Path, columns: Mapping[str, Any], folder: Path, paths: Sequence[str]) -> dict[str, str]:
    """The labels of the images `paths` in a folder by a table. Raises UserError: it cannot be read."""
    table = open_table(file, _ANY)
    stems = {_stem(text) for text in table.column(columns["path"])}
    if 2 * sum(_stem(path) in stems for path in paths) < len(paths):  # before their files are searched
        return {}
    columns = {**columns, "split": None}
    data = Data.model_validate({"DATA_PATH": str(file), "DATASET": "csv", "COLUMNS": columns})
    rows = table_rows(table, data)
    texts = [" | ".join(target) for target in rows.target_ids]
    known = {os.path.abspath(os.path.join(folder, path)): path for path in paths}
    images = (os.path.abspath(os.path.join(rows.root, path)) for path in rows.paths.strings())
    pairs = zip(images, rows.row_target_ids, strict=True)
    return {known[image]: texts[target] for image, target in pairs if image in known and texts[target]}
