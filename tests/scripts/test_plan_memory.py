"""The memory of FSDP on 8 ranks, tracked by torch with fake tensors and a fake process group: nothing is allocated.

python tests/scripts/test_plan_memory.py [BATCH_SIZE [OPTION=VALUE ...]]     # ViT-H/14 and ViT-g/14: minutes
"""

import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parents[2]))

from configs.reading.command_line import parse_command_line
from configs.schema import Config, Parallel
from engine.parallel.fsdp import FSDP
from engine.precision.policy import Precision
from models.build import build_model
from scripts.planning.estimate import estimate, parse_cluster
from scripts.planning.workload import measure_workload
from utils.distributed import ProcessContext

NO_DROPOUT = ("MODEL.DROPOUT=0.0", "MODEL.ATTENTION_DROPOUT=0.0")
RANKS = 8


def planned_and_tracked(model_name: str, batch_size: int, *changes: str) -> tuple[float, float]:
    """Bytes of a rank at the peak of a forward and backward pass, without moments. `changes`: options, as AMP=true.

    The tracker counts whole moments: DTensor makes their shapes as fake tensors.
    """
    config = parse_command_line([f"-model={model_name}", "-opts", *NO_DROPOUT, *changes]).config
    options = Parallel(STRATEGY="fsdp")
    workload = measure_workload(config)
    planned = estimate(workload, parse_cluster("8xH100", 1), RANKS, batch_size, 1, 0.4, config.model.grad_checkpointing)
    return planned.total_bytes - planned.state_bytes["moments"], tracked_bytes(config, options, batch_size)


def tracked_bytes(config: Config, options: Parallel, batch_size: int) -> float:
    trackers = pytest.importorskip("torch.distributed._tools.fsdp2_mem_tracker")
    fake_tensors = pytest.importorskip("torch._subclasses.fake_tensor")
    fake_groups = pytest.importorskip("torch.testing._internal.distributed.fake_pg")
    with torch.device("meta"):
        model, _ = build_model(config.model, config.data, torch.device("meta"))
    dist.init_process_group("fake", rank=0, world_size=RANKS, store=fake_groups.FakeStore())
    try:
        precision = Precision(config.amp, torch.device("cpu"), is_sharded=True)
        strategy = FSDP(options, ProcessContext(0, 0, RANKS, RANKS, torch.device("cpu")))
        strategy.shard(model, None, precision.gathered_dtype)
        with fake_tensors.FakeTensorMode(allow_non_fake_inputs=True):
            model.train().to_empty(device="cpu")
            images = torch.empty(batch_size, 3, config.data.image_size, config.data.image_size)
            optimizer = torch.optim.AdamW(model.parameters())
            with trackers.FSDPMemTracker(model, optimizer) as tracker:
                with precision.autocast():
                    logits = model(images)
                logits.float().sum().backward()
            return tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"]
    finally:
        dist.destroy_process_group()


@pytest.mark.slow
def test_the_memory_of_fsdp_agrees_with_torchs_tracker():
    planned, tracked = planned_and_tracked("vit_small_patch16_224", 16)
    assert planned == pytest.approx(tracked, rel=0.1)


if __name__ == "__main__":
    size, *changes = sys.argv[1:] or ["16"]
    for name in ("vit_huge_patch14_224", "vit_giant_patch14_224"):
        planned, tracked = planned_and_tracked(name, int(size), *changes)
        print(f"{name}: planned {planned / 1e9:.2f} GB, tracked {tracked / 1e9:.2f} GB, {planned / tracked - 1:+.1%}")
