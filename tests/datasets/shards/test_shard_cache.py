import errno
import fcntl
import multiprocessing
import os
import resource
from contextlib import suppress
from unittest.mock import Mock

import numpy as np
from pytest import fixture, mark

from configs.batch_plan import BatchPlan, EpochLayout
from datasets.loading.sampler import BalancedOrder, EvalSampler, ShardWindows, TrainSampler
from datasets.shards import samples as cache_module
from datasets.shards.index import Shard
from datasets.shards.samples import ReadAhead, ShardCache
from datasets.shards.store import ShardStore
from tests.datasets.shards.range_server import body, range_server, status, wait_for

SIZE = 300_000
SPAWN = multiprocessing.get_context("spawn")


@fixture
def server(tmp_path):
    (tmp_path / "source").mkdir()
    for number in range(6):
        (tmp_path / "source" / f"{number}.tar").write_bytes(str(number).encode() * SIZE)
    with range_server(tmp_path / "source") as server:
        yield server


@fixture
def cache(tmp_path, server):
    return ShardCache(tmp_path / "cache/shards", 10**7, ShardStore(server.url, timeout_seconds=4))


@fixture
def shards(server, cache):
    shards = cache.store.head([f"{number}.tar" for number in range(6)])
    server.requests.clear()
    return shards


@fixture
def warnings(monkeypatch):
    lines = []
    monkeypatch.setattr(ShardCache, "_warn", lambda cache, problem: lines.append(problem))
    return lines


def files(cache: ShardCache) -> list[str]:
    return sorted(path.suffix for path in cache.folder.iterdir() if path.name != "lock")


def cached(cache, shards) -> list[int]:
    """The numbers of the shards in the cache, whose content is the content of their source."""
    found = []
    for number, shard in enumerate(shards):
        with suppress(FileNotFoundError), cache.open(shard) as file:
            assert file.read() == str(number).encode() * SIZE
            found.append(number)
    return found


def download_all(cache: ShardCache, shards: list[Shard]) -> list[bool]:
    return [cache.download(shard, wait_seconds=60.0) for shard in shards]


def test_download_and_read(server, cache, shards):
    assert cached(cache, shards) == []
    assert cache.download(shards[0])
    assert cache.download(shards[0])
    assert len(server.requests) == 1
    assert cached(cache, shards) == [0]
    assert cached(cache, [shards[0]._replace(version='"other"')]) == []
    with cache.open(shards[0]) as file:
        cache.drop(shards[0])
        assert os.pread(file.fileno(), 5, 5) == b"00000"  # readable after it was removed
    assert files(cache) == []


def test_least_recently_used_goes_first(cache, shards):
    """The clock of the cache is the time of the files, which all processes see."""
    cache.max_bytes = int(3.5 * SIZE)
    for number in (2, 0, 1):
        assert cache.download(shards[number])
        for path in cache.folder.glob("*.tar"):  # older with each download
            os.utime(path, (path.stat().st_mtime - 1000,) * 2)
    cache.open(shards[2]).close()  # used now
    assert cache.download(shards[3])  # instead of 0
    assert cache.download(shards[4], keep={shards[1], shards[2]})  # instead of 3, although 1 is older
    assert cached(cache, shards) == [1, 2, 4]
    assert not cache.download(shards[5], keep=shards[:5])
    assert sum(path.stat().st_size for path in cache.folder.iterdir()) <= cache.max_bytes


NO_LOCKS = Mock(side_effect=OSError(errno.ENOLCK, ""))


@mark.parametrize(
    "place, name, value",
    [(ShardCache, "max_bytes", SIZE - 1000), (cache_module, "_FREE_BYTES", 10**18), (fcntl, "flock", NO_LOCKS)],
)
def test_without_room_or_locks_nothing_is_cached(server, cache, shards, warnings, monkeypatch, place, name, value):
    monkeypatch.setattr(cache if place is ShardCache else place, name, value)
    assert not cache.download(shards[0])
    assert not server.requests
    assert files(cache) == []
    assert len(warnings) == 1


