"""The data set `tar`: WebDataset-style tar shards in a folder, on a web server, in S3 or GCS; and its index.

The index is stored. Its rows are used again; new and changed shards are read in full.
"""

import hashlib
import os
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import as_completed
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path

import numpy as np
from tqdm import tqdm

from datasets.shards.index import INDEX_NAME, Index, Shard, encode_index, join_indexes, read_index, to_index
from datasets.shards.location import find_shards, parse_location
from datasets.shards.records import DamagedShard, labels_in, read_records
from datasets.shards.samples import ShardCache, ShardReader, TarSamples, cache_folder
from datasets.shards.store import ShardStore
from datasets.sources.class_names import positions
from datasets.sources.formats import ONE_CLASS, format_of
from datasets.sources.samples import check_target_bytes
from datasets.sources.source import Source, Wanted
from datasets.sources.tables.cells import UNKNOWN_MARK, multi_hot
from utils.errors import UserError, combine_findings, error_from
from utils.files import atomic_write, locked, open_regular_file
from utils.notes import Counts, Note
from utils.threads import DaemonPool

START_TIMEOUT_SECONDS = 60.0  # for finding and indexing the shards; a run then waits as TIMEOUT_SECONDS says
MAX_INDEX_BYTES = 16 << 30  # about 250 million images
_MAX_THREADS = 16


class TarShards(Source):
    """A data set of tar shards, found and indexed (see `open_index`) once for all splits; `notes` are for the log.

    Raises UserError: DATA_PATH is not a folder or URL of shards, or a shard cannot be read or is damaged.
    """

    def __init__(self, wanted: Wanted, assume: bool = True) -> None:
        super().__init__(wanted)
        data = self.data
        root, names = parse_location(data.data_path)
        store = ShardStore(root, START_TIMEOUT_SECONDS)
        self.found = find_shards(store, names)
        folder = cache_folder(data.cache_dir)
        shards = store.head(list(chain.from_iterable(self.found.splits.values())))
        keys = (self.found.label_key, assume, data.groups or "")
        self.index, self.notes = open_index(store, shards, folder, *keys, beside=not wanted.is_dry)
        cache = None
        if not store.is_local and data.cache_gb > 0:
            cache = ShardCache(folder / "shards", round(data.cache_gb * 1e9), store)
        elif not store.is_local:
            store.read_many(shards[0].name, [(0, 1)])  # a server of whole files is refused here, not in the first batch
        self._reader = ShardReader(store, cache, 2 * data.shuffle_shards)
        class_names = self.index.class_names or self.found.class_names
        num_labels = int(self.index.arrays["targets"].max(initial=-1)) + 1
        self._several = None
        if data.multi_label:
            class_names, self._several = self._read_several(num_labels)
            num_labels = self._several.shape[1]
        elif any(name.startswith("\0") for name in self.index.class_names):
            raise UserError(f"{data.data_path}: has images with several labels; set DATA.MULTI_LABEL=true")
        self._has_names = bool(class_names)
        self._class_names = class_names or list(map(str, range(num_labels)))
        if "val" not in self.found.splits:
            part = "a part of each class is held out (DATA.VAL_FRACTION)"
            self.notes.append(Note("screen", f"no shard belongs to the split val: {part}"))

    def _read_several(self, num_labels: int) -> tuple[list[str], np.ndarray]:
        """The names of the classes, none for numbers, and the multi-hot target of each label in the index (L + 1, C).

        The last one is of images without a label. Raises UserError: the targets of the images are too large.
        """
        sets = list(map(labels_in, self.index.class_names or map(str, range(num_labels))))
        labels = {label.removeprefix(UNKNOWN_MARK) for one in sets for label in one}
        if all(label.isascii() and label.isdecimal() for label in labels):
            names = self.found.class_names
            number = {label: int(label) for label in labels}
        else:
            names = sorted(labels)
            number = positions(names)
        classes = max(len(names), 1 + max(number.values(), default=-1))
        check_target_bytes(self.data.data_path, len(self.index), classes)
        return names, multi_hot([*sets, ()], number, classes)

    @property
    def splits(self) -> Collection[str]:
        return self.found.splits

    def read(self, split: str) -> TarSamples:
        """Returns the samples of the shards of a split. Raises UserError: they have no image."""
        index = self.index.select(self.index.rows_of(set(self.found.splits[split])))
        if not len(index):
            of_index = [note.text for note in self.notes if note.kind == "log"]  # if it was read
            fix = [*of_index, "add some"][0]
            raise UserError(f"{self.data.data_path}: the shards of the split {split} have no image; {fix}")
        samples = TarSamples(self._reader, index, self._class_names, self.data.shuffle_shards)
        samples.has_class_names = self._has_names
        samples.notes = [*self.notes]
        missing = np.flatnonzero(samples.targets < 0)
        if len(missing):
            share = f"{len(missing):,} of the {len(samples):,} images of the split {split} have none"
            found = format_of(os.path.normpath(os.path.dirname(samples.name(missing[0]))))
            fix = "add KEY.cls, a label in KEY.json, or a folder per class"
            if found.what == ONE_CLASS:
                fix = found.fix
            samples.findings.append(f"{samples.name(missing[0])}: has no label ({share}); {fix}")
        if self._several is None:
            return samples
        return samples.with_arrays(targets=self._several[samples.targets])


