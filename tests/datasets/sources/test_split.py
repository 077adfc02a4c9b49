"""Splits of data sets without a val split."""

import numpy as np
import pytest
from source_helpers import options

from datasets.sources.split import split_indices


def split(targets: np.ndarray, fraction: float, seed: int) -> list[np.ndarray]:
    given = options("unused", val_fraction=fraction, split_seed=seed)
    return [split_indices(targets, given, name)[0] for name in ("train", "val")]


def test_a_share_of_each_class_is_held_out():
    targets = np.repeat([0, 1, 2], [100, 40, 7])
    train, val = split(targets, 0.2, seed=3)
    assert sorted([*train, *val]) == list(range(147))
    assert list(train) == sorted(train) and list(val) == sorted(val)
    assert np.bincount(targets[val]).tolist() == [20, 8, 1]
    np.random.seed(1)  # of no effect
    assert np.array_equal(val, split(targets, 0.2, seed=3)[1])
    assert not np.array_equal(val, split(targets, 0.2, seed=4)[1])


@pytest.mark.parametrize("fraction", [0.001, 0.5, 0.999])
def test_some_of_each_class_are_on_either_side(fraction):
    targets = np.array([0, 0, 1, 1, 1, 2])
    train, val = split(targets, fraction, seed=0)
    assert {targets[index] for index in train} == {0, 1, 2}
    assert {targets[index] for index in val} == {0, 1}
