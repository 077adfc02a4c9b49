"""TFLOP/s and MFU are computed from images/s; MFU is unknown without a datasheet peak."""

import pytest
import torch

from configs.schema import Data
from engine.run.facts import Model
from engine.run.mfu.flops import describe_model
from utils.columns import three_digits
from utils.distributed import ProcessContext

DATA = Data(IMAGE_SIZE=8)


def classifier() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 8 * 8, 10))


PARAMETERS = 3 * 8 * 8 * 10 + 10
FLOPS = 2 * 2 * 3 * 8 * 8 * 10  # forward pass and weight gradient


def test_utilization_is_the_share_of_the_peak():
    model = Model(1, flops_per_image=int(105e9), peak_flops_per_second=989.4e12)
    assert model.tflops_per_second(3000) == pytest.approx(315)
    assert model.utilization(3000) == pytest.approx(315 / 989.4)
    assert model.rates(3000) == ["TFLOP/s: 315", "MFU: 31.8%"]


def test_a_cpu_has_no_mfu(cpu):
    model = describe_model(classifier(), DATA, torch.bfloat16, False, cpu)
    assert model == Model(PARAMETERS, FLOPS, None)
    assert model.tflops_per_second(1e9) == pytest.approx(FLOPS / 1e3) and model.utilization(1e9) is None
    assert model.rates(1e9) == ["TFLOP/s: 7.68"]


@pytest.mark.parametrize(("name", "peak"), [("NVIDIA H200", 4 * 989.4e12), ("NVIDIA H300", None)])
def test_peak_is_the_sum_over_all_gpus(monkeypatch, name, peak):
    monkeypatch.setattr("torch.cuda.get_device_name", lambda device: name)
    context = ProcessContext(1, 1, 4, 4, torch.device("cuda", 1))
    model = describe_model(classifier(), DATA, torch.bfloat16, False, context)
    assert model == Model(PARAMETERS, FLOPS, peak)


def test_model_without_flop_count_has_no_rates(cpu):
    class ReadsValues(torch.nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return images * images.sum().item()

    model = describe_model(ReadsValues(), DATA, torch.float32, False, cpu)
    assert model == Model(0, None, None) and model.utilization(10) is None and model.rates(10) == []
    assert "cannot be counted" in str(model)


def test_three_digits():
    assert [three_digits(value) for value in (0.0012345, 9.876, 999.4, 12345.6)] == ["0.00123", "9.88", "999", "12346"]
