"""Overflows of float16 on a GPU, and in training."""

import math

import pytest
import torch
from conftest import train
from torch import nn

from configs.schema import Amp
from engine.checkpoint.reader import load_checkpoint
from engine.precision.loss_scaler import LossScaler


@pytest.mark.gpu
def test_gpu_reports_skipped_steps_two_steps_late():
    scaler = LossScaler(torch.device("cuda"), Amp(MAX_SKIPPED_STEPS=2))
    model = nn.Linear(1, 1, device="cuda")
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    results = []
    for _ in range(6):
        scaler.scale(model(torch.full((1, 1), math.inf, device="cuda")).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        results.append(scaler.skipped_too_often())
    assert results == [False, False, False, True, True, True]


def test_real_overflows_lower_the_scale_until_it_fits(digits_argv, any_device):
    argv = ["-amp", "-amp_dtype=float16", *digits_argv, "AMP.INIT_LOSS_SCALING=1e12", "TRAIN.MAX_STEPS=30"]
    state = load_checkpoint(train(argv, any_device) / "last.pth")
    scaler = state["precision"]["scaler"]
    skipped, consecutive = scaler["counts"]
    assert 0 < skipped < 30 and consecutive == 0 and scaler["scale"] == pytest.approx(1e12 / 2**skipped)
    assert all(value.isfinite().all() for value in state["model"].values())
    assert state["model"]["head.weight"].any()  # zeros before the first applied step
