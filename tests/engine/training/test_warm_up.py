"""The passes before the first step: the one that finds the attention kernels, and DDP's warm-up."""

import torch
from conftest import GREY, TINY_VIT

from configs.batch_plan import BatchPlan
from configs.reading.command_line import parse_command_line
from engine.checkpoint.epoch_layout import EpochLayout
from engine.parallel.strategy import DDP
from engine.training.build import build_train_state
from engine.training.step import TrainState
from utils.distributed import ProcessContext


def build(context: ProcessContext) -> TrainState:
    """With fused attention, whose kernels a pass finds, and autocast."""
    options = ["MODEL.ATTENTION=fused", "AMP.ENABLED=true", "AMP.DTYPE=bfloat16"]
    config = parse_command_line(["-opts", *TINY_VIT, *GREY, *options]).config
    return build_train_state(config, context, EpochLayout(100, BatchPlan(4), config.seed))[0]


def test_the_warm_up_reuses_no_cast_of_the_pass_without_gradients(monkeypatch, cpu):
    """Autocast keeps its casts until the outermost context ends; casts of torch 2.10 may have no gradients."""
    events, clear = [], torch.clear_autocast_cache
    monkeypatch.setattr(torch, "clear_autocast_cache", lambda: (events.append("clear"), clear()))
    monkeypatch.setattr("engine.parallel.strategy.Single.wrap", lambda self, model, images: events.append("warm-up"))
    monkeypatch.setattr("engine.training.build.attention_notes", lambda *_: events.append("no gradients") or [])
    build(cpu)
    assert events == ["no gradients", "clear", "warm-up", "clear"]


def test_ddp_starts_with_fused_attention_under_autocast(group_of_one, monkeypatch):
    """Under torch 2.10 DDP would wait for gradients that never come."""
    monkeypatch.setattr("engine.training.build.build_strategy", lambda options, context: DDP(context.device, options))
    state = build(group_of_one)
    images = torch.zeros(2, 1, 8, 8, device=group_of_one.device)
    with state.precision.autocast():
        state.wrapped(images).sum().backward()
    assert all(parameter.grad is not None for parameter in state.wrapped.parameters())
