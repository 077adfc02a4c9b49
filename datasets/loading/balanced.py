"""Balanced sampling: the order of an epoch in which every class has the same number of places.

A pure function of (seed, epoch), as `epoch_order`. A weighted draw with replacement would show some images of a large
class twice before others once; here each class cycles through permutations of its own images.

Legend: N training images, K classes with images, R crops of an image (DATA.REPEATED_AUGMENTATION).
"""

import numpy as np
import torch

from utils.seeding import seeded_generator


def balanced_order(targets: np.ndarray, num_places: int, seed: int, epoch: int) -> torch.Tensor:
    """The sample index int64 (num_places,) of each place of an epoch.

    The places form blocks of K, in which each class occurs once, in random order (the last block is incomplete). A
    class with n images repeats none of them before all n were drawn, across epochs too, unless n is less than the
    number of blocks.

    Args:
        targets: the labels of the samples, int64 (N,).
        num_places: N, or N / R.
    """
    by_class = torch.from_numpy(np.argsort(targets, kind="stable"))
    labels, counts = np.unique(targets, return_counts=True)
    blocks = -(-num_places // len(labels))
    draws = np.stack(  # (K, blocks)
        [
            start + _class_draws(count, blocks, seed, epoch, label)
            for label, count, start in zip(labels.tolist(), counts.tolist(), counts.cumsum() - counts, strict=True)
        ]
    )
    classes = _permutations(blocks, len(labels), seed, "classes", epoch)  # (blocks, K)
    return by_class[torch.from_numpy(draws.T).gather(1, classes).flatten()[:num_places]]


def _class_draws(count: int, blocks: int, seed: int, epoch: int, label: int) -> np.ndarray:
    """Draws one of the `count` images of a class for each block of an epoch, int64 (blocks,).

    All epochs are one sequence of rounds. A round draws each image equally often, and is at least one epoch long. It
    may span two epochs.
    """
    cycles = -(-blocks // count)
    length = cycles * count
    first = epoch * blocks
    rounds = range(first // length, (first + blocks - 1) // length + 1)
    draws = torch.cat([_permutations(cycles, count, seed, "class", label, number).flatten() for number in rounds])
    return draws[first % length :][:blocks].numpy()


def _permutations(number: int, size: int, *seed: int | str) -> torch.Tensor:
    """Random permutations, int64 (number, size)."""
    return torch.rand((number, size), generator=seeded_generator(*seed), dtype=torch.float64).argsort(1)
