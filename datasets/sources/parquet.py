"""The data set `parquet`: images and labels in the parquet files of Hugging Face's hub."""

import json
import os
import re
import shlex
import threading
from collections import OrderedDict, defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from configs.reading.yaml_io import shorten
from configs.schema import Data
from datasets.decoding.decode import LazyImage
from datasets.decoding.images import BadImage
from datasets.loading.sampler import ShardWindows
from datasets.sources.files.image_files import ImageFiles, Listing, listing_arrays
from datasets.sources.files.lists import Tables
from datasets.sources.files.tables import PARQUET, Table
from datasets.sources.samples import list_names, read_error
from datasets.sources.shared_arrays import StringPacker, to_nfc
from datasets.sources.split_names import SPLIT_NAMES, split_of
from utils.errors import Finding, UserError, error_from
from utils.files import open_regular_file

_SHARD = re.compile(r"(.+)-(\d{5})-of-(\d{5})")  # of the hub: train-00000-of-00002.parquet
_MAX_DEPTH = 3
_CACHE_BYTES = 1 << 28  # of decoded row groups in a process, at least one
_FIX = "download it again"


def has_parquet_files(root: Path) -> bool:
    """Tells whether a folder has parquet files, where the hub has them."""
    return bool(_files_in(root))


def _files_in(root: Path) -> list[Path]:
    found = (path for depth in range(_MAX_DEPTH) for path in root.glob(f"{'*/' * depth}*{PARQUET}"))
    return sorted(path for path in found if not any(part.startswith(".") for part in path.relative_to(root).parts))


class Parquet(Tables):
    """The parquet files in DATA_PATH: train-00000-of-00002.parquet, test/0.parquet; or files without splits."""

    @classmethod
    def find(cls, data: Data) -> dict[str, Table]:
        root, folders = Path(data.data_path), dict[Path, None]()
        by_split: dict[str, list[Path]] = defaultdict(list)
        for file in [] if root.is_file() else _files_in(root):
            shard, folder = _SHARD.fullmatch(file.stem), file.parent
            of_folder = SPLIT_NAMES.get(folder.name.lower()) if folder != root else None
            split = split_of(shard[1] if shard else file.stem) or of_folder
            folders[folder.parent if split and split == of_folder else folder] = None
            by_split[split or (f"?{shard[1]}" if shard else "all")].append(file)
        by_split = by_split or {"all": [root]}
        if len(folders) > 1:
            paths = " or ".join(f"-data_path={shlex.quote(str(folder))}" for folder in list(folders)[:4])
            raise UserError(f"{root}: contains several configurations of a data set; give one: {paths}")
        others = [name.removeprefix("?") for name in by_split if name.startswith("?")]
        if [f"?{name}" for name in others] == list(by_split) and len(others) == 1:
            by_split["all"] = by_split.pop(f"?{others.pop()}")
        splits = [split for split in by_split if not split.startswith("?")]
        if not splits or ("all" in splits and len(splits) > 1):
            example = next(
                chain(*(by_split[split] for split in by_split if split == "all" or split not in splits)), root
            )
            raise UserError(f"{example}: is of no split; name the files as train-00000-of-00001{PARQUET}")
        if data.groups:
            raise UserError("DATA.GROUPS: is not read from parquet files; save the images as files with a table")
        tables: dict[str, Table] = {split: ParquetTable(root, by_split[split], data) for split in splits}
        if others:
            tables[splits[0]].notes.append(f"{root}: not read: {list_names(others)}")
        return tables

    def images(self, listing: Listing, tables: Mapping[str, Table]) -> ImageFiles:
        parts = [table for table in tables.values() if isinstance(table, ParquetTable)]
        return ParquetImages(listing, parts, self.data.shuffle_shards)

    def read_unlabelled(self) -> ImageFiles:
        """All images of a file, with the label 0; raises UserError for a folder of splits."""
        tables = self.find(self.data)
        if len(tables) > 1:
            file = next(iter(tables.values())).file
            raise UserError(f"{self.root}: has the splits {', '.join(tables)}; give a file, such as -predict {file}")
        (table,) = tables.values()
        paths = StringPacker(record[-1] for _, record in table)
        listing = Listing(_folder(self.root), ["0"], listing_arrays(paths), has_class_names=False)
        return self.images(listing, tables)


