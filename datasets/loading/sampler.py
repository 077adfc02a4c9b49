"""The order of samples: a pure function of (seed, epoch), strided over ranks, resumable anywhere.

A key is (epoch, index). Epochs count from 0.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from utils.seeding import seeded_generator

Key = tuple[int, int]
PADDING = -1


@dataclass(frozen=True)
class TrainSampler:
    """One rank's batches of the whole run, from `first_batch` on, as one unbroken stream over the epochs.

    Together the ranks' n-th batches are the next `batch_size * world_size` samples of the epoch's order, whatever the
    number of ranks. What does not fill a batch on every rank is left out; each epoch leaves out others.
    """

    num_samples: int
    batch_size: int
    num_epochs: int
    seed: int
    rank: int = 0
    world_size: int = 1
    first_batch: int = 0

    @property
    def batches_per_epoch(self) -> int:
        return self.num_samples // (self.batch_size * self.world_size)

    def __len__(self) -> int:
        return self.num_epochs * self.batches_per_epoch - self.first_batch

    def __iter__(self) -> Iterator[list[Key]]:
        order_epoch, order = -1, torch.empty(0)
        for number in range(self.first_batch, self.num_epochs * self.batches_per_epoch):
            epoch, position = divmod(number, self.batches_per_epoch)
            if epoch != order_epoch:
                order_epoch, order = epoch, epoch_order(self.num_samples, self.seed, epoch)
            start = position * self.batch_size * self.world_size
            stop = start + self.batch_size * self.world_size
            yield [(epoch, index) for index in order[start + self.rank : stop : self.world_size].tolist()]


def epoch_order(num_samples: int, seed: int, epoch: int) -> torch.Tensor:
    """The permutation (num_samples,) in which an epoch goes through the samples."""
    return torch.randperm(num_samples, generator=seeded_generator(seed, "order", epoch))


@dataclass(frozen=True)
class EvalSampler:
    """One rank's batches of an evaluation: each sample once over all ranks, equally many full batches on each.

    The places left over hold the index `PADDING`.
    """

    num_samples: int
    batch_size: int
    rank: int = 0
    world_size: int = 1

    def __len__(self) -> int:
        return -(-self.num_samples // (self.batch_size * self.world_size))

    def __iter__(self) -> Iterator[list[Key]]:
        for batch in range(len(self)):
            start = batch * self.batch_size * self.world_size + self.rank
            places = range(start, start + self.batch_size * self.world_size, self.world_size)
            yield [(0, place if place < self.num_samples else PADDING) for place in places]
