"""Corrected weight decay, lr ** 2 / max_lr, with scaled learning rates: 8 steps against timm's train.py."""

import math

import pytest
import timm
import torch
from timm.optim import create_optimizer_v2
from timm.scheduler import create_scheduler_v2
from torch import nn

from configs.batch_plan import BatchPlan
from configs.reading.command_line import parse_command_line
from engine.checkpoint.epoch_layout import EpochLayout
from engine.training.build import build_train_state
from engine.training.optimization.optimizer import set_lr
from engine.training.step import TrainState
from models.timm_model import classifiers

STEPS, BATCH, TUNED_FOR, BASE_LR, DECAY, HEAD_SCALE = 8, 64, 8, 0.003, 0.3, 10.0
FACTORS = {"LINEAR": BATCH / TUNED_FOR, "SQRT": math.sqrt(BATCH / TUNED_FOR)}
OPTIMIZERS = {"adamc": {}, "sgdc": {}, "lamb": {"corrected_weight_decay": True}}


def our_state(name: str, cpu, *options: str, batch: int = BATCH) -> TrainState:
    """With a warm-up of 4 of the 8 steps."""
    config = parse_command_line(
        ["-opts", "MODEL.TYPE=timm", "MODEL.NAME=vit_tiny_patch16_224", "MODEL.NUM_CLASSES=3", "DATA.IMAGE_SIZE=32",
         "MODEL.KWARGS={depth: 2, embed_dim: 12}", f"TRAIN.OPTIMIZER.NAME={name}", f"TRAIN.BASE_LR={BASE_LR}",
         f"TRAIN.OPTIMIZER.KWARGS={OPTIMIZERS[name]}", f"TRAIN.WEIGHT_DECAY={DECAY}", "TRAIN.NUM_EPOCHS=2",
         "TRAIN.WARMUP_EPOCHS=1", "TRAIN.WARMUP_START_LR=0", "TRAIN.END_LR=0",
         "TRAIN.LR_SCHEDULER.WARMUP_PREFIX=false", *options]
    ).config  # fmt: skip
    return build_train_state(config, cpu, EpochLayout(4 * batch, BatchPlan(batch), config.seed))[0]


def timm_rate_and_optimizer(name: str, model: nn.Module, factor: float, layer_decay: float | None, head_scale: float):
    """As train.py builds them with --lr-base: the optimizer has the scaled rate before the schedule changes it."""
    optimizer = create_optimizer_v2(
        model, name, BASE_LR * factor, DECAY, momentum=0.9, layer_decay=layer_decay, **OPTIMIZERS[name]
    )
    head = {parameter for module in classifiers(model) for parameter in module.parameters()}
    optimizer.param_groups[:] = [
        group | {"params": [one], "lr_scale": group.get("lr_scale", 1) * (head_scale if one in head else 1)}
        for group in optimizer.param_groups
        for one in group["params"]
    ]
    scheduler, _ = create_scheduler_v2(
        optimizer, "cosine", 2, warmup_epochs=1, warmup_lr=0, updates_per_epoch=4, step_on_epochs=False
    )
    return optimizer, scheduler


def step_on_noise(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    generator = torch.Generator().manual_seed(step)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    optimizer.step()


@pytest.mark.parametrize(("layer_decay", "head_scale"), [(None, 1.0), (0.7, HEAD_SCALE)])
@pytest.mark.parametrize("rule", FACTORS)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_eight_steps_equal_timms(name, rule, layer_decay, head_scale, cpu):
    decays = f"TRAIN.LAYER_DECAY={'null' if layer_decay is None else layer_decay}", f"TRAIN.HEAD_LR_SCALE={head_scale}"
    state = our_state(name, cpu, f"TRAIN.{rule}_SCALED_LR={TUNED_FOR}", *decays)
    ours = state.precision.weights.master
    model = timm.create_model("vit_tiny_patch16_224", img_size=32, num_classes=3, depth=2, embed_dim=12)
    model.load_state_dict(ours.state_dict())
    optimizer, scheduler = timm_rate_and_optimizer(name, model, FACTORS[rule], layer_decay, head_scale)
    for step in range(STEPS):
        set_lr(state.optimizer, state.schedule.lr_at(step))
        scheduler.step_update(step)
        step_on_noise(ours, state.optimizer, step)
        step_on_noise(model, optimizer, step)
    for (key, found), expected in zip(ours.named_parameters(), model.parameters(), strict=True):
        assert (found - expected).norm() <= 1e-6 * expected.norm(), key


def test_a_resume_with_another_global_batch_has_the_rate_of_this_run(cpu):
    old, new = (our_state("adamc", cpu, f"TRAIN.LINEAR_SCALED_LR={TUNED_FOR}", batch=size) for size in (BATCH, 16))
    step_on_noise(old.precision.weights.master, old.optimizer, 0)
    new.strategy.load_optimizer_state(new.optimizer, old.optimizer.state_dict())
    assert {group["max_lr_snapshot"] for group in new.optimizer.param_groups} == {new.schedule.peak_lr}