def _folder(root: Path) -> Path:
    return root.parent if root.is_file() else root


class ParquetTable(Table):
    """The rows of the files of a split. The path of an image is the file's, relative to the folder, and its row.

    group_ends: for each file, int64 (row groups,), the rows up to each row group, including it. group_bytes: of the
    largest row group, decoded.
    """

    def __init__(self, root: Path, files: Sequence[Path], data: Data) -> None:
        self.file, self.dialect, self.notes = files[0], "parquet", []
        folder, self._files, shard = _folder(root), files, _SHARD.fullmatch(files[0].stem)
        if shard and root != files[0] and len(files) < (number := int(shard[3])):
            raise UserError(f"{files[0]}: {len(files)} of its {number} files are here; download the others, too")
        self.root = folder
        self.group_ends, self.group_bytes, self._schemas = dict[str, np.ndarray](), 0, []
        for file in files:
            with _named_errors(file):
                parquet = _open(file)
            groups = [parquet.metadata.row_group(group) for group in range(parquet.metadata.num_row_groups)]
            self.group_ends[str(file.relative_to(folder))] = np.cumsum([group.num_rows for group in groups])
            self.group_bytes = max(self.group_bytes, *(group.total_byte_size for group in groups), 0)
            self._schemas.append(parquet.schema_arrow)
        schema = self._schemas[0]
        if different := [file for file, one in zip(files, self._schemas, strict=True) if one.names != schema.names]:
            raise UserError(f"{different[0]}: has other columns than {files[0]}; download both again")
        with _named_errors(files[0]):
            features = (
                json.loads((schema.metadata or {}).get(b"huggingface", b"{}")).get("info", {}).get("features", {})
            )
            kinds = {name: feature.get("_type") for name, feature in features.items() if isinstance(feature, dict)}
            named = [name for name, kind in kinds.items() if kind == "ClassLabel" and name in schema.names]
            self._classes = {name: tuple(map(to_nfc, features[name]["names"])) for name in named}
        self.class_column = next(iter(self._classes)) if len(self._classes) == 1 else ""
        images = [one.name for one in schema if kinds.get(one.name) == "Image" or _has_bytes(one.type)]
        given = (data.columns or {}).get("path")
        if given not in images and (given or len(images) != 1):
            names = f"has the images in {' or '.join(map(shorten, images))}" if images else "has no column of images"
            fix = f"set -opts 'DATA.COLUMNS={{path: {images[0]}}}'" if images else "give a folder of images"
            raise UserError(f"{files[0]}: {names}; {fix}")
        self.image_column = str(given or images[0])
        self._flat = [one.name for one in schema if _is_flat(one.type)]
        self.header = [*self._flat, self.image_column]

    @property
    def version(self) -> Hashable:
        return self.image_column, *((file, os.stat(file).st_mtime_ns) for file in self._files)

    @property
    def has_default_dialect(self) -> bool:
        return True

    def classes_of(self, column: str) -> tuple[str, ...]:
        return self._classes.get(column, ())

    def __iter__(self) -> Iterator[tuple[int, list[str] | str]]:
        number, names = 0, list(self.group_ends)
        for name, file in zip(names, self._files, strict=True):
            row = 0
            with _named_errors(file):
                for batch in _open(file).iter_batches(columns=self._flat):
                    columns = [self._texts(column, batch[column].to_pylist()) for column in self._flat]
                    for texts in zip(*columns, strict=True) if columns else [()] * batch.num_rows:
                        yield number + 1, [*texts, f"{name}:{row}"]
                        number, row = number + 1, row + 1

    def _texts(self, column: str, values: list[Any]) -> list[str]:
        names = self._classes.get(column)
        if names is None:
            return ["" if value is None else str(value).strip() for value in values]
        return [names[value] if value is not None and 0 <= value < len(names) else "" for value in values]


def _open(file: Path) -> Any:
    import pyarrow.parquet

    return pyarrow.parquet.ParquetFile(file)


