"""The order of samples is a function of (seed, epoch), also balanced and in shards; batches do not depend on ranks."""

from collections import Counter

import numpy as np
import torch
from conftest import (
    each_value,
    refused,
)
from pytest import mark
from timm.data.distributed_sampler import RepeatAugSampler

from configs.batch_plan import BatchPlan, EpochLayout
from datasets.batch import PADDING
from datasets.loading.sampler import BalancedOrder, EvalSampler, RandomOrder, ShardWindows, TrainSampler, balanced_order

KINDS = {
    "plain": RandomOrder(),
    "repeated": RandomOrder(),
    "balanced": BalancedOrder(np.arange(1004) ** 2 % 7),
    "shards": ShardWindows(np.append(np.arange(90, 1000, 90), 1004), 3),
}


def sampler_of(kind: str, batch: BatchPlan, num_epochs: int, seed: int = 7, **position: int) -> TrainSampler:
    layout = EpochLayout(1004, batch, seed, repeats=3 if kind == "repeated" else 1)
    return TrainSampler(layout, num_epochs, **position, order=KINDS[kind])


@mark.parametrize("kind", KINDS)
def test_the_order_is_a_function_of_seed_and_epoch(kind):
    def epochs(seed):
        return np.array([*sampler_of(kind, BatchPlan(4), 2, seed)])[..., 1:].reshape(2, 2 * 1004).tolist()

    first, second = epochs(0)
    assert epochs(0) == [first, second]
    assert first != second
    assert first != epochs(1)[0]


