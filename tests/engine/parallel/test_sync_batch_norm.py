"""PARALLEL.SYNC_BN: two ranks train the weights and statistics of one process with the whole batch."""

import pytest
import timm
import torch
from conftest import TINY_RESNET
from sharding_cases import batches, difference, train, weights

from configs.batch_plan import plan_batches
from configs.reading.command_line import parse_command_line
from configs.rules import Facts, resolve
from datasets.batch import Batch
from engine.checkpoint.epoch_layout import EpochLayout
from engine.training.build import build_train_state, synchronize_batch_norms
from utils.distributed import ProcessContext
from utils.errors import UserError

STEPS = 3
OPTIONS = [*TINY_RESNET, "TRAIN.OPTIMIZER.NAME=sgd", "TRAIN.BASE_LR=0.1", "TRAIN.WARMUP_EPOCHS=0", "SEED=3"]
CASES = {
    "fp32": [],
    "norm with activation": ["MODEL.NAME=test_byobnet"],
    "accumulation": ["TRAIN.ACCUM_ITER=2", "TRAIN.GRAD_CLIP=0.01"],
    "recomputed": ["MODEL.GRAD_CHECKPOINTING=true"],
}


def trained(context: ProcessContext, options: list[str], whole: bool = False) -> dict[str, torch.Tensor]:
    """The weights after three steps, with this rank's batches or with the batches of both ranks as one."""
    sizes = [f"DATA.BATCH_SIZE={8 if whole else 4}"]
    config = resolve(parse_command_line(["-opts", *OPTIONS, *options, *sizes]).config, Facts(context.world_size))
    layout = EpochLayout(1000, plan_batches(config, context.world_size), config.seed)
    state = build_train_state(config, context, layout)[0]
    data = batches(context, size=32, channels=3)
    if whole:
        parts = [batches(ProcessContext(rank, rank, 2, 2, context.device), size=32, channels=3) for rank in (0, 1)]
        data = (
            Batch(*(torch.cat([getattr(one, name) for one in both]) for name in ("images", "targets")), 8)
            for both in zip(*parts, strict=True)
        )
    if context.device.type == "cuda":
        data = (Batch(batch.images.to(context.device), batch.targets.to(context.device), 8) for batch in data)
    train(state, context, STEPS, data)
    return {name: tensor.cpu() for name, tensor in weights(state).items()}


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("options", CASES.values(), ids=CASES)
def test_two_gpus_equal_one_with_the_whole_batch(ranks, options):
    one = ProcessContext(0, 0, 1, 1, torch.device("cuda:0"))
    alone = trained(one, options, whole=True)
    first, second = ranks(2, "0,1")(trained, [*options, "PARALLEL.SYNC_BN=true"])
    assert difference(first, second) == 0 and difference(first, alone) < 1e-4


@pytest.mark.parametrize("name, reason", [("test_vit", "no batch norms"), ("test_resnet", "no kernels for CPUs")])
def test_a_model_without_batch_norms_and_cpus_are_refused(name, reason, cpu):
    with pytest.raises(UserError, match=rf"^PARALLEL.SYNC_BN: .*{reason}"):
        synchronize_batch_norms(timm.create_model(name), cpu.device)
