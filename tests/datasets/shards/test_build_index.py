"""Opening an index: built once, reused, repaired, resumed, shared by processes."""

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from conftest import refused
from pytest import fixture, mark, raises
from tar_files import numbered, tar_of

from datasets.shards import data_set
from datasets.shards.data_set import cached_index, open_index
from datasets.shards.index import INDEX_NAME, Shard, encode_index, read_index
from datasets.sources.shared_arrays import strings_in
from utils.errors import Findings, UserError


class FakeStore:
    """A `ShardStore` with files in memory, remote unless `root` is a folder; records which files are streamed.

    A name in `errors` raises after its first bytes.
    """

    def __init__(self, files, root="http://host/d"):
        self.files = files
        self.root = root
        self.streamed = []
        self.errors = {}
        self.is_local = not root.startswith("http:")

    def url(self, name):
        return f"{self.root}/{name}"

    def read_small(self, name, max_bytes):
        return self.files.get(name)

    def stream(self, shard):
        self.streamed.append(shard.name)
        data = self.files[shard.name]
        yield data[:1000]
        time.sleep(0.05)
        if shard.name in self.errors:
            raise self.errors[shard.name]
        yield data[1000:]


def shards_of(store: FakeStore, version: str | None = "1") -> list[Shard]:
    return [Shard(name, len(data), version) for name, data in store.files.items() if name.endswith(".tar")]


@fixture
def store() -> FakeStore:
    return FakeStore({f"train-{number}.tar": tar_of(numbered(5, 5 * number)) for number in range(4)})


@fixture
def cache(tmp_path) -> Path:
    return tmp_path / "cache"


def opened(store: FakeStore, cache: Path, shards: list[Shard] | None = None, label_key: str = ""):
    """The index, the notes, and the numbers of the shards that were read."""
    store.streamed.clear()
    index, notes = open_index(store, shards or shards_of(store), cache, label_key, assume=True, group_key="")
    return index, [*map(str, notes)], sorted(int(name[-5]) for name in store.streamed)


def rows_of(index) -> list:
    """The shards, and the names and labels of their images."""
    return [index.shards, list(strings_in(index.arrays, "names")), index.arrays["targets"].tolist()]


def test_an_index_is_built_once_and_only_changed_shards_are_read_again(store, cache):
    numbers = range(20)
    rows = [shards_of(store), [f"{number:06d}.jpg" for number in numbers], [number % 7 for number in numbers]]
    for expected in ([0, 1, 2, 3], []):
        index, notes, read = opened(store, cache)
        assert rows_of(index) == rows
        assert notes == []
        assert read == expected
    asked = shards_of(store)[2:0:-1]  # a part of them, in another order
    again, _, read = opened(store, cache, asked)
    assert rows_of(again)[0] == asked
    assert rows_of(again)[1][::5] == ["000010.jpg", "000005.jpg"]
    assert read == []
    store.files["train-1.tar"] = tar_of(numbered(9, 5))
    changed = shards_of(store)
    changed[3] = changed[3]._replace(version="2")
    for expected in ([1, 3], []):
        index, _, read = opened(store, cache, changed)
        assert len(index) == 24
        assert index.shards == changed
        assert read == expected


def test_labels_of_two_kinds_are_refused_and_not_stored(cache):
    store = FakeStore({"0.tar": tar_of({"x/1.jpg": b""}), "1.tar": tar_of({"1.jpg": b"", "1.cls": b"3"})})
    with refused(r"^1\.tar: .*0\.tar"):
        opened(store, cache)
    assert not cached_index(store, cache).exists()


