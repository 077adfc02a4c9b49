"""The planner's memory of FSDP against torch's own tracker; ViT-H/14 and ViT-g/14: run plan_memory.py."""

import pytest
from plan_memory import planned_and_tracked


@pytest.mark.slow
def test_the_memory_of_fsdp_agrees_with_torchs_tracker():
    planned, tracked = planned_and_tracked("vit_small_patch16_224", 16)
    assert planned == pytest.approx(tracked, rel=0.1)
