"""The order of samples in shards: a permutation of shards, of samples within windows of them."""

import numpy as np
import pytest
import torch

from configs.batch_plan import BatchPlan
from datasets.loading.sampler import ShardWindows
from engine.checkpoint.epoch_layout import EpochLayout
from utils.errors import UserError

ENDS = np.cumsum([30, 1, 0, 25, 40, 4, 33, 17, 50, 8])  # one shard without samples of this split


@pytest.mark.parametrize("window", [1, 3, 10])
def test_a_window_is_used_up_before_the_next_one_begins(window):
    shards = np.searchsorted(ENDS, ShardWindows(ENDS, window).order(0, 0).numpy(), side="right")
    first_use = list(dict.fromkeys(shards.tolist()))
    last_place = {shard: int(np.flatnonzero(shards == shard)[-1]) for shard in first_use}
    first_place = {shard: int(np.flatnonzero(shards == shard)[0]) for shard in first_use}
    for place in range(len(shards)):
        in_use = [shard for shard in first_use if first_place[shard] <= place <= last_place[shard]]
        assert len(in_use) <= window


@pytest.mark.parametrize("ends", [np.cumsum(np.diff(ENDS, prepend=0)[::-1]), np.arange(4, ENDS[-1] + 1, 4)])
def test_other_shards_of_as_many_samples_do_not_resume_inside_an_epoch(ends):
    """They have another order; at the end of an epoch, a run may go on with them."""
    windows, others = ShardWindows(ENDS, 3), ShardWindows(ends, 3)
    assert ends[-1] == ENDS[-1] and not torch.equal(windows.order(0, 0), others.order(0, 0))
    before, now = (
        EpochLayout(int(ENDS[-1]), BatchPlan(8), 0, shuffle_shards=3, shards_crc=w.crc) for w in (windows, others)
    )
    checkpoint = {"geometry": before.geometry, "done_steps": 2}
    assert before.steps_done(checkpoint) == 2 and now.steps_done(checkpoint | {"done_steps": 0}) == 0
    with pytest.raises(UserError, match=r"-resume: .* inside an epoch .*DATA.DATA_PATH"):
        now.steps_done(checkpoint)