@contextmanager
def _named_errors(file: Path) -> Iterator[None]:
    """Raises UserError about the file in place of pyarrow's errors, which are of many types."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno:
            raise error_from(error, f"{file}: cannot be read ({error.strerror}); check -data_path") from error
        with open_regular_file(file) as stream:
            is_pointer = stream.read(7) == b"version"
        fix = "is a pointer of Git LFS; run git lfs pull" if is_pointer else f"is no whole parquet file; {_FIX}"
        raise UserError(f"{file}: {fix}") from error


def _has_bytes(kind: Any) -> bool:
    from pyarrow import types

    return (
        types.is_binary(kind)
        or types.is_large_binary(kind)
        or (types.is_struct(kind) and kind.get_field_index("bytes") >= 0)
    )


def _is_flat(kind: Any) -> bool:
    from pyarrow import types

    tests = types.is_string, types.is_large_string, types.is_integer, types.is_floating, types.is_boolean
    return any(test(kind.value_type if types.is_dictionary(kind) else kind) for test in tests)


class ParquetImages(ImageFiles):
    """Images in row groups, which are decoded as a whole; each process keeps a few of them.

    Training shuffles within windows of row groups, as with tar shards. shuffled_groups: DATA.SHUFFLE_SHARDS.
    """

    def __init__(self, listing: Listing, tables: Sequence["ParquetTable"], shuffled_groups: int) -> None:
        super().__init__(listing)
        self._column = tables[0].image_column
        self._ends = {name: ends for table in tables for name, ends in table.group_ends.items()}
        self._cache, self._lock = OrderedDict[tuple[str, int], Any](), threading.Lock()
        largest, numbers = max(table.group_bytes for table in tables), dict[tuple[str, int], int]()
        groups = [numbers.setdefault(self._place(index)[:2], len(numbers)) for index in range(len(self))]
        ends = np.append(np.flatnonzero(np.diff(groups)) + 1, len(groups))
        self.windows = ShardWindows(ends, max(1, min(shuffled_groups, _CACHE_BYTES // max(1, largest))))
        if largest > _CACHE_BYTES:
            problem = f"row groups of up to {largest / 1e6:.0f} MB, of which each process keeps one in memory"
            self.notes.append(f"Warning: {listing.root}: {problem}; write smaller ones, of 100 images")

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_cache": OrderedDict(), "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.Lock())

    def _place(self, index: int) -> tuple[str, int, int]:
        """The file, the row group, and the row in it."""
        name, _, row = self.listing.paths[index].rpartition(":")
        group = int(np.searchsorted(self._ends[name], int(row), side="right"))
        return name, group, int(row) - (int(self._ends[name][group - 1]) if group else 0)

    def open_all(self, indices: Sequence[int], channels: int) -> Iterator[LazyImage | BadImage]:
        """As `Samples.open_all`; reads the images of a row group together."""
        images = dict(zip(sorted(indices), super().open_all(sorted(indices), channels), strict=True))
        return (images[index] for index in indices)

    def read_bytes(self, index: int) -> bytes:
        name, group, row = self._place(index)
        file, image = str(self.listing.root / name), self.name(index)
        try:
            value = self._rows(file, group)[row].as_py()
        except Exception as error:  # pyarrow raises many types on damaged files
            if isinstance(error, OSError) and error.errno:
                raise read_error(error, file, image, _FIX) from error
            raise BadImage(image, f"its row group is damaged ({' '.join(str(error).split())[:80]})", _FIX) from error
        path = value.get("path") if isinstance(value, dict) else None
        data = value.get("bytes") if isinstance(value, dict) else value
        if data is None:
            reason = f"only names the file {shorten(path)}" if path else "has no image"
            raise BadImage(image, reason, "write the data set with the bytes of its images")
        return bytes(data)

    def _rows(self, file: str, group: int) -> Any:
        """The images of a row group: an Arrow array."""
        with self._lock:
            if (key := (file, group)) not in self._cache:
                rows = _open(Path(file)).read_row_group(group, columns=[self._column], use_threads=False)
                self._cache[key] = rows.column(self._column)
                while len(self._cache) > 1 and sum(one.nbytes for one in self._cache.values()) > _CACHE_BYTES:
                    self._cache.popitem(last=False)
            self._cache.move_to_end(key)
            return self._cache[key]

    def find_missing_files(self) -> Sequence[Finding]:
        return []

    def is_missing(self, index: int) -> bool:
        return False
