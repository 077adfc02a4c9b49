"""The data set `tar`: WebDataset-style tar shards in a folder, on a web server, in S3 or GCS."""

from pathlib import Path

import numpy as np

from configs.schema import Data
from datasets.shards.find import FoundShards, find_shards
from datasets.shards.indexing.build import open_index
from datasets.shards.indexing.index import Index
from datasets.shards.location import parse_location
from datasets.shards.reader import ShardReader
from datasets.shards.samples import TarSamples
from datasets.shards.storage.cache import ShardCache, cache_folder
from datasets.shards.storage.store import ShardStore
from datasets.sources.arrays.strings import PackedStrings, StringPacker, strings_in
from datasets.sources.source import Source
from datasets.sources.split import Splitter
from utils.errors import UserError

START_TIMEOUT_SECONDS = 60.0  # for finding and indexing the shards; a run then waits as TIMEOUT_SECONDS says


class TarShards(Source):
    """A data set of tar shards, found and indexed (see `open_index`) once for all splits; `notes` are for the log.

    Raises:
        UserError: DATA_PATH is not a folder or URL of shards, or a shard cannot be read or is damaged.
    """

    reads_archive = True

    def __init__(self, data: Data, splitter: Splitter | None = None, assume: bool = True) -> None:
        super().__init__(data, splitter)
        store, self.found = _find(data)
        folder, shards = cache_folder(data.cache_dir), store.head(self.found.names)
        self.index, self.notes = open_index(store, shards, folder, self.found.label_key, assume)
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

        Raises:
            UserError: there are no shards of the split, or they have no image.
        """
        rows, findings, notes = self._rows(split)
        if not len(rows) and not findings:
            raise UserError(f"{self.data.data_path}: the shards of the split {split} have no image; add some")
        index = self.index.select(rows)
        class_names = self._names or list(map(str, range(self.index.arrays["targets"].max(initial=-1) + 1)))
        samples = TarSamples(self._reader, index.shards, index.arrays, class_names)
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
        splits, unsplit, has_val = self.found.splits, self.found.unsplit, "val" in self.found.splits
        if split == "all":
            split = "val" if splits else "all"
        is_part = split != "test" and not has_val
        wanted = splits.get("train" if is_part else split, [] if split == "test" else unsplit)
        if not wanted:
            known = f"there are shards of {', '.join(splits)}" if splits else "no name contains a split"
            raise UserError(f"{self.data.data_path}: has no shard of the split {split}; {known}")
        names = set(wanted)
        is_wanted = np.array([shard.name in names for shard in self.index.shards])
        rows = np.flatnonzero(is_wanted[self.index.shard_of])
        if not is_part:
            return rows, [], []
        part, findings, notes = self.splitter.part(self._paths(rows), self.index.arrays["targets"][rows], split)
        return rows[part], findings, notes

    def _paths(self, rows: np.ndarray) -> PackedStrings:
        """The paths of images, such as 'train-0001.tar/cat/1.jpg': their names are unique in a shard only."""
        shards = (self.index.shards[shard].name for shard in self.index.shard_of[rows].tolist())
        names = strings_in(self.index.arrays, "names").select(rows)
        return StringPacker(f"{shard}/{name}" for shard, name in zip(shards, names, strict=True)).strings()

    @classmethod
    def has_splits(cls, data: Data) -> bool:
        return bool(_find(data)[1].splits)

    @classmethod
    def find_test(cls, data: Data) -> tuple[bool, str | None]:
        return "test" in _find(data)[1].splits, None


def _find(data: Data) -> tuple[ShardStore, FoundShards]:
    root, names = parse_location(data.data_path)
    store = ShardStore(root, START_TIMEOUT_SECONDS)
    return store, find_shards(store, names)


def _describe_source(data: Data, index: Index, store: ShardStore, cache_dir: Path) -> list[str]:
    """Notes where remote shards are read from."""
    if store.is_local:
        return ["DATA.CACHE_GB is not used: the shards are files of this machine"] if data.cache_gb else []
    size = sum(shard.num_bytes for shard in index.shards) / 1e9
    cached = f"cached in {cache_dir}, at most {data.cache_gb:g} GB (DATA.CACHE_GB)"
    by_ranges = "not cached (DATA.CACHE_GB is 0): each image is read as a range, in each epoch"
    return [f"{store.root}: {len(index.shards)} shards, {size:.3g} GB, {cached if data.cache_gb else by_ranges}"]
