"""Schedule, parameter groups, precision, metrics: against closed forms, PaddleViT's rules and torch."""

import math

import pytest
import timm
import torch
from torch import nn

from configs.schema import Amp, Train
from engine.parallel.strategy import Single
from engine.precision.policy import Precision
from engine.training.optimizer import build_optimizer, set_lr
from engine.training.schedule import build_schedule
from utils.errors import UserError
from utils.metrics import MetricSums, to_metrics


def paddlevit_lr(epoch: int, train: Train) -> float:
    """PaddleViT's LinearWarmup over CosineAnnealingDecay, once per epoch."""
    if epoch < train.warmup_epochs:
        return train.warmup_start_lr + (train.base_lr - train.warmup_start_lr) * epoch / train.warmup_epochs
    share = (epoch - train.warmup_epochs) / (train.num_epochs - train.warmup_epochs)
    return train.end_lr + (train.base_lr - train.end_lr) * (1 + math.cos(math.pi * share)) / 2


@pytest.mark.parametrize("warmup", [0, 3, 10])
def test_schedule_equals_paddlevits_at_every_epoch(warmup):
    values = {"NUM_EPOCHS": 10, "WARMUP_EPOCHS": warmup, "BASE_LR": 3e-3, "WARMUP_START_LR": 1e-6, "END_LR": 1e-5}
    train = Train.model_validate(values)
    schedule = build_schedule(train, steps_per_epoch=7, global_batch_size=64)
    for epoch in range(10):
        assert schedule.lr_at(7 * epoch) == pytest.approx(paddlevit_lr(epoch, train), rel=1e-12)
    rates = [schedule.lr_at(step) for step in range(70)]
    top = rates.index(max(rates))
    assert rates[: top + 1] == sorted(rates[: top + 1]) and rates[top:] == sorted(rates[top:], reverse=True)


def test_linear_scaled_lr_scales_all_three_rates():
    train = Train.model_validate({"LINEAR_SCALED_LR": 512, "END_LR": 1e-5})
    plain = build_schedule(train.model_copy(update={"linear_scaled_lr": None}), 10, 1024)
    scaled = build_schedule(train, 10, 1024)
    for step in (0, 100, 320, 1000, 2999):
        assert scaled.lr_at(step) == pytest.approx(2 * plain.lr_at(step))


def test_no_decay_on_biases_norms_and_tokens():
    model = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=2)
    optimizer = build_optimizer(model, Train())
    decayed = {id(p) for group in optimizer.param_groups if group["weight_decay"] for p in group["params"]}
    for name, parameter in model.named_parameters():
        spared = parameter.ndim <= 1 or name in ("cls_token", "pos_embed")
        assert (id(parameter) in decayed) != spared, name
    assert optimizer.defaults["fused"]


def test_layer_decay_scales_the_rate():
    model = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=2)
    optimizer = build_optimizer(model, Train.model_validate({"LAYER_DECAY": 0.5}))
    set_lr(optimizer, 1.0)
    assert sorted({group["lr"] for group in optimizer.param_groups}) == [0.125, 0.25, 0.5, 1.0]


@pytest.mark.parametrize("name", ["AdamW", "SGD", "Adam", "lamb"])
def test_optimizers_by_name(name):
    model = nn.Linear(3, 2)
    train = Train.model_validate({"OPTIMIZER": {"NAME": name, "BETAS": (0.8, 0.9), "MOMENTUM": 0.5}})
    optimizer = build_optimizer(model, train)
    if name == "SGD":
        assert optimizer.param_groups[0]["momentum"] == 0.5
    else:
        assert tuple(optimizer.param_groups[0]["betas"]) == (0.8, 0.9)


def test_unknown_optimizer_names_its_neighbour():
    with pytest.raises(UserError, match=r"unknown optimizer AdamX; did you mean adam"):
        build_optimizer(nn.Linear(2, 2), Train.model_validate({"OPTIMIZER": {"NAME": "AdamX"}}))


def test_fp16_overflow_backs_off_and_recovers():
    device = torch.device("cpu")
    precision = Precision(Amp.model_validate({"ENABLED": True, "DTYPE": "float16"}), device)
    model = nn.Linear(64, 4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    images = torch.full((8, 64), 3.0)
    for _ in range(16):
        with precision.autocast():
            logits = model(images)
        precision.scaler.scale(logits.float().square().sum()).backward()
        precision.scaler.step(optimizer)
        precision.scaler.update()
        optimizer.zero_grad()
    skipped = int(precision.scaler.skipped)
    assert 0 < skipped < 16
    assert precision.scaler.get_scale() == 2.0 ** (16 - skipped)
    assert all(parameter.isfinite().all() for parameter in model.parameters())


def test_loaded_moments_leave_the_options_as_they_are():
    def optimizer(weight_decay: float) -> torch.optim.Optimizer:
        return build_optimizer(nn.Linear(3, 2), Train.model_validate({"WEIGHT_DECAY": weight_decay}))

    old, new = optimizer(0.1), optimizer(0.5)
    for group in old.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.ones_like(parameter)
    old.step()
    Single().load_optimizer_state(new, old.state_dict())
    assert {group["weight_decay"] for group in new.param_groups} == {0.0, 0.5}
    assert all(
        torch.equal(a["exp_avg"], b["exp_avg"]) for a, b in zip(*(o.state.values() for o in (old, new)), strict=True)
    )


@pytest.mark.parametrize(
    ("options", "dtype"),
    [({}, torch.float32), ({"ENABLED": True}, torch.bfloat16), ({"ENABLED": True, "DTYPE": "float16"}, torch.float16)],
)
def test_autocast_dtype_on_a_cpu(options, dtype):
    precision = Precision(Amp.model_validate(options), torch.device("cpu"))
    with precision.autocast():
        assert nn.Linear(4, 4)(torch.ones(1, 4)).dtype == dtype
    assert ("100 times slower" in precision.describe()) == (dtype == torch.float16)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_autocast_dtype_on_a_gpu_is_fp16_with_scaling():
    precision = Precision(Amp.model_validate({"ENABLED": True}), torch.device("cuda"))
    assert precision.dtype == torch.float16 and precision.scaler.get_scale() == 2.0**16


def test_metric_sums_count_each_sample_once(cpu):
    torch.manual_seed(0)
    logits, targets = torch.randn(23, 7), torch.randint(0, 7, (23,))
    sums = MetricSums(cpu.device)
    for start in range(0, 24, 6):
        batch, labels = logits[start : start + 6], targets[start : start + 6]
        padding = 6 - len(batch)
        batch, labels = torch.cat([batch, torch.zeros(padding, 7)]), torch.cat([labels, torch.full((padding,), -1)])
        loss = nn.functional.cross_entropy(batch, labels, reduction="sum", ignore_index=-1)
        sums.add(loss, batch, labels)
    metrics = to_metrics(sums.reduced(cpu))
    top1, top5 = timm.utils.accuracy(logits, targets, topk=(1, 5))
    assert (metrics.top1, metrics.top5) == (pytest.approx(top1.item()), pytest.approx(top5.item()))
    assert metrics.loss == pytest.approx(nn.functional.cross_entropy(logits, targets).item(), abs=1e-6)
    assert metrics.samples == 23


def test_fewer_than_five_classes(cpu):
    sums = MetricSums(cpu.device)
    sums.add(torch.tensor(0.0), torch.eye(3), torch.tensor([0, 1, 0]))
    assert to_metrics(sums.reduced(cpu)).top1 == pytest.approx(200 / 3)
    assert to_metrics(sums.reduced(cpu)).top5 == 100
