"""Steps on a GPU: no wait of the host, and DistributedDataParallel with fused attention."""

from itertools import cycle

import pytest
import torch

from configs.reading.command_line import parse_command_line
from scripts.benchmarks.training_parts import build_state, ready_batches, training_loop

VIT = ["MODEL.EMBED_DIM=64", "MODEL.DEPTH=3", "MODEL.NUM_HEADS=2", "DATA.IMAGE_SIZE=32", "MODEL.NUM_CLASSES=10"]
VIT += ["DATA.BATCH_SIZE=8", "TRAIN.GRAD_CLIP=1.0", "TRAIN.MODEL_EMA=true", "TRAIN.MODEL_EMA_WARMUP=true"]


@pytest.mark.gpu
@pytest.mark.parametrize(
    "options",
    [
        [],
        ["AMP=true", "TRAIN.ACCUM_ITER=2", "MODEL.DROPOUT=0.1", "MODEL.DROPPATH=0.2"],
        ["AMP=true", "AMP.LEVEL=O2", "TRAIN.MIXUP_ALPHA=0.8"],
        ["AMP=true", "AMP.LEVEL=O3"],
        ["AMP=true", "TRAIN.COMPILE=max"],
    ],
)
def test_the_host_does_not_wait_in_a_step(gpu, options):
    config = parse_command_line(["-dataset=fake", "-opts", *VIT, *options]).config
    train = training_loop(build_state(config, gpu), cycle(ready_batches(config, gpu)), gpu)
    train(20)
    torch.cuda.set_sync_debug_mode("error")
    try:
        train(5)
    finally:
        torch.cuda.set_sync_debug_mode("default")
