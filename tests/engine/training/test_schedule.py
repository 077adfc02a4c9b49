"""Equality with PaddleViT's learning rate at every epoch; linear scaling; the warning about the batch size."""

import math

import pytest

from configs.command_line import parse_command_line
from configs.schema import Train
from engine.training.schedule import build_schedule, lr_warning
from utils.errors import UserError


def paddlevit_lr(epoch: int, train: Train) -> float:
    """PaddleViT's LinearWarmup over CosineAnnealingDecay, once per epoch."""
    if epoch < train.warmup_epochs:
        return train.warmup_start_lr + (train.base_lr - train.warmup_start_lr) * epoch / train.warmup_epochs
    share = (epoch - train.warmup_epochs) / (train.num_epochs - train.warmup_epochs)
    return train.end_lr + (train.base_lr - train.end_lr) * (1 + math.cos(math.pi * share)) / 2


@pytest.mark.parametrize("warmup", [0, 3, 10])
def test_schedule_equals_paddlevit_at_every_epoch(warmup):
    values = {"NUM_EPOCHS": 10, "WARMUP_EPOCHS": warmup, "BASE_LR": 3e-3, "WARMUP_START_LR": 1e-6, "END_LR": 1e-5}
    train = Train.model_validate(values)
    schedule = build_schedule(train, steps_per_epoch=7, global_batch_size=64)
    for epoch in range(10):
        assert schedule.lr_at(7 * epoch) == pytest.approx(paddlevit_lr(epoch, train), rel=1e-12)
    rates = [schedule.lr_at(step) for step in range(70)]
    peak = rates.index(max(rates))
    assert rates[: peak + 1] == sorted(rates[: peak + 1]) and rates[peak:] == sorted(rates[peak:], reverse=True)


def test_restarted_schedule_warms_up_and_ends_with_the_run():
    values = {"NUM_EPOCHS": 10, "WARMUP_EPOCHS": 1, "BASE_LR": 2e-4, "WARMUP_START_LR": 0.0, "END_LR": 1e-6}
    schedule = build_schedule(Train.model_validate(values), steps_per_epoch=8, global_batch_size=64)
    schedule.restart(40)
    assert [schedule.lr_at(step) for step in (40, 44, 48, 80)] == pytest.approx([0.0, 1e-4, 2e-4, 1e-6])
    rates = [schedule.lr_at(step) for step in range(48, 81)]
    assert rates == sorted(rates, reverse=True)
    with pytest.raises(UserError, match=r"8 steps are left, but the warm-up takes 8; raise -epochs or lower"):
        schedule.restart(72)


def test_linear_scaled_lr_scales_all_three_learning_rates():
    train = Train.model_validate({"LINEAR_SCALED_LR": 512, "END_LR": 1e-5})
    plain = build_schedule(train.model_copy(update={"linear_scaled_lr": None}), 10, 1024)
    scaled = build_schedule(train, 10, 1024)
    for step in (0, 100, 320, 1000, 2999):
        assert scaled.lr_at(step) == pytest.approx(2 * plain.lr_at(step))


def test_warning_about_a_learning_rate_for_another_batch_size():
    train = Train.model_validate({"BASE_LR": 3e-3, "BASE_LR_BATCH_SIZE": 4096})
    expected = "BASE_LR 0.003 is tuned for a global batch of 4096; this run has 64: set TRAIN.LINEAR_SCALED_LR=4096"
    assert lr_warning(train, 64) == expected
    assert lr_warning(train, 4096) is None
    assert lr_warning(train.model_copy(update={"linear_scaled_lr": 4096}), 64) is None
    assert lr_warning(train.model_copy(update={"base_lr_batch_size": None}), 64) is None


def test_the_imagenet_recipes_warn():
    config = parse_command_line(["-cfg=configs/vit_base_patch16_224.yaml"]).config
    assert "global batch of 4096; this run has 64" in lr_warning(config.train, 64)
