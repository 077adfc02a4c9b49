"""Splits of data sets without a val split."""

import numpy as np
import pytest

from datasets.sources.split import split_stratified


def test_split_holds_out_a_share_of_each_class():
    targets = np.repeat([0, 1, 2], [100, 40, 7])
    train, val = split_stratified(targets, 0.2, seed=3)
    assert sorted([*train, *val]) == list(range(147))
    assert list(train) == sorted(train)
    assert list(val) == sorted(val)
    assert np.bincount(targets[val]).tolist() == [20, 8, 1]


@pytest.mark.parametrize("fraction", [0.001, 0.5, 0.999])
def test_split_leaves_some_of_each_class_on_either_side(fraction):
    targets = [0, 0, 1, 1, 1, 2]
    train, val = split_stratified(targets, fraction, seed=0)
    assert {targets[index] for index in train} == {0, 1, 2}
    assert {targets[index] for index in val} == {0, 1}


def test_split_follows_from_its_seed_alone():
    targets = np.arange(200) % 4
    first = split_stratified(targets, 0.1, seed=7)
    np.random.seed(1)
    for again, other in zip(first, split_stratified(targets, 0.1, seed=7), strict=True):
        assert np.array_equal(again, other)
    assert not np.array_equal(first[1], split_stratified(targets, 0.1, seed=8)[1])
