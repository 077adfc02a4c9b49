"""Precision: autocast dtypes, overflow in float16, and one step from gradients to weights."""

import math

import pytest
import torch
from torch import nn

from configs.schema import Amp
from engine.precision.policy import Precision
from engine.training.optimization.weight_average import WeightAverage

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("options", "dtype"),
    [({}, torch.float32), ({"ENABLED": True}, torch.bfloat16), ({"ENABLED": True, "DTYPE": "float16"}, torch.float16)],
)
def test_autocast_dtype_on_a_cpu(options, dtype):
    precision = Precision(Amp.model_validate(options), torch.device("cpu"))
    with precision.autocast():
        assert nn.Linear(4, 4)(torch.ones(1, 4)).dtype == dtype
    assert ("100 times slower" in precision.describe()) == (dtype == torch.float16)


@pytest.mark.gpu
def test_autocast_on_a_gpu_is_fp16_with_loss_scaling():
    precision = Precision(Amp.model_validate({"ENABLED": True}), torch.device("cuda"))
    assert precision.dtype == torch.float16 and precision.scaler.get_scale() == 2.0**16


@pytest.mark.parametrize("max_norm", [None, 0.1])
@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize(
    "options", [{}, {"ENABLED": True, "DTYPE": "float16", "INIT_LOSS_SCALING": 8.0}, {"ENABLED": True, "LEVEL": "O2"}]
)
def test_step_returns_the_gradient_norm_before_clipping(options, fused, max_norm):
    precision = Precision(Amp.model_validate(options), CPU)
    torch.manual_seed(0)
    model = nn.Linear(8, 4)
    compute = precision.attach(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=fused)
    images = torch.randn(3, 8)
    with precision.autocast():
        loss = compute(images).float().square().sum()
    precision.scaler.scale(loss).backward()
    expected = torch.cat([parameter.grad.float().flatten() for parameter in compute.parameters()]).norm()
    norm = precision.step(optimizer, max_norm, seed=0)
    assert norm.item() == pytest.approx(expected.item() / precision.scaler.get_scale(), rel=1e-5)
    assert all(parameter.grad is None for parameter in (*model.parameters(), *compute.parameters()))


def test_skipped_step_keeps_the_weights_and_their_average(any_device):
    precision = Precision(Amp(), any_device.device)
    torch.manual_seed(0)
    model = precision.attach(nn.Linear(4, 2).to(any_device.device))
    average = WeightAverage(model, decay=0.5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
    for images, applied in ((torch.ones(1, 4), True), (torch.full((1, 4), math.nan), False), (torch.ones(1, 4), True)):
        before = [value.clone() for value in (model.weight, average.module.weight)]
        precision.scaler.scale(model(images.to(any_device.device)).sum()).backward()
        precision.step(optimizer, None, 0, average)
        after = model.weight, average.module.weight
        assert [not torch.equal(*pair) for pair in zip(before, after, strict=True)] == [applied, applied]
        expected = 0.5 * before[1] + 0.5 * model.weight if applied else before[1]
        assert torch.allclose(average.module.weight, expected, atol=1e-7)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("emulates", [True, False])
def test_bf16_that_the_gpu_emulates_is_named(monkeypatch, emulates, dtype):
    """V100 and T4 compute bfloat16 in fp32."""
    monkeypatch.setattr(
        torch.cuda, "is_bf16_supported", lambda including_emulation: including_emulation or not emulates
    )
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    precision = Precision(Amp.model_validate({"ENABLED": True, "DTYPE": dtype}), CPU)
    precision.device = torch.device("cuda")
    assert ("-amp_dtype=float16" in precision.describe()) == (emulates and dtype == "bfloat16")


@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("capability", [(6, 1), (7, 0)])
def test_half_precision_without_tensor_cores_is_named(monkeypatch, enabled, capability):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    precision = Precision(Amp.model_validate({"ENABLED": enabled, "DTYPE": "float16"}), CPU)
    precision.device = torch.device("cuda")
    assert ("tensor cores" in precision.describe()) == (enabled and capability < (7, 0))
