"""The data set `parquet`: images and labels in the parquet files of Hugging Face's hub."""

import json
import re
import shlex
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self
from urllib.parse import unquote

import numpy as np

from configs.schema import Data
from configs.schema.section import without
from configs.yaml_io import shorten
from datasets.decoding.decode import LazyImage
from datasets.decoding.images import BadImage
from datasets.loading.sampler import ShardWindows
from datasets.sources.listed.lists import Tables
from datasets.sources.listing import list_directory
from datasets.sources.path_words import SPLIT_NAMES, split_of
from datasets.sources.samples import ImageFiles, listing_arrays, read_error
from datasets.sources.shared_arrays import StringPacker, to_nfc
from datasets.sources.tables.files import PARQUET, Lines, Table
from utils.errors import Finding, UserError, error_from
from utils.files import file_state
from utils.notes import Note

_SHARD = re.compile(r"(.+)-(\d{5})-of-(\d{5})")  # of the hub: train-00000-of-00002.parquet
_CACHE_BYTES = 1 << 28  # of decoded row groups in a process, at least one
_FIX = "download it again"
# Arrow's names of types: of columns of images, and of text or numbers.
_IMAGES = re.compile(
    r"(dictionary<values=)?((large_)?binary(_view)?|fixed_size_binary)\b.*|struct<([^<>]*, )?bytes: (large_)?binary\b.*"
)
_FLAT = re.compile(r"(dictionary<values=)?((large_)?string(_view)?|u?int\d+|(half)?float|double|decimal\d+|bool)\b.*")
_lock = threading.Lock()  # threads that read a row group wait for the first one


def parquet_files(root: Path) -> list[Path]:
    """The parquet files in a folder, where the hub has them."""
    found = []
    folders = [root]
    for _ in range(3):
        inner = []
        for folder in folders:
            with suppress(OSError):
                names, files = list_directory(folder)
                found += [folder / name for name in (*names, *files) if name.endswith(PARQUET) and name[0] != "."]
                inner += [folder / name for name in names if name[0] != "."]
        folders = inner
    return sorted(found)


class Parquet(Tables):
    """The parquet files in DATA_PATH: train-00000-of-00002.parquet, test/0.parquet; or files without splits."""

    def find(self) -> dict[str, "ParquetTable"]:
        root = self.root
        folder = root.parent
        by_split = {"all": [root]}
        card_file = root / "README.md"
        with _named_errors(card_file):
            card = card_file.read_text("utf-8", "replace") if card_file.is_file() else ""
        if root.is_dir():
            folder = root
            by_split = _files_of_splits(root, card)
        if self.data.groups:
            raise UserError("DATA.GROUPS: is not read from parquet files; save the images as files with a table")
        tables = {split: ParquetTable(folder, files, self.data) for split, files in by_split.items()}
        if "class_label:" in card:
            text = f"{card_file}: its names of classes are not read: the files have the labels"
            for table in tables.values():
                if not table.classes:
                    table.notes.append(Note("screen", text))
        return tables

    def read(self, split: str) -> ImageFiles:
        tables: list[Any] = [part.table for part in (self.splits[split], *self.splits.values())]
        return ParquetImages(super().read(split), tables, self.data.shuffle_shards)

    def read_unlabelled(self) -> ImageFiles:
        """All images of a file, with the label 0; raises UserError for a folder of splits."""
        table, *others = self.find().values()
        if others:
            raise UserError(f"{self.root}: has several splits; give a file, such as -predict {table.file}")
        paths = StringPacker(table.column(table.columns["path"]))
        arrays = listing_arrays(paths, lines=np.arange(1, len(paths) + 1, dtype=np.int32))
        listing = ImageFiles(table.root, ["0"], arrays, has_class_names=False)
        return ParquetImages(listing, [table], self.data.shuffle_shards)


def _files_of_splits(root: Path, card: str) -> dict[str, list[Path]]:
    """The files of each split in a folder; 'all' without splits. card: the text of the hub's README.md.

    Raises UserError: there are none, some are missing, or the split of one is not clear.
    """
    by_split = defaultdict(list)
    names = defaultdict(set)
    for file, split, name in _places_of(root):
        by_split[split].append(file)
        names[split].add(name)
    has_splits = len(by_split) > 1
    if has_splits and "" not in names["all"]:  # files of another name, such as unlabeled
        by_split.pop("all", None)
    for split, files in by_split.items():
        if len(names[split]) > 1 or (has_splits and split == "all"):
            raise UserError(
                f"{files[0]}: its split is not clear; name the files of one as train-00000-of-00001{PARQUET}"
            )
        shard = _SHARD.fullmatch(files[0].stem)
        if shard and len(files) < int(shard[3]):
            raise UserError(f"{files[0]}: {len(files)} of its {int(shard[3])} files are here; download the others, too")
    if not has_splits and re.search(r"\bsplit: *['\"]?(?!train\b)\w", card):  # in its YAML
        raise UserError(
            f"{root}/README.md: its splits are not read; name the files as train-00000-of-00001{PARQUET}, or remove it"
        )
    return by_split


