"""Opens the index of a data set of shards: uses stored rows again, and reads new and changed shards in full."""

import contextlib
import fcntl
import hashlib
import os
import threading
import time
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import as_completed
from dataclasses import replace
from pathlib import Path

from tqdm import tqdm

from datasets.shards.indexing.archive import DamagedShard
from datasets.shards.indexing.index import INDEX_NAME, Index, join, read_index, to_index, write_index
from datasets.shards.indexing.records import Remarks, ShardRecords, read_records
from datasets.shards.shard import Shard
from datasets.shards.storage.store import ShardStore
from utils.cpu_cores import usable_cores
from utils.errors import UserError, combine_findings
from utils.files import open_regular_file
from utils.threads import DaemonPool

MAX_INDEX_BYTES = 16 << 30  # about 250 million images
_SAVE_SECONDS = 60.0
_MAX_THREADS = 16


def open_index(
    store: ShardStore, shards: Sequence[Shard], cache_dir: Path, label_key: str = ""
) -> tuple[Index, list[str]]:
    """Returns the index of exactly these shards, in their order, and notes for the log.

    Rows come from the index beside the shards and from the one in the cache folder; all other shards are read. The
    result is stored with the rows of other shards that a stored index had: beside local shards if their folder can be
    written, else in the cache folder. The copy of a server's index has the versions that the shards have now. A call
    uses the rows that an interrupted one has stored. Several processes of a host build an index once.

    Args:
        cache_dir: DATA.CACHE_DIR.
        label_key: see `find_label`.

    Raises:
        UserError: a shard is damaged, refused or cannot be read; some labels are numbers and others names; the index
            cannot be stored.
    """
    stored, cached = _StoredRows(shards, label_key), cached_index(store, cache_dir)
    if store.is_local:
        stored.add_file(Path(store.root, INDEX_NAME))
    if stored.missing():
        stored.add_file(cached)
    if stored.missing() and not store.is_local:
        stored.add_remote(store, cached)
    if stored.missing():
        with _locked([Path(store.root, INDEX_NAME), cached] if store.is_local else [cached]) as path:
            stored.add_file(path)  # another process may have written it
            if stored.missing():
                _build(store, stored, path)
    return stored.join(), stored.notes


def cached_index(store: ShardStore, cache_dir: Path) -> Path:
    """Returns the file of an index that is not stored beside its shards."""
    root = os.path.abspath(store.root) if store.is_local else store.root
    return cache_dir / "indexes" / f"{hashlib.sha256(os.fsencode(root)).hexdigest()[:32]}.safetensors"


class _StoredRows:
    """Collects the rows of the wanted shards from stored indexes, and the rows of other shards in them."""

    def __init__(self, shards: Sequence[Shard], label_key: str) -> None:
        self.label_key = label_key
        self.notes: list[str] = []
        self._wanted = {shard.name: shard for shard in shards}
        self._known: dict[str, Index] = {}  # of one shard each

    def add_file(self, path: Path) -> None:
        """Adds the rows of an index in a file, if it exists."""
        try:
            with open_regular_file(path) as file:
                data = file.read()
        except FileNotFoundError:
            return
        except OSError as error:
            self.note(f"Warning: {path}: cannot be read ({error.strerror}); the index is built without it")
            return
        self._add_index(data, str(path))

    def _add_index(self, data: bytes, origin: str) -> None:
        try:
            index = read_index(data, origin)
        except UserError as error:
            self.note(f"Warning: {error}")
            return
        if index.label_key != self.label_key:
            return
        for position, shard in enumerate(index.shards):
            current = self._wanted.get(shard.name, shard)
            if current.is_same_as(shard):
                self.add(replace(index.of_shard(position), shards=[current]))

    def add_remote(self, store: ShardStore, copy: Path) -> None:
        """Adds the rows of the index beside remote shards, and stores a copy if no shard is missing."""
        data = store.read_small(INDEX_NAME, MAX_INDEX_BYTES)
        if data is None:
            return
        self._add_index(data, store.url(INDEX_NAME))
        if not self.missing():
            with contextlib.suppress(OSError):  # the next run downloads it again
                copy.parent.mkdir(parents=True, exist_ok=True)
                self.save(copy)

    def note(self, note: str) -> None:
        if note not in self.notes:
            self.notes.append(note)

    def add(self, index: Index) -> None:
        """Adds the index of one shard."""
        self._known[index.shards[0].name] = index

    def missing(self) -> list[Shard]:
        return [shard for name, shard in self._wanted.items() if name not in self._known]

    def join(self) -> Index:
        """Returns the index of the wanted shards whose rows are known."""
        return join([self._known[name] for name in self._wanted if name in self._known], self.label_key)

    def save(self, path: Path) -> None:
        """Writes all rows; raises OSError, and UserError if the labels of the wanted shards are of two kinds."""
        index = self.join()
        with contextlib.suppress(UserError):  # other shards may have labels of another kind
            others = [self._known[name] for name in self._known if name not in self._wanted]
            index = join([index, *others], self.label_key)
        write_index(path, index)


