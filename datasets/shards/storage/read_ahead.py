"""Downloads the shards that an epoch needs next into the cache, in threads of the rank."""

import threading
import time
from collections.abc import Sequence

from datasets.shards.shard import Shard
from datasets.shards.storage.cache import ShardCache
from utils.errors import UserError

_THREADS = 4
_RETRY_SECONDS = 5.0  # until a shard is tried again: another process may be downloading it, or there was no room
_CLOSE_SECONDS = 1.0


class ReadAhead:
    """Downloads at most `ahead` shards at the head of a list. No method waits for a download or raises.

    A shard that cannot be downloaded is left to the readers, who report the error if they cannot read it either.
    """

    def __init__(self, cache: ShardCache, ahead: int) -> None:
        self.cache, self.ahead = cache, ahead
        self._followed: Sequence[Shard] = ()
        self._wanted: list[Shard] = []
        self._begun: set[Shard] = set()  # of those: being downloaded, or complete
        self._retry_at: dict[Shard, float] = {}
        self._changed = threading.Condition()
        self._stopped = False
        self._threads: list[threading.Thread] = []

    def follow(self, shards: Sequence[Shard]) -> None:
        """`shards` are needed now and later, in this order; call it again whenever that changes.

        None of them is removed from the cache to make room for another one of them, which is needed no sooner: with
        all shards in use, the cache fills up, and the other shards are read from their source.
        """
        wanted = list(shards[: self.ahead])
        with self._changed:
            self._followed = shards
            if wanted == self._wanted:
                return
            self._wanted = wanted
            self._begun.intersection_update(wanted)
            self._retry_at = {shard: self._retry_at[shard] for shard in wanted if shard in self._retry_at}
            self._changed.notify_all()
        if not self._threads:
            self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(_THREADS)]
            for thread in self._threads:
                thread.start()

    def close(self) -> None:
        """Cancels all downloads; a thread that waits for a server is left behind, and ends with the process.

        Call it before the process exits.
        """
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        deadline = time.monotonic() + _CLOSE_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _next(self) -> Shard | None:
        now = time.monotonic()
        ready = (shard for shard in self._wanted if shard not in self._begun and self._retry_at.get(shard, 0.0) <= now)
        return next(ready, None)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._stopped and (shard := self._next()) is None:
                    self._changed.wait(_RETRY_SECONDS)
                if self._stopped:
                    return
                self._begun.add(shard)
                keep = self._followed
            is_cached = self._download(shard, keep)
            with self._changed:
                if not is_cached:
                    self._begun.discard(shard)
                    self._retry_at[shard] = time.monotonic() + _RETRY_SECONDS

    def _download(self, shard: Shard, keep: Sequence[Shard]) -> bool:
        try:
            return self.cache.download(shard, keep, is_cancelled=lambda: self._stopped)
        except UserError:
            return False