def _places_of(root: Path) -> list[tuple[Path, str, str]]:
    """Each file in a folder, its split, 'all' without one, and its name in the hub's form, else ''.

    Raises UserError: there are none, or they are of several configurations.
    """
    places = []
    folders = dict[Path, None]()
    for file in parquet_files(root):
        name = file.stem
        shard = _SHARD.fullmatch(name)
        of_hub = ""
        if shard:
            name = of_hub = shard[1]
        folder = file.parent
        while folder != root and "=" in folder.name:
            folder = folder.parent
        of_folder = None
        if folder != root:
            of_folder = SPLIT_NAMES.get(folder.name.lower().removeprefix("partial-"))  # the hub's first gigabytes
        of_key = SPLIT_NAMES.get(_partition_of(root, file).get("split", "").lower())
        split = split_of(name) or of_key or of_folder or "all"
        if split == of_folder:
            folder = folder.parent
        folders[folder] = None
        places.append((file, split, of_hub))
    if not places:
        raise UserError(f"{root}: has no {PARQUET} file; -dataset=folder reads images, -dataset=tar tar shards")
    if len(folders) > 1:
        paths = " or ".join(f"-data_path={shlex.quote(str(folder))}" for folder in [*folders][:4])
        raise UserError(f"{root}: contains several configurations of a data set; give one: {paths}")
    return places


def _partition_of(root: Path, file: Path) -> dict[str, str]:
    """The keys and values in the names of Hive's folders: label=Cat/0.parquet; '' for a null."""
    parts = (part.partition("=") for part in file.relative_to(root).parts[:-1])
    null = "__HIVE_DEFAULT_PARTITION__"
    return {key: "" if value == null else unquote(value) for key, sign, value in parts if sign}


class ParquetTable(Table):
    """The rows of the files of a split. The path of an image is the file's, relative to the folder, and its row.

    root: the folder of the files. groups: the number of the file of each row group, and its number in this file, int64
    (row groups, 2). group_ends: the rows up to each row group, including it, int64 (row groups,). group_bytes: of the
    largest row group, decoded.
    """

    root: Path

    def __init__(self, root: Path, files: Sequence[Path], data: Data) -> None:
        super().__init__(files[0])
        self.files = list(files)
        self.root = root
        self.group_bytes = 0
        places = list[tuple[int, int]]()
        rows = list[int]()
        for number, file in reversed([*enumerate(files)]):  # the first one gives the schema
            with _named_errors(file):
                parquet = _open(file)
                schema = parquet.schema_arrow
                self.classes = _class_names(schema)
            groups = [parquet.metadata.row_group(group) for group in range(parquet.metadata.num_row_groups)]
            places[:0] = [(number, group) for group in range(len(groups))]
            rows[:0] = [group.num_rows for group in groups]
            self.group_bytes = max(self.group_bytes, *(group.total_byte_size for group in groups), 0)
        self.groups = np.array(places, np.int64).reshape(-1, 2)
        self.group_ends = np.cumsum(rows, dtype=np.int64)
        self._name_columns(schema, data.given_columns.get("path"))

    def _name_columns(self, schema: Any, given: Any) -> None:
        """Finds the columns of images, labels and texts. given: the name of the column of images, or None."""
        kinds = {one.name: str(one.type) for one in schema}
        images = [name for name, kind in kinds.items() if _IMAGES.fullmatch(kind)]
        usable = [name for name in images if given in (None, name)]
        named = [name for name in usable if re.fullmatch("(?i)images?|imgs?|photos?", name)]
        usable = named if len(named) == 1 else usable
        if len(usable) != 1:
            problem = f"the columns of images (binary, or a struct with bytes) are {shorten(images)}"
            fix = "write the content of the image files as binary, or read tar shards beside it with -dataset=tar"
            if images:
                options = [f"-opts {shlex.quote(f'DATA.COLUMNS={{path: {name}}}')}" for name in images]
                fix = f"name one: {' or '.join(options)}"
            raise UserError(f"{self.file}: {problem} of {_list_types(kinds)}; {fix}")
        self._flat = [name for name, kind in kinds.items() if _FLAT.fullmatch(kind)]
        others = without(kinds, (*self._flat, *images))
        if others:
            self.unread = f"; neither text nor numbers: {_list_types(others)}"
        partition = _partition_of(self.root, self.file)
        self._keys = [key for key in ("label", "class") if key in partition and key not in kinds][:1]
        ignored = sorted(partition.keys() - {"split", *self._keys})
        if ignored:
            self.notes.append(Note("screen", f"{self.root}: the folders {', '.join(ignored)}=... are no labels"))
        labels = [*(self._keys or self.classes)]
        self.columns = {"path": usable[0]}
        if len(labels) == 1:
            self.columns["label"] = labels[0]
        self.header = [*self._flat, *self._keys, self.columns["path"]]

    def __iter__(self) -> Lines:
        number = 0
        for file in self.files:
            name = file.relative_to(self.root)
            partition = _partition_of(self.root, file)
            of_folders = {key: partition.get(key, "") for key in self._keys}
            row = 0
            with _named_errors(file):
                parquet = _open(file)
                classes = _class_names(parquet.schema_arrow)
                for batch in parquet.iter_batches(columns=self._flat):
                    for values in batch.to_pylist():
                        cells = {column: _text(value, classes.get(column)) for column, value in values.items()}
                        cells |= of_folders
                        cells[self.columns["path"]] = f"{name}:{row}"
                        row += 1
                        number += 1
                        yield number, cells


