"""Balanced sampling: equal class frequencies, no needless repetition, the same on any number of ranks, exact resume."""

from collections import Counter

import numpy as np
import pytest

from configs.reading.command_line import parse_command_line
from datasets.loading.sampler import balanced_order
from utils.errors import UserError

COUNTS = {0: 2, 1: 9, 3: 70, 7: 419}  # label -> images; 500 images of 4 classes
TARGETS = np.random.default_rng(0).permutation(np.repeat(list(COUNTS), list(COUNTS.values())))


@pytest.mark.parametrize("num_places", [500, 498, 167, 3])
def test_every_class_has_the_same_number_of_places(num_places):
    for epoch in range(3):
        drawn = TARGETS[balanced_order(TARGETS, num_places, seed=3, epoch=epoch)]
        frequencies = Counter(drawn.tolist())
        assert len(drawn) == num_places and frequencies.keys() <= COUNTS.keys()
        assert {frequencies[label] for label in COUNTS} <= {num_places // 4, -(-num_places // 4)}


def test_no_image_of_a_class_is_repeated_before_all_were_drawn():
    """125 places per class: the class of 419 images needs 3.35 epochs, the other three less than two."""
    drawn = [balanced_order(TARGETS, 500, 0, epoch).numpy() for epoch in range(12)]
    rare, common = np.flatnonzero(TARGETS == 0), np.flatnonzero(TARGETS == 7)
    for order in drawn:
        assert sorted(Counter(order[np.isin(order, rare)].tolist()).values()) == [62, 63]
    sequence = np.concatenate([order[np.isin(order, common)] for order in drawn])
    cycles = [sequence[start : start + 419] for start in range(0, len(sequence) - 418, 419)]
    assert len(cycles) == 3 and all(sorted(cycle) == common.tolist() for cycle in cycles)
    assert not (cycles[0] == cycles[1]).all()
    shown = np.concatenate(drawn)
    for label in (1, 3):
        times = np.bincount(shown[TARGETS[shown] == label], minlength=500)[label == TARGETS]
        assert times.min() > 0 and times.max() - times.min() <= 12


def test_balanced_weights_would_correct_the_imbalance_twice():
    options = ["-opts", "DATA.BALANCED_SAMPLING=true"]
    with pytest.raises(UserError, match=r"DATA\.BALANCED_SAMPLING.* and LOSS\.CLASS_WEIGHTS balanced correct the same"):
        parse_command_line([*options, "LOSS.CLASS_WEIGHTS=balanced"])
    assert parse_command_line([*options, "LOSS.CLASS_WEIGHTS=[1.0, 2.0]"]).config.data.balanced_sampling