@contextlib.contextmanager
def _locked(paths: Sequence[Path]) -> Iterator[Path]:
    """Locks the first of these files that can be written, for the processes of this host.

    Raises:
        UserError: none can be written.
    """
    for path in paths:
        lock = path.with_name(f".{path.name}.lock")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            failure = error
            continue
        try:
            with contextlib.suppress(OSError):  # the file system does not support locks
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield path
            return
        finally:
            with contextlib.suppress(OSError):
                lock.unlink()  # processes that wait for it find the index; at worst two build it
            os.close(descriptor)
    raise UserError(
        f"{path.parent}: cannot store the index ({failure.strerror}); set DATA.CACHE_DIR to a writable folder"
    ) from failure


def _build(store: ShardStore, stored: _StoredRows, path: Path) -> None:
    """Reads the missing shards. Stores their rows about once a minute, at the end, and after an error."""
    remarks, findings, saved = Remarks(), [], time.monotonic()

    def save() -> None:
        try:
            stored.save(path)
        except OSError as error:
            stored.note(f"Warning: {path}: cannot be written ({error.strerror}); the next run builds the index again")

    try:
        with contextlib.closing(_read_shards(store, stored.missing(), stored.label_key)) as results:
            for shard, result in results:
                if isinstance(result, DamagedShard):
                    findings.append(str(result))
                    continue
                stored.add(to_index(shard, result.records, store.url(shard.name)))
                for text, (number, example) in result.remarks.items():
                    remarks.count(text, example, number)
                if time.monotonic() - saved > _SAVE_SECONDS:
                    save()
                    saved = time.monotonic()
    except BaseException:
        with contextlib.suppress(UserError):
            save()
        raise
    save()
    if findings:
        raise combine_findings(f"{store.root}: {len(findings)} shards cannot be used:", findings)
    stored.notes += [f"{store.root}: {note}" for note in remarks.notes()]


def _read_shards(
    store: ShardStore, shards: Sequence[Shard], label_key: str
) -> Generator[tuple[Shard, ShardRecords | DamagedShard], None, None]:
    """Yields the images of each shard, or its damage, in no fixed order. Threads read the shards."""
    stop, counting = threading.Event(), threading.Lock()
    threads = min(len(shards), _MAX_THREADS, len(usable_cores()) if store.is_local else _MAX_THREADS)
    bar = tqdm(
        desc="index", total=sum(shard.num_bytes for shard in shards), unit="B", unit_scale=True, leave=False,
        disable=None,
    )  # fmt: skip

    def chunks(shard: Shard) -> Iterator[bytes]:
        for chunk in store.stream(shard):
            if stop.is_set():
                return
            with counting:
                bar.update(len(chunk))
            yield chunk

    def read(shard: Shard) -> tuple[Shard, ShardRecords | DamagedShard]:
        try:
            return shard, read_records(chunks(shard), store.url(shard.name), shard.num_bytes, label_key)
        except DamagedShard as error:
            return shard, error

    with bar, contextlib.closing(DaemonPool(threads)) as pool:
        try:
            for result in as_completed([pool.submit(read, shard) for shard in shards]):
                yield result.result()
        finally:
            stop.set()
