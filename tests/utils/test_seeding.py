"""Seeds."""

import torch

from utils.seeding import seed_device


def test_seeding_a_device_equals_seeding_all():
    drawn = []
    for seed in (lambda: torch.manual_seed(2**62 + 7), lambda: seed_device(2**62 + 7, torch.device("cpu"))):
        seed()
        drawn.append((torch.rand(3), torch.randint(9, (3,))))
    assert all(torch.equal(one, other) for one, other in zip(*drawn, strict=True))
