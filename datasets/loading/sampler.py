"""The order of samples: a pure function of (seed, epoch), divided among the ranks, that can start at any batch.

A key is (epoch, sample index, repeat). Epochs and repeats count from 0. Of tar shards, the shards come in random order,
and random samples within a window of them, which fit into a cache. Balanced sampling gives each class the same number
of places, and each class cycles through permutations of its images: a weighted draw with replacement would show some
images of a large class twice before others once.

Legend: N training images, K classes with images, R crops of an image (DATA.REPEATED_AUGMENTATION).
"""

import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from configs.batch_plan import EpochLayout
from datasets.batch import PADDING
from utils.seeding import seeded_generator


def balanced_order(targets: np.ndarray, num_places: int, seed: int, epoch: int) -> Tensor:
    """The sample index int64 (num_places,) of each place of an epoch.

    The places form blocks of K, in which each class occurs once, in random order (the last block is incomplete). A
    class with n images repeats none of them before all n were drawn, across epochs too, unless n is less than the
    number of blocks.

    targets: the labels of the samples, int64 (N,).
    num_places: N, or N / R.
    """
    by_class = torch.from_numpy(np.argsort(targets, kind="stable"))
    labels, counts = np.unique(targets, return_counts=True)
    blocks = -(-num_places // len(labels))
    draws = []
    first = epoch * blocks  # (K, blocks)
    for label, count, start in zip(labels.tolist(), counts.tolist(), counts.cumsum() - counts, strict=True):
        # One image of the class for each block. All epochs are one sequence of rounds. A round draws each image equally
        # often, and is at least one epoch long. It may span two epochs.
        cycles = -(-blocks // count)
        length = cycles * count
        rounds = range(first // length, (first + blocks - 1) // length + 1)
        drawn = torch.cat([_permutations(cycles, count, seed, "class", label, number).flatten() for number in rounds])
        draws.append(start + drawn[first % length :][:blocks].numpy())
    classes = _permutations(blocks, len(labels), seed, "classes", epoch)  # (blocks, K)
    return by_class[torch.from_numpy(np.stack(draws).T).gather(1, classes).flatten()[:num_places]]


def _permutations(number: int, size: int, *seed: int | str) -> Tensor:
    """Random permutations, int64 (number, size)."""
    return torch.rand((number, size), generator=seeded_generator(*seed), dtype=torch.float64).argsort(1)


class RandomOrder:
    """The order of an epoch: a random permutation. size, crc: as of `ShardWindows`; 0 without shards."""

    size = crc = 0

    def places(self, layout: EpochLayout, epoch: int) -> Tensor:
        """The sample index in each place of an epoch, int64; with repeats, the first ones are used."""
        return torch.randperm(layout.samples, generator=seeded_generator(layout.seed, "order", epoch))


@dataclass(frozen=True)
class BalancedOrder(RandomOrder):
    """The order of `balanced_order`. targets: the labels of the samples, int64 (N,)."""

    targets: np.ndarray

    def places(self, layout: EpochLayout, epoch: int) -> Tensor:
        return balanced_order(self.targets, -(-layout.samples // layout.repeats), layout.seed, epoch)


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

    def places(self, layout: EpochLayout, epoch: int) -> Tensor:
        """As of `RandomOrder`."""
        return self.order(layout.seed, epoch)

    def order(self, seed: int, epoch: int) -> Tensor:
        """The sample in each place of an epoch, a permutation, int64 (N,)."""
        starts = np.concatenate([[0], self.ends[:-1]])
        parts = []
        for number, in_window in enumerate(self.shards(seed, epoch).split(self.size)):
            samples = torch.cat([torch.arange(starts[shard], self.ends[shard]) for shard in in_window.tolist()])
            generator = seeded_generator(seed, "window", epoch, number)
            parts.append(samples[torch.randperm(len(samples), generator=generator)])
        return torch.cat(parts)

    def shards(self, seed: int, epoch: int) -> Tensor:
        """The order of the shards in an epoch, int64 (S,)."""
        return torch.randperm(len(self.ends), generator=seeded_generator(seed, "shards", epoch))

    def shard_of(self, sample: int) -> int:
        return int(np.searchsorted(self.ends, sample, side="right"))

    def shards_from(self, seed: int, epoch: int, shard: int, num_epochs: int) -> list[int]:
        """Lists the shards of the window with this shard, and of the next window before epoch `num_epochs`."""
        order = self.shards(seed, epoch).tolist()
        count = 2 * self.size
        first = order.index(shard) // self.size * self.size
        in_use = order[first : first + count]
        if len(in_use) < count and epoch + 1 < num_epochs:
            in_use += self.shards(seed, epoch + 1)[: count - len(in_use)].tolist()
        return list(dict.fromkeys(in_use))


Key = tuple[int, int, int]


@dataclass(frozen=True)
class TrainSampler:
    """One rank's batches from `first_batch` of the run to its end, as one sequence over all epochs.

    The n-th batches of all ranks together are the next samples in the epoch's order, independently of the number of
    ranks. An epoch has the batches of `layout`. Samples that do not fill them are dropped, different samples in each
    epoch.

    With repeated augmentation (Hoffer et al., 2020) a sample takes `layout.repeats` consecutive places of the order:
    with as many ranks or more, each copy goes to another rank. The number of batches stays, as in DeiT, so that an
    epoch has 1 / `repeats` of the samples.

    order: of the samples of an epoch; `ShardWindows`: in windows of shards.
    """

    layout: EpochLayout
    num_epochs: int
    rank: int = 0
    first_batch: int = 0
    order: RandomOrder | ShardWindows = field(default=RandomOrder(), compare=False)

    @property
    def batch_size(self) -> int:
        return self.layout.batch.micro_batch

    def __len__(self) -> int:
        return self.num_epochs * self.layout.batches_per_epoch - self.first_batch

    def __iter__(self) -> Iterator[list[Key]]:
        batches = self.layout.batches_per_epoch
        repeats = self.layout.repeats
        size = self.layout.batch.micro_step_size
        world_size = self.layout.batch.ranks
        first_epoch, first = divmod(self.first_batch, batches)
        for epoch in range(first_epoch, self.num_epochs):
            order = self.order.places(self.layout, epoch)
            for position in range(first, batches):
                places = range(position * size + self.rank, (position + 1) * size, world_size)
                indices = order[torch.tensor(places) // repeats].tolist()
                yield [(epoch, index, place % repeats) for index, place in zip(indices, places, strict=True)]
            first = 0

    def coming_shards(self, shards: ShardWindows, number: int, key: Key) -> list[int]:
        """The shards that are needed from now on, in this order. number, key: of the next batch, and its first one."""
        epoch, sample, _ = key
        if isinstance(self.order, ShardWindows):
            return shards.shards_from(self.layout.seed, epoch, shards.shard_of(sample), self.num_epochs)
        return np.roll(range(len(shards.ends)), -number).tolist()  # all are in use, one after the other first


@dataclass(frozen=True)
class EvalSampler:
    """One rank's batches of an evaluation: each sample once over all ranks, the same number of full batches on each.

    Batch b of the data, the next `batch_size` samples, is on rank b % `world_size`: the samples that are computed
    together, and so their results, do not depend on the number of ranks. The remaining positions have the index
    `PADDING`.

    first: the samples before this one, a multiple of `batch_size`, are done.
    """

    num_samples: int
    batch_size: int
    rank: int = 0
    world_size: int = 1
    first: int = 0

    def __len__(self) -> int:
        return -(-(self.num_samples - self.first) // (self.batch_size * self.world_size))

    def __iter__(self) -> Iterator[list[Key]]:
        for batch in range(len(self)):
            start = self.first + (batch * self.world_size + self.rank) * self.batch_size
            indices = range(start, start + self.batch_size)
            yield [(0, index if index < self.num_samples else PADDING, 0) for index in indices]

    def coming_shards(self, shards: ShardWindows, number: int, key: Key) -> range:
        """As of `TrainSampler`."""
        _, sample, _ = key
        end = len(shards.ends)
        return range(end) if sample == PADDING else range(shards.shard_of(sample), end)

    def end(self, number: int) -> int:
        """The sample after the first `number` batches of all ranks."""
        return min(self.first + number * self.world_size * self.batch_size, self.num_samples)