def _list_types(kinds: Mapping[str, str]) -> str:
    return ", ".join(f"{shorten(name)} ({kind[:40]})" for name, kind in kinds.items())


def _class_names(schema: Any) -> dict[str, tuple[str, ...]]:
    """The names of the classes of each column of class numbers, as the hub stores them in a schema."""
    content = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
    features = content.get("info", {}).get("features", {}).items()
    named = {name: one["names"] for name, one in features if name in schema.names and one["_type"] == "ClassLabel"}
    return {name: tuple(map(to_nfc, names)) for name, names in named.items()}


def _text(value: Any, names: tuple[str, ...] | None) -> str:
    """The text of a cell, or the name of its class; '' for null and a number without a name."""
    if value is None:
        return ""
    if names is None:
        return str(value).strip()
    return names[value] if 0 <= value < len(names) else ""


def _open(file: Path) -> Any:
    import pyarrow.parquet

    return pyarrow.parquet.ParquetFile(file)


@contextmanager
def _named_errors(file: Path) -> Iterator[None]:
    """Raises UserError about the file in place of pyarrow's errors, which are of many types."""
    try:
        yield
    except Exception as error:
        if isinstance(error, OSError) and error.errno:
            raise error_from(error, f"{file}: cannot be read ({error.strerror}); check -data_path") from error
        raise UserError(f"{file}: is no whole parquet file, or unlike the others; {_FIX}") from error


class ParquetImages(ImageFiles):
    """Images in row groups, which are decoded as a whole; each process keeps a few of them.

    Training shuffles within windows of row groups, as with tar shards. tables: of the images, and of all splits.
    shuffled_groups: DATA.SHUFFLE_SHARDS.
    """

    def __init__(self, listing: ImageFiles, tables: Sequence[ParquetTable], shuffled_groups: int) -> None:
        super().__init__(**vars(listing))
        self._table = tables[0]
        largest = max(1, *(table.group_bytes for table in tables))
        self._groups_in_window = max(1, min(shuffled_groups, _CACHE_BYTES // largest))
        self._group()

    def _group(self) -> None:
        self._cache = dict[int, Any]()  # by the number of the row group
        groups = self._groups_of(self.arrays["lines"])
        ends = np.append(np.flatnonzero(np.diff(groups)) + 1, len(groups))
        self.windows = ShardWindows(ends, self._groups_in_window)

    def _groups_of(self, rows: Any) -> Any:
        """The numbers of the row groups of rows, which are counted from 1."""
        return np.searchsorted(self._table.group_ends, rows)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_cache": {}}

    def select(self, indices: np.ndarray) -> Self:
        part = super().select(indices)
        part._group()
        return part

    def open_all(self, indices: Sequence[int], channels: int) -> Iterator[LazyImage | BadImage]:
        """As `Samples.open_all`; reads the images of a row group together."""
        images = dict(zip(sorted(indices), super().open_all(sorted(indices), channels), strict=True))
        return (images[index] for index in indices)

    def read_bytes(self, index: int) -> bytes:
        line = self.arrays["lines"][index]
        number = int(self._groups_of(line))
        place, group = self._table.groups[number].tolist()
        file = self._table.files[place]
        image = self.name(index)
        try:
            with _lock:
                if number not in self._cache:
                    column = self._table.columns["path"]
                    rows = _open(file).read_row_group(group, columns=[column], use_threads=False)
                    self._cache[number] = rows.column(column)
                    while len(self._cache) > 1 and sum(one.nbytes for one in self._cache.values()) > _CACHE_BYTES:
                        del self._cache[next(iter(self._cache))]
                from_end = int(line - 1 - self._table.group_ends[number])
                value = self._cache[number][from_end].as_py()
        except Exception as error:  # pyarrow raises many types on damaged files
            if isinstance(error, OSError) and error.errno:
                raise read_error(error, str(file), image, _FIX) from error
            raise BadImage(image, f"its row group is damaged ({' '.join(str(error).split())[:80]})", _FIX) from error
        data = value.get("bytes") if isinstance(value, dict) else value
        if data is None:  # perhaps it only names a file
            raise BadImage(
                image, "has no bytes of an image", "write them with datasets' embed_table_storage (docs/python.md)"
            )
        return bytes(data)

    def states(self) -> np.ndarray:
        of_files = np.array([file_state(str(file)) for file in self._table.files], np.uint64)
        return of_files[self._table.groups[self._groups_of(self.arrays["lines"]), 0]]

    def find_missing_files(self) -> Sequence[Finding]:
        return []  # a row is no file