def test_full_disk(server, cache, shards, warnings, monkeypatch):
    """The write fails after 100,000 bytes. The cache does not try again for a while."""
    monkeypatch.setattr(cache_module.os, "truncate", lambda path, size: None)  # it would fail before
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        assert not cache.download(shards[0])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert files(cache) == []
    assert len(server.requests) == 1
    assert len(warnings) == 1
    assert not cache.download(shards[0])
    assert len(server.requests) == 1


@mark.slow
def test_two_processes_download_each_shard_once(server, cache, shards):
    server.faults = iter(lambda: body(pause_seconds=0.005), None)
    with SPAWN.Pool(2) as pool:
        assert pool.starmap(download_all, [(cache, shards)] * 2, chunksize=1) == [[True] * 6] * 2
    assert len(server.requests) == 6
    assert files(cache) == [".tar"] * 6
    assert cached(cache, shards) == list(range(6))


@mark.slow
def test_killed_downloader(server, cache, shards):
    """Its part is counted while it runs; others return at once, and begin again after its death."""
    server.fail(body(pause_seconds=0.2))
    process = SPAWN.Process(target=cache.download, args=(shards[0],))
    process.start()
    wait_for(lambda: server.requests)
    wait_for(lambda: files(cache) == [".part"])
    assert not cache.download(shards[0])
    cache.max_bytes = int(1.5 * SIZE)
    assert not cache.download(shards[1])  # no room beside it
    process.kill()
    process.join()
    assert files(cache) == [".part"]
    assert cache.download(shards[1])  # removes what is left
    assert files(cache) == [".tar"]


@fixture
def ahead(cache, shards):
    return ReadAhead(cache, shards, ShardWindows(np.arange(1, 7), 1), EvalSampler(6, 1))


def test_with_all_shards_in_use_none_replaces_another(server, cache, ahead, shards):
    """As with balanced sampling: a small cache fills up once, and is not downloaded again and again."""
    cache.max_bytes = 3 * SIZE
    for number in range(7):
        ahead.follow([*shards[number % 6 :], *shards[: number % 6]])
        wait_for(lambda number=number: len(cached(cache, shards)) == min(number + 2, 3))
    assert len(server.requests) == 3


def test_the_shards_of_each_batch_are_downloaded_before_those_of_the_next_ones(cache, shards, monkeypatch):
    """In each order of samples, also of one rank and from the middle of a run."""
    ends = np.array([5, 9, 10, 17, 30, 33])
    coming = []
    monkeypatch.setattr(
        ReadAhead, "follow", lambda self, shards: coming.append([int(shard.name[0]) for shard in shards])
    )
    windows = ShardWindows(ends, 2)
    layout = EpochLayout(33, BatchPlan(2, ranks=2), 7)  # of 8 batches
    in_windows = TrainSampler(layout, 3, rank=1, first_batch=8 + 5, order=windows)
    balanced = TrainSampler(layout, 1, order=BalancedOrder(np.arange(33) % 2))
    for sampler in (in_windows, balanced, EvalSampler(33, 2, rank=1, world_size=2)):
        coming.clear()
        for keys in ReadAhead(cache, shards, windows, sampler):
            used = {int(np.searchsorted(ends, index, side="right")) for _, index, _ in keys if index >= 0}
            assert used <= set(coming[-1])
        if sampler is in_windows:
            assert max(map(len, coming)) <= 4
            assert set(windows.shards(7, 2)[:2].tolist()) <= set(coming[2])  # at the end of epoch 1
            assert len(coming[-1]) == 2  # no shard of an epoch that does not come
    assert coming[0] == [0, 1, 2, 3, 4, 5]


def test_failed_downloads_are_left_to_the_readers_and_tried_again(server, cache, ahead, shards, monkeypatch, capfd):
    """They print and raise nothing."""
    monkeypatch.setattr(cache_module, "_RETRY_SECONDS", 0.05)
    server.fail_always(status(404))
    wait_for(lambda: ahead.follow(shards) or len(server.requests) > 10)
    server.fail()
    wait_for(lambda: ahead.follow(shards) or cached(cache, shards) == [0, 1])
    assert capfd.readouterr() == ("", "")
