"""Downloads the shards that an epoch needs next into the cache, in threads of the rank."""

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future

from datasets.shards.shard import Shard
from datasets.shards.storage.cache import ShardCache
from utils.errors import UserError
from utils.threads import DaemonPool

_THREADS = 4
_RETRY_SECONDS = 5.0  # until a shard is tried again: another process may be downloading it, or there was no room


class ReadAhead:
    """Downloads at most `ahead` shards at the head of a list. No method waits for a download or raises.

    Errors are ignored: a reader of the shard reports them if it cannot read it either.
    """

    def __init__(self, cache: ShardCache, ahead: int) -> None:
        self.cache, self.ahead = cache, ahead
        self._shards: Sequence[Shard] = ()
        self._downloads: dict[Shard, Future[float]] = {}  # the time from which a shard may be downloaded again
        self._stopped = threading.Event()
        self._pool = DaemonPool(_THREADS)

    def follow(self, shards: Sequence[Shard]) -> None:
        """Starts to download `shards`, which are needed now and later, in this order. Call it before each batch.

        The cache removes none of these shards to make room for another of them. With all shards in use, it fills up,
        and the other shards are read from their source.
        """
        self._shards, wanted = shards, shards[: self.ahead]
        for shard in self._downloads.keys() - set(wanted):
            self._downloads.pop(shard).cancel()
        for shard in wanted:
            download = self._downloads.get(shard)
            if download is None or (download.done() and download.result() <= time.monotonic()):
                self._downloads[shard] = self._pool.submit(self._download, shard)

    def close(self) -> None:
        """Cancels all downloads, and waits for none. Call it before the process exits."""
        self._stopped.set()
        self._pool.close()

    def _download(self, shard: Shard) -> float:
        try:
            is_cached = self.cache.download(shard, self._shards, is_cancelled=self._stopped.is_set)
        except UserError:
            is_cached = False
        return float("inf") if is_cached else time.monotonic() + _RETRY_SECONDS