@mark.parametrize("kind", KINDS)
@each_value("""
global_batch | batch_sizes              # numbers of ranks, each with a batch size
8            | [[1, 4], [2, 4], [4, 2]]
24           | [[1, 8], [2, 2], [3, 4], [4, 6]]
""")
def test_the_samples_of_a_step_depend_on_the_global_batch_alone(global_batch, batch_sizes, kind):
    """1,004 samples: 125 steps at a global batch of 8, on any number of ranks, with any batch size."""

    num_steps = 1004 // global_batch

    def steps(world_size, batch_size):
        batch = BatchPlan(batch_size, global_batch // (batch_size * world_size), world_size, whole_steps=True)
        assert EpochLayout(1004, batch, 7).steps_per_epoch == num_steps
        keys = np.array([list(sampler_of(kind, batch, 2, rank=rank)) for rank in range(world_size)])
        by_step = keys.swapaxes(0, 1).reshape(2 * num_steps, global_batch, 3)
        return [sorted(map(tuple, step)) for step in by_step.tolist()]

    expected = steps(1, global_batch)
    for world_size, batch_size in batch_sizes:
        assert steps(world_size, batch_size) == expected
    keys = [key for step in expected for key in step]
    if kind != "balanced":
        assert len(set(keys)) == len(keys)


@mark.parametrize("kind", KINDS)
@mark.parametrize("first_batch", [1, 83, 249])
def test_sampler_starts_anywhere(first_batch, kind):
    whole = list(sampler_of(kind, BatchPlan(12), 3))
    assert len(whole) == 249
    rest = sampler_of(kind, BatchPlan(12), 3, first_batch=first_batch)
    assert list(rest) == whole[first_batch:]
    assert len(rest) == 249 - first_batch


@mark.parametrize("world_size", [1, 2, 3])
@each_value("num_samples | first\n1|0\n7|0\n8|0\n24|0\n25|0\n25|8\n25|24\n25|25")
def test_an_evaluation_reads_each_sample_once_from_any_batch_on(num_samples, first, world_size):
    ranks = [list(EvalSampler(num_samples, 4, rank, world_size, first)) for rank in range(world_size)]
    keys = np.array(ranks).swapaxes(0, 1).reshape(-1, 3)
    rest = range(first, num_samples)
    assert keys[: len(rest), 1].tolist() == list(rest)
    assert (keys[len(rest) :, 1] == PADDING).all()
    assert {len(batch) for rank in ranks for batch in rank} <= {4}
    assert EvalSampler(num_samples, 4, 0, world_size, first).end(len(ranks[0])) == num_samples


@each_value("num_samples | world_size | batch_size\n1024 | 4 | 16\n300 | 2 | 10")
def test_repeated_augmentation_has_the_order_of_timms_sampler(num_samples, world_size, batch_size, monkeypatch):
    """Given the same permutation.

    timm rounds an epoch down to a multiple of 256 samples, and may end it with an incomplete batch, which its loader
    drops; here an epoch has as many batches as without repeats.
    """
    monkeypatch.setattr(torch, "randperm", lambda n, generator: order)
    order = torch.arange(num_samples).flip(0)
    for rank in range(world_size):
        theirs = list(RepeatAugSampler(range(num_samples), world_size, rank, num_repeats=3))
        layout = EpochLayout(num_samples, BatchPlan(batch_size, ranks=world_size), 0, repeats=3)
        sampler = TrainSampler(layout, 1, rank)
        ours = [index for batch in sampler for _, index, _ in batch]
        assert len(sampler) == num_samples // (batch_size * world_size)
        both = min(len(theirs), len(ours))
        assert ours[:both] == theirs[:both]
        if num_samples % 256 == 0:
            assert ours == theirs


COUNTS = {0: 2, 1: 9, 3: 70, 7: 419}  # label -> images; 500 images of 4 classes
TARGETS = np.random.default_rng(0).permutation(np.repeat(list(COUNTS), list(COUNTS.values())))


@mark.parametrize("num_places", [500, 498, 167, 3])
def test_every_class_has_the_same_number_of_places(num_places):
    for epoch in range(3):
        drawn = TARGETS[balanced_order(TARGETS, num_places, seed=3, epoch=epoch)]
        frequencies = Counter(drawn.tolist())
        assert len(drawn) == num_places
        assert frequencies.keys() <= COUNTS.keys()
        assert {frequencies[label] for label in COUNTS} <= {num_places // 4, -(-num_places // 4)}


def test_no_image_of_a_class_is_repeated_before_all_were_drawn():
    """125 places per class and epoch: the class of 419 images needs 3.35 epochs, the other three less than two."""
    drawn = np.concatenate([balanced_order(TARGETS, 500, 0, epoch) for epoch in range(12)])
    for label, count in COUNTS.items():
        sequence = drawn[TARGETS[drawn] == label]
        cycles = sequence[: len(sequence) // count * count].reshape(-1, count)
        assert len(cycles) == 12 * 125 // count
        assert (np.sort(cycles) == np.flatnonzero(label == TARGETS)).all()
        assert not (cycles == cycles[0]).all()


ENDS = np.cumsum([30, 1, 0, 25, 40, 4, 33, 17, 50, 8])  # one shard without samples of this split


@mark.parametrize("window", [1, 3, 10])
def test_a_window_is_used_up_before_the_next_one_begins(window):
    shards = np.searchsorted(ENDS, ShardWindows(ENDS, window).order(0, 0).numpy(), side="right")
    places = [np.flatnonzero(shards == shard) for shard in np.unique(shards)]
    for place in range(len(shards)):
        assert sum(own[0] <= place <= own[-1] for own in places) <= window


@mark.parametrize("ends", [np.cumsum(np.diff(ENDS, prepend=0)[::-1]), np.arange(4, ENDS[-1] + 1, 4)])
def test_other_shards_of_as_many_samples_do_not_resume_inside_an_epoch(ends):
    """They have another order; at the end of an epoch, a run may go on with them."""
    before, now = (
        EpochLayout(int(ENDS[-1]), BatchPlan(8), 0, shuffle_shards=3, shards_crc=ShardWindows(one, 3).crc)
        for one in (ENDS, ends)
    )
    checkpoint = {"geometry": before.geometry, "done_steps": 2}
    assert before.steps_done(checkpoint) == 2
    assert now.steps_done(checkpoint | {"done_steps": 0}) == 0
    with refused(r"-resume: .* inside an epoch .*DATA.DATA_PATH"):
        now.steps_done(checkpoint)
