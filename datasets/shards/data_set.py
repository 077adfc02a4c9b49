"""The data set `tar`: WebDataset-style tar shards in a folder, on a web server, in S3 or GCS."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import AfterValidator, BaseModel, Field, ValidationError, model_validator

from configs.reading.yaml_io import shorten
from configs.schema import Data
from datasets.shards.build import open_index
from datasets.shards.cache import ShardCache, cache_folder
from datasets.shards.index import INFO_FILE, Index
from datasets.shards.location import MAX_NAMES, SHARD_SUFFIX, check_not_compressed, name_problem, parse_location
from datasets.shards.samples import ShardReader, TarSamples
from datasets.shards.store import ShardStore
from datasets.sources.groups import check_groups
from datasets.sources.shared_arrays import PackedStrings, StringPacker, strings_in, to_nfc
from datasets.sources.source import Source
from datasets.sources.split import Splitter
from datasets.sources.split_names import SPLIT_NAMES, split_of
from utils.errors import UserError

_MAX_INFO_BYTES = 64 << 20
_ClassName = Annotated[str, Field(min_length=1), AfterValidator(to_nfc)]
START_TIMEOUT_SECONDS = 60.0  # for finding and indexing the shards; a run then waits as TIMEOUT_SECONDS says


class TarShards(Source):
    """A data set of tar shards, found and indexed (see `open_index`) once for all splits; `notes` are for the log.

    Raises UserError: DATA_PATH is not a folder or URL of shards, or a shard cannot be read or is damaged.
    """

    reads_archive = True

    def __init__(self, data: Data, splitter: Splitter | None = None, assume: bool = True) -> None:
        super().__init__(data, splitter)
        store, self.found = _find(data)
        folder, shards = cache_folder(data.cache_dir), store.head(list(chain.from_iterable(self.found.splits.values())))
        self.index, self.notes = open_index(store, shards, folder, self.found.label_key, assume, data.groups or "")
        has_cache = data.cache_gb > 0 and not store.is_local
        cache = ShardCache(folder, round(data.cache_gb * 1e9), store) if has_cache else None
        self._reader = ShardReader(store, cache, 2 * data.shuffle_shards)
        self._names = self.index.class_names or self.found.class_names
        self.notes += _describe_source(data, self.index, store, folder)
        if "val" not in self.found.splits:
            self.notes.append("no shard belongs to the split val: a part of each class is held out (DATA.VAL_FRACTION)")

    def read(self, split: str) -> TarSamples:
        """Returns the samples of a split. 'all' is every sample; if the shards have splits, it is 'val'.

        Without shards of val, a part of each class is held out, see `Splitter`.

        Raises UserError: there are no shards of the split, or they have no image.
        """
        rows, findings, notes = self._rows(split)
        if not len(rows) and not findings:
            raise UserError(f"{self.data.data_path}: the shards of the split {split} have no image; add some")
        index = self.index.select(rows)
        class_names = self._names or list(map(str, range(self.index.arrays["targets"].max(initial=-1) + 1)))
        samples = TarSamples(self._reader, index, class_names, self.data.shuffle_shards)
        samples.has_class_names = bool(self._names)
        samples.notes += self.notes + notes
        samples.findings += findings
        if len(missing := np.flatnonzero(samples.targets < 0)):
            share = f"{len(missing):,} of the {len(samples):,} images of the split {split} have none"
            fix = "add KEY.cls, a label in KEY.json, or a folder per class"
            samples.findings.append(f"{samples.name(missing[0])}: has no label ({share}); {fix}")
        return samples

    def _rows(self, split: str) -> tuple[np.ndarray, list[str], list[str]]:
        """Returns the sorted rows of the index that belong to a split, error messages, and notes."""
        splits = self.found.splits
        if split == "all" and "all" not in splits:
            split = "val"
        is_part = split != "test" and "val" not in splits
        whole = "all" if "all" in splits else "train"
        if (wanted := whole if is_part else split) not in splits:
            known = f"there are shards of {', '.join(splits)}" if "all" not in splits else "no name contains a split"
            raise UserError(f"{self.data.data_path}: has no shard of the split {split}; {known}")
        rows = self.index.rows_of(set(splits[wanted]))
        if not is_part:
            return rows, [], []
        groups = strings_in(self.index.arrays, "groups").select(rows) if self.data.groups and split != "all" else None
        if groups:
            check_groups(groups, self.data, lambda row: self._paths(rows[row : row + 1])[0])
        part, findings, notes = self.splitter.part(self._paths(rows), self.index.arrays["targets"][rows], split, groups)
        return rows[part], findings, notes

    def _paths(self, rows: np.ndarray) -> PackedStrings:
        """The paths of images, such as 'train-0001.tar/cat/1.jpg': their names are unique in a shard only."""
        shards = (self.index.shards[shard].name for shard in self.index.shard_of[rows].tolist())
        names = strings_in(self.index.arrays, "names").select(rows)
        return StringPacker(f"{shard}/{name}" for shard, name in zip(shards, names, strict=True)).strings()

    @classmethod
    def has_splits(cls, data: Data) -> bool:
        return "all" not in _find(data)[1].splits

    @classmethod
    def find_test(cls, data: Data) -> tuple[bool, str | None]:
        return "test" in _find(data)[1].splits, None


def _describe_source(data: Data, index: Index, store: ShardStore, cache_dir: Path) -> list[str]:
    """Notes where remote shards are read from."""
    if store.is_local:
        return ["DATA.CACHE_GB is not used: the shards are files of this machine"] if data.cache_gb else []
    size = sum(shard.num_bytes for shard in index.shards) / 1e9
    cached = f"cached in {cache_dir}, at most {data.cache_gb:g} GB (DATA.CACHE_GB)"
    by_ranges = "not cached (DATA.CACHE_GB is 0): each image is read as a range, in each epoch"
    return [f"{store.root}: {len(index.shards)} shards, {size:.3g} GB, {cached if data.cache_gb else by_ranges}"]


@dataclass
class FoundShards:
    """The sorted names of the shards of each split: 'train', 'val', 'test', or only 'all'.

    class_names: the name of each label, or None. label_key: the key of the label in a sample's JSON file, or ''.
    """

    splits: dict[str, list[str]]
    class_names: list[str] | None = None
    label_key: str = ""


def _find(data: Data) -> tuple[ShardStore, FoundShards]:
    root, names = parse_location(data.data_path)
    store = ShardStore(root, START_TIMEOUT_SECONDS)
    return store, find_shards(store, names)


def find_shards(store: ShardStore, names: Sequence[str] | None = None) -> FoundShards:
    """Finds the shards by their `names`, by `_info.json`, or by listing the folder.

    Raises UserError: no shard is found, or it is not clear to which split one belongs.
    """
    if names:
        return _split_by_name(names, store)
    if (info := store.read_small(INFO_FILE, _MAX_INFO_BYTES)) is not None:
        return _read_info(info, store.url(INFO_FILE))
    if not store.files.can_list:
        raise UserError(
            f"{store.root}: the shards on a web server cannot be listed, and there is no {INFO_FILE}; give a "
            f"pattern, such as {store.url('train-{0000..0127}.tar')}"
        )
    return _split_by_name(_list_shards(store), store)


def _list_shards(store: ShardStore) -> list[str]:
    """Lists the shards at the root, and in its folders whose names contain a split; raises UserError without any."""
    files, folders = store.list_folder()
    for folder in folders:
        if split_of(folder):
            files += store.list_folder(folder)[0]
    shards = [file for file in files if not name_problem(file) and not file.split("/")[-1].startswith(".")]
    if shards:
        return shards
    for file in files:
        check_not_compressed(file)
    raise UserError(
        f"DATA.DATA_PATH: {store.root}: has no shard (*{SHARD_SUFFIX}); check it, or use -dataset=folder for images"
    )


def _split_by_name(names: Sequence[str], store: ShardStore) -> FoundShards:
    splits = defaultdict[str, list[str]](list)
    for name in sorted(names):
        splits[split_of(name) or "all"].append(name)
    if "all" in splits and len(splits) > 1:
        other = next(names for split, names in splits.items() if split != "all")[0]
        raise UserError(
            f"{store.url(splits['all'][0])}: has no 'train', 'val' or 'test' in its name, but {other} has; rename it, "
            "or move it out of the data set"
        )
    return FoundShards(dict(splits))


def _check_name(name: str) -> str:
    if problem := name_problem(name):
        raise ValueError(f"{shorten(name)} {problem}")
    return name


class _Split(BaseModel, strict=True):
    filenames: list[Annotated[str, AfterValidator(_check_name)]] = Field(min_length=1, max_length=MAX_NAMES)
    alt_label: str | None = None


class _Info(BaseModel, strict=True):
    splits: dict[str, _Split] = Field(min_length=1)
    class_names: list[_ClassName] | None = Field(None, min_length=1, max_length=10**6)

    @model_validator(mode="after")
    def _check(self) -> "_Info":
        splits = list(map(SPLIT_NAMES.get, self.splits))
        shards = [name for split in self.splits.values() for name in split.filenames]
        if None in splits or len(set(splits)) < len(splits):
            raise ValueError(f"the splits {shorten(list(self.splits))} are not train, val and test")
        if len(set(shards)) < len(shards) or len(set(self.class_names or ())) < len(self.class_names or ()):
            raise ValueError("names a shard or a class twice")
        if len({split.alt_label or "" for split in self.splits.values()}) > 1:
            raise ValueError("has several values of 'alt_label'")
        return self


def _read_info(data: bytes, url: str) -> FoundShards:
    """Reads timm's description of a data set, which may come from anyone; raises UserError."""
    try:
        info = _Info.model_validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = f"{shorten('.'.join(map(str, first['loc'])))}: " if first["loc"] else ""
        problem = first["msg"].removeprefix("Value error, ")
        raise UserError(f"{url}: {key}{problem}; correct it, or give a pattern of names instead") from None
    splits = {SPLIT_NAMES[name]: sorted(split.filenames) for name, split in info.splits.items()}
    label_key = next(iter(info.splits.values())).alt_label or ""
    return FoundShards(splits, class_names=info.class_names, label_key=label_key)
