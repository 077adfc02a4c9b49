"""TFLOP/s and MFU are computed from images/s; MFU is unknown without a datasheet peak."""

import pytest
import torch

from configs.schema import Data
from engine.run.mfu.meter import MFUMeter, build_mfu_meter, format_rates
from utils.columns import three_digits
from utils.distributed import ProcessContext

DATA = Data(IMAGE_SIZE=8)


def classifier() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 8 * 8, 10))


FLOPS = 2 * 2 * 3 * 8 * 8 * 10  # forward pass and weight gradient


def test_utilization_is_the_share_of_the_peak():
    meter = MFUMeter(flops_per_image=int(105e9), peak_flops_per_second=989.4e12)
    assert meter.tflops_per_second(3000) == pytest.approx(315)
    assert meter.utilization(3000) == pytest.approx(315 / 989.4)
    assert str(meter) == "105 GFLOP per training image; datasheet peak: 989 TFLOP/s"


def test_a_cpu_has_no_mfu(cpu):
    meter = build_mfu_meter(classifier(), DATA, torch.bfloat16, False, cpu)
    assert meter == MFUMeter(FLOPS, None)
    assert meter.tflops_per_second(1e9) == pytest.approx(FLOPS / 1e3) and meter.utilization(1e9) is None
    assert "no MFU" in str(meter)


@pytest.mark.parametrize(("name", "peak"), [("NVIDIA H200", 4 * 989.4e12), ("NVIDIA H300", None)])
def test_peak_is_the_sum_over_all_gpus(monkeypatch, name, peak):
    monkeypatch.setattr("torch.cuda.get_device_name", lambda device: name)
    context = ProcessContext(1, 1, 4, 4, torch.device("cuda", 1))
    assert build_mfu_meter(classifier(), DATA, torch.bfloat16, False, context) == MFUMeter(FLOPS, peak)


def test_model_without_flop_count_has_no_rates(cpu):
    class ReadsValues(torch.nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return images * images.sum().item()

    meter = build_mfu_meter(ReadsValues(), DATA, torch.float32, False, cpu)
    assert meter.flops_per_image is None and meter.tflops_per_second(10) is None and meter.utilization(10) is None
    assert str(meter).startswith("the FLOPs of this model cannot be counted")


def test_unknown_rates_are_omitted():
    assert format_rates(307.2, 0.3105) == ["TFLOP/s: 307", "MFU: 31.1%"]
    assert format_rates(0.314, None) == ["TFLOP/s: 0.314"]
    assert format_rates(None, None) == []


def test_three_digits():
    assert [three_digits(value) for value in (0.0012345, 9.876, 999.4, 12345.6)] == ["0.00123", "9.88", "999", "12346"]