def test_an_index_beside_remote_shards_is_used_and_copied(store, cache, tmp_path):
    store.files[INDEX_NAME] = encode_index(opened(store, cache)[0])
    assert opened(store, tmp_path / "other")[2] == []
    (tmp_path / "file").touch()
    index, notes, read = opened(store, tmp_path / "file")  # cannot be copied
    assert len(index) == 20
    assert read == []
    assert notes[-1].startswith(f"Warning: {tmp_path / 'file'}/")
    del store.files[INDEX_NAME]
    assert opened(store, tmp_path / "other")[2] == []  # from the copy
    uploaded = [shard._replace(version="mtime-3") for shard in shards_of(store)]  # the index was made from local files
    assert opened(store, tmp_path / "other", uploaded)[2] == []


def test_a_local_index_is_stored_beside_the_shards_or_else_in_the_cache(store, cache, tmp_path, monkeypatch):
    folder = tmp_path / "d"
    folder.mkdir()
    local = FakeStore(store.files, str(folder))
    opened(local, cache)
    assert read_index((folder / INDEX_NAME).read_bytes(), "i").shards == shards_of(store)
    assert opened(local, cache)[2] == []
    assert not cache.exists()
    (folder / INDEX_NAME).unlink()
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write everywhere
    for expected in ([0, 1, 2, 3], []):
        assert opened(local, cache)[2] == expected
    assert cached_index(local, cache).exists()
    (tmp_path / "file").touch()
    with refused(rf"^{tmp_path / 'file'}/indexes: .*DATA\.CACHE_DIR"):
        opened(local, tmp_path / "file")


@mark.parametrize("content", [b"", b"x" * 100, None])
def test_a_damaged_index_is_built_again_with_a_note(store, cache, content):
    index, _, _ = opened(store, cache)
    path = cached_index(store, cache)
    damaged = path.read_bytes()[:-3] + b"xyz" if content is None else content
    path.write_bytes(damaged)
    store.files[INDEX_NAME] = damaged
    again, notes, read = opened(store, cache)
    assert read == [0, 1, 2, 3]
    assert rows_of(again) == rows_of(index)
    assert [note.split(": ")[:2] for note in notes] == [["Warning", str(path)], ["Warning", store.url(INDEX_NAME)]]
    assert rows_of(read_index(path.read_bytes(), "i")) == rows_of(index)


def test_another_label_key_builds_the_index_again(cache):
    store = FakeStore({"0.tar": tar_of({"a.jpg": b"", "a.json": b'{"label": 1, "alt": 2}', "b.txt": b""})})
    for label_key, target in (("", 1), ("alt", 2), ("", 1)):
        index, notes, read = opened(store, cache, label_key=label_key)
        assert index.arrays["targets"].tolist() == [target]
        assert len(notes) == 1
        assert read == [0]
        assert opened(store, cache, label_key=label_key)[2] == []


def test_all_damaged_shards_are_named_and_the_others_are_kept(store, cache):
    whole = dict(store.files)
    store.files |= {"train-1.tar": whole["train-1.tar"][:1000], "train-3.tar": b"x" * 600}
    with raises(Findings, match=": 2 shards ") as error:
        opened(store, cache)
    for name in ("train-1.tar", "train-3.tar"):
        assert f"\n  {store.url(name)}: " in str(error.value)
    store.files = whole
    assert opened(store, cache)[2] == [1, 3]


@mark.parametrize("error", [UserError("http://host/d/train-3.tar: does not answer"), KeyboardInterrupt()])
def test_an_interrupted_build_continues(store, cache, error, monkeypatch):
    monkeypatch.setattr(data_set, "_MAX_THREADS", 1)
    store.errors["train-3.tar"] = error
    with raises(type(error)):
        opened(store, cache)
    store.errors.clear()
    assert opened(store, cache)[2] == [3]


def test_an_index_is_built_once_by_all_that_need_it(store, cache):
    """The lock of a file counts for threads as for processes."""
    with ThreadPoolExecutor(3) as pool:
        opens = pool.map(lambda _: open_index(store, shards_of(store), cache, "", True, ""), range(3))
        assert [(len(index), notes) for index, notes in opens] == [(20, [])] * 3
    assert sorted(store.streamed) == sorted(store.files)
