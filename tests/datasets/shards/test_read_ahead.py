import time

import pytest

from datasets.shards.storage import read_ahead as read_ahead_module
from datasets.shards.storage.cache import ShardCache
from datasets.shards.storage.read_ahead import ReadAhead
from datasets.shards.storage.store import ShardStore
from tests.datasets.shards.fault_server import body, fault_server, status

NUM_SHARDS = 12


@pytest.fixture
def server(tmp_path):
    (tmp_path / "source").mkdir()
    for number in range(NUM_SHARDS):
        (tmp_path / "source" / f"{number}.tar").write_bytes(b"%02d" % number * 50_000)
    with fault_server(tmp_path / "source") as server:
        yield server


@pytest.fixture
def cache(tmp_path, server):
    return ShardCache(tmp_path / "cache", 10**8, ShardStore(server.url, timeout_seconds=2))


@pytest.fixture
def shards(server, cache):
    shards = cache.store.head([f"{number}.tar" for number in range(NUM_SHARDS)])
    server.requests.clear()
    return shards


@pytest.fixture
def ahead(cache):
    ahead = ReadAhead(cache, ahead=4)
    yield ahead
    ahead.close()


def cached(ahead, shards) -> list[int]:
    files = [ahead.cache.descriptor(shard) for shard in shards]
    for file in filter(None, files):
        file.close()
    return [number for number, file in enumerate(files) if file]


def wait_until(condition) -> None:
    for _ in range(1000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("the condition does not become true")


def test_downloads_the_next_shards_and_no_others(server, ahead, shards):
    ahead.follow(shards)
    wait_until(lambda: cached(ahead, shards) == [0, 1, 2, 3])
    ahead.follow(shards[1:])
    wait_until(lambda: cached(ahead, shards) == [0, 1, 2, 3, 4])
    ahead.follow(shards[9:])
    wait_until(lambda: cached(ahead, shards) == [0, 1, 2, 3, 4, 9, 10, 11])
    for _ in range(3):
        ahead.follow(shards[6:1:-1])  # the next epoch
    wait_until(lambda: cached(ahead, shards) == [0, 1, 2, 3, 4, 5, 6, 9, 10, 11])
    assert sorted(path for _, path, _ in server.requests) == sorted(
        f"/{number}.tar" for number in (*range(7), 9, 10, 11)
    )


def test_with_all_shards_in_use_none_replaces_another(server, ahead, shards):
    """As with balanced sampling: a small cache fills up once, and is not downloaded again and again."""
    ahead.cache.max_bytes = 3 * shards[0].num_bytes
    ahead.follow(shards)
    wait_until(lambda: len(cached(ahead, shards)) == 3)
    first = cached(ahead, shards)
    for number in range(NUM_SHARDS):
        ahead.follow([*shards[number:], *shards[:number]])
        time.sleep(0.02)
    assert cached(ahead, shards) == first and len(server.requests) == 3


def test_failures_are_left_to_the_readers(server, ahead, shards, monkeypatch, capfd):
    """Neither an error nor a line of text; the shards are tried again."""
    monkeypatch.setattr(read_ahead_module, "_RETRY_SECONDS", 0.05)
    server.fail_always(status(404))
    ahead.follow(shards)
    wait_until(lambda: ahead.follow(shards) or len(server.requests) > 10)
    server.fail()
    wait_until(lambda: ahead.follow(shards) or cached(ahead, shards) == [0, 1, 2, 3])
    assert capfd.readouterr() == ("", "")


def test_close_cancels_downloads(server, ahead, shards, monkeypatch):
    server.faults = iter(lambda: body(pause_seconds=0.5), None)
    ahead.follow(shards)
    wait_until(lambda: len(server.requests) == 4)
    ahead.close()
    wait_until(lambda: not list(ahead.cache.folder.glob("*.part")))
    assert cached(ahead, shards) == []