def open_index(
    store: ShardStore,
    shards: Sequence[Shard],
    cache_dir: Path,
    label_key: str,
    assume: bool,
    group_key: str,
    beside: bool = True,
) -> tuple[Index, list[Note]]:
    """Returns the index of exactly these shards, in their order, and notes for the log.

    Rows come from the index beside the shards and from the one in DATA.CACHE_DIR, `cache_dir`; all other shards are
    read. The result is stored, if images have labels: with `beside` in the folder of local shards, if it can be
    written, else in the cache folder. The copy of a server's index has the versions that the shards have now. Several
    processes of a host build an index once.

    label_key: see `find_label`. group_key: rows without these groups are not used; '' for any rows.
    assume: uses rows without a version that can be compared, as `make_shards.py` writes them; else reads the shard.

    Raises UserError: a shard is damaged, refused or cannot be read; some labels are numbers and others names; the index
    cannot be stored.
    """
    stored = _StoredRows({shard.name: shard for shard in shards}, label_key, assume, group_key)
    path = cached_index(store, cache_dir)
    stored.add_file(path)
    if store.is_local:
        in_folder = Path(store.root, INDEX_NAME)
        stored.add_file(in_folder)
        if beside and os.access(store.root, os.W_OK):
            path = in_folder
            if not (path.exists() or stored.missing()):  # a dry run has found all
                stored.save(path)
    elif stored.missing():
        data = store.read_small(INDEX_NAME, MAX_INDEX_BYTES)
        if data is not None:
            stored.add(data, store.url(INDEX_NAME))
            if not stored.missing():
                stored.save(path)
    if stored.missing():
        with _locked(path):
            stored.add_file(path)  # another process may have written it
            _read_shards(store, stored, path)
    return stored.join(), list(dict.fromkeys(stored.notes))


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """The lock of an index in a file. Raises UserError: its folder cannot be written."""
    lock = path.with_name(f".{path.name}.lock")
    with ExitStack() as stack:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(locked(lock))
        except OSError as error:
            raise error_from(
                error,
                f"{path.parent}: cannot store the index ({error.strerror}); set DATA.CACHE_DIR to a writable folder",
            ) from error
        stack.callback(lock.unlink, missing_ok=True)  # others that wait find the index; at worst two build it
        yield


def cached_index(store: ShardStore, cache_dir: Path) -> Path:
    """Returns the file of an index that is not stored beside its shards."""
    root = os.path.abspath(store.root) if store.is_local else store.root
    return cache_dir / "indexes" / f"{hashlib.sha256(os.fsencode(root)).hexdigest()[:32]}.npz"


@dataclass
class _StoredRows:
    """Collects the rows of the wanted shards from stored indexes. wanted, indexes: by name; an index of one shard."""

    wanted: dict[str, Shard]
    label_key: str
    assume: bool
    group_key: str
    notes: list[Note] = field(default_factory=list)
    indexes: dict[str, Index] = field(default_factory=dict)

    def add_file(self, path: Path) -> None:
        """Adds the rows of an index in a file, if it exists."""
        try:
            with open_regular_file(path) as file:
                self.add(file.read(), str(path))
        except FileNotFoundError:
            return
        except OSError as error:
            self.notes.append(Note("warning", f"{path}: cannot be read ({error.strerror}); it is built again"))

    def add(self, data: bytes, origin: str) -> None:
        """Adds the rows of an index."""
        try:
            index = read_index(data, origin)
        except UserError as error:
            self.notes.append(Note("warning", str(error)))
            return
        if index.label_key != self.label_key or self.group_key not in ("", index.group_key):
            return
        for position, shard in enumerate(index.shards):
            current = self.wanted.get(shard.name)
            if not current or not current.is_same_as(shard):
                continue
            is_assumed = shard.is_assumed or not current.is_comparable_with(shard)
            if is_assumed and (not self.assume or shard.name in self.indexes):
                continue
            known = current._replace(is_assumed=is_assumed)
            self.indexes[shard.name] = replace(index.of_shard(position), shards=[known])

    def missing(self) -> list[Shard]:
        return [shard for name, shard in self.wanted.items() if name not in self.indexes]

    def join(self) -> Index:
        """Returns the index of the wanted shards whose rows are known."""
        known = [self.indexes[name] for name in self.wanted if name in self.indexes]
        return join_indexes(known, self.label_key, self.group_key)

    def save(self, path: Path) -> None:
        """Writes the rows that are known; none without labels, or if some labels are numbers and others names."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with suppress(UserError):
                index = self.join()
                if index.arrays["targets"].max(initial=-1) >= 0:
                    atomic_write(path, encode_index(index))
        except OSError as error:
            self.notes.append(Note("warning", f"{path}: cannot be written ({error.strerror}); no run can reuse it"))


def _read_shards(store: ShardStore, stored: _StoredRows, path: Path) -> None:
    """Reads the missing shards, each from its first byte to its last, and saves all rows; after an error, too."""
    shards = stored.missing()
    if not shards:
        return
    others = Counts()
    findings = []
    num_bytes = sum(shard.num_bytes for shard in shards)
    keys = (stored.label_key, stored.group_key)
    threads = min(len(shards), _MAX_THREADS)
    with (
        tqdm(desc="index", total=num_bytes, unit="B", unit_scale=True, leave=False, disable=None) as bar,
        closing(DaemonPool(threads)) as pool,
    ):
        reads = {pool.submit(read_records, store.stream(s), store.url(s.name), *keys): s for s in shards}
        try:
            for result in as_completed(reads):
                shard = reads.pop(result)
                bar.update(shard.num_bytes)
                try:
                    records, found = result.result()
                except DamagedShard as error:
                    findings.append(str(error))
                    continue
                stored.indexes[shard.name] = to_index(shard, records, store.url(shard.name))
                for reason, (number, example) in found.found.items():
                    others.add(reason, example, number)
        finally:
            stored.save(path)
    if findings:
        raise combine_findings(f"{store.root}: {len(findings)} shards cannot be used:", findings)
    stored.notes += others.notes(store.root)
