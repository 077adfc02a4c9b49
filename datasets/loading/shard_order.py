"""The order of samples in tar shards: the shards in random order, and random samples within a window of them.

A pure function of (seed, epoch), as `epoch_order`. The samples of a window come from a few shards, which fit into a
cache. The shards of the next window can be downloaded meanwhile.
"""

import zlib
from dataclasses import dataclass

import numpy as np
import torch

from utils.seeding import seeded_generator


@dataclass(frozen=True)
class ShardWindows:
    """S shards with N samples, of which `size` shards are mixed at a time.

    ends: int64 (S,), ascending: the samples of the shards up to each one, including it; the last is N.
    size: with S or more, the order is a random permutation of all samples.
    """

    ends: np.ndarray
    size: int

    @property
    def crc(self) -> int:
        """CRC-32 of `ends`: equal for shards in one order, with equal numbers of samples."""
        return zlib.crc32(np.ascontiguousarray(self.ends, "<i8").data)

    def order(self, seed: int, epoch: int) -> torch.Tensor:
        """The sample in each place of an epoch, a permutation, int64 (N,)."""
        starts = np.concatenate([[0], self.ends[:-1]])
        parts = []
        for number, in_window in enumerate(self.shards(seed, epoch).split(self.size)):
            samples = torch.cat([torch.arange(starts[shard], self.ends[shard]) for shard in in_window.tolist()])
            generator = seeded_generator(seed, "window", epoch, number)
            parts.append(samples[torch.randperm(len(samples), generator=generator)])
        return torch.cat(parts)

    def shards(self, seed: int, epoch: int) -> torch.Tensor:
        """The order of the shards in an epoch, int64 (S,)."""
        return torch.randperm(len(self.ends), generator=seeded_generator(seed, "shards", epoch))

    def shards_from(self, seed: int, epoch: int, shard: int, num_epochs: int) -> list[int]:
        """Lists the shards of the window with this shard, and of the next window before epoch `num_epochs`."""
        order, count = self.shards(seed, epoch).tolist(), 2 * self.size
        first = order.index(shard) // self.size * self.size
        in_use = order[first : first + count]
        if len(in_use) < count and epoch + 1 < num_epochs:
            in_use += self.shards(seed, epoch + 1)[: count - len(in_use)].tolist()
        return list(dict.fromkeys(in_use))
