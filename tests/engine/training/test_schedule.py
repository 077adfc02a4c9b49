"""Equality with the learning rates of PaddleViT and timm at every epoch; scaling; the warning about the batch size."""

import math

import pytest
import torch
from timm.scheduler import create_scheduler_v2

from configs.schema import Train
from engine.training.optimizer import build_schedule


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
    schedule = build_schedule(train, steps_per_epoch=7, images_per_step=64)
    for epoch in range(10):
        assert schedule.lr_at(7 * epoch) == pytest.approx(paddlevit_lr(epoch, train), rel=1e-12)
    rates = [schedule.lr_at(step) for step in range(70)]
    peak = rates.index(max(rates))
    assert rates[: peak + 1] == sorted(rates[: peak + 1]) and rates[peak:] == sorted(rates[peak:], reverse=True)


RATES = {"WARMUP_EPOCHS": 3, "BASE_LR": 3e-3, "WARMUP_START_LR": 1e-6}
DECAY = {"cosine": {}, "step": {"DECAY_EPOCHS": 4, "DECAY_RATE": 0.3}, "linear": {}, "wsd": {"DECAY_EPOCHS": 4}}


def train_options(name: str, **values) -> Train:
    return Train.model_validate({"NUM_EPOCHS": 20, **RATES, "LR_SCHEDULER": {"NAME": name, **DECAY[name]}, **values})


@pytest.mark.parametrize("prefix", [True, False])
@pytest.mark.parametrize("name", ["cosine", "linear", "step"])
def test_the_warmup_prefix_equals_timms(name, prefix):
    """timm's --epochs does not count the warm-up as a prefix; NUM_EPOCHS does."""
    end_lr = 0.0 if name == "step" else 1e-5
    train = train_options(name, END_LR=end_lr, LR_SCHEDULER={"NAME": name, **DECAY[name], "WARMUP_PREFIX": prefix})
    schedule = build_schedule(train, steps_per_epoch=7, images_per_step=64)
    timms, epochs = create_scheduler_v2(
        optimizer := torch.optim.SGD([torch.zeros(1)], lr=3e-3), sched="poly" if name == "linear" else name,
        num_epochs=20 - 3 * prefix, warmup_epochs=3, warmup_prefix=prefix, warmup_lr=1e-6, min_lr=end_lr,
        decay_epochs=4, decay_rate=0.3 if name == "step" else 1.0,
    )  # fmt: skip
    assert epochs == 20
    for epoch in range(20):
        timms.step(epoch)
        assert schedule.lr_at(7 * epoch) == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-12), epoch


@pytest.mark.parametrize("name", DECAY)
def test_schedules_reach_the_minimum(name):
    schedule = build_schedule(train_options(name, END_LR=1e-4), steps_per_epoch=7, images_per_step=64)
    rates = [schedule.lr_at(step) for step in range(21, 141)]
    assert rates[0] == 3e-3 and rates == sorted(rates, reverse=True) and rates[-1] == pytest.approx(1e-4)


@pytest.mark.parametrize(("key", "batch_size"), [("SQRT_SCALED_LR", 256), ("LINEAR_SCALED_LR", 512)])
def test_scaling_doubles_all_three_learning_rates(key, batch_size):
    train = Train.model_validate({key: batch_size, "END_LR": 1e-5, "BASE_LR_BATCH_SIZE": batch_size})
    plain = build_schedule(train.model_copy(update={key.lower(): None}), 10, 1024)
    scaled = build_schedule(train, 10, 1024)
    for step in (0, 100, 320, 1000, 2999):
        assert scaled.lr_at(step) == pytest.approx(2 * plain.lr_at(step))
