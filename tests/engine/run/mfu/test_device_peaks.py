"""Datasheet peaks are found by the exact device names that torch reports."""

import pytest
import torch

from engine.run.mfu.device_peaks import PEAKS, peak_flops_per_second

FP32, FP16, BF16 = torch.float32, torch.float16, torch.bfloat16


@pytest.mark.parametrize(
    ("name", "tflops"),
    [
        ("NVIDIA A100-SXM4-40GB", 312),
        ("NVIDIA A100-SXM4-80GB", 312),
        ("NVIDIA A100-PCIE-40GB", 312),
        ("A100-PCIE-40GB", 312),
        ("NVIDIA A100 80GB PCIe", 312),
        ("NVIDIA A10", 125),
        ("NVIDIA A30", 165),
        ("NVIDIA A40", 149.7),
        ("NVIDIA L4", 121),
        ("NVIDIA L40S", 362),
        ("NVIDIA H100 80GB HBM3", 989.4),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA H100 NVL", 835),
        ("NVIDIA H200", 989.4),
        ("NVIDIA H200 NVL", 835.5),
        ("NVIDIA GH200 480GB", 989.4),
        ("NVIDIA B200", 2250),
        ("NVIDIA RTX A6000", 154.8),
        ("NVIDIA RTX 6000 Ada Generation", 364.2),
        ("NVIDIA GeForce RTX 3060", 25.4),
        ("NVIDIA GeForce RTX 3080", 59.6),
        ("NVIDIA GeForce RTX 3080 Ti", 68.2),
        ("NVIDIA GeForce RTX 3090", 71.2),
        ("NVIDIA GeForce RTX 4070 Ti SUPER", 88.2),
        ("NVIDIA GeForce RTX 4090", 165.2),
        ("NVIDIA GeForce RTX 5090", 209.6),
    ],
)
def test_bfloat16_peak_by_device_name(name, tflops):
    assert peak_flops_per_second(name, BF16, False) == pytest.approx(1e12 * tflops)
    assert peak_flops_per_second(name, FP16, False) == pytest.approx(1e12 * tflops)


@pytest.mark.parametrize(
    ("name", "dtype", "tf32", "tflops"),
    [
        ("NVIDIA A100-SXM4-80GB", FP32, False, 19.5),
        ("NVIDIA A100-SXM4-80GB", FP32, True, 156),
        ("NVIDIA H200", FP32, True, 494.7),
        ("NVIDIA GeForce RTX 3090", FP32, True, 35.6),
        ("Tesla T4", FP16, True, 65),
        ("Tesla T4", FP32, True, 8.1),  # no TF32: it computes in float32
        ("Tesla V100-SXM2-16GB", FP16, False, 125),
        ("Tesla V100-SXM2-32GB", FP32, True, 15.7),
        ("Tesla V100-PCIE-16GB", FP16, False, 112),
    ],
)
def test_peak_by_dtype(name, dtype, tf32, tflops):
    assert peak_flops_per_second(name, dtype, tf32) == 1e12 * tflops


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA GeForce RTX 3080 Laptop GPU",
        "NVIDIA GeForce RTX 4090 D",
        "NVIDIA A10G",
        "NVIDIA A10-24Q",
        "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
        "NVIDIA A100-SXM-64GB",
        "NVIDIA H100 80GB HBM2e",
        "NVIDIA H20",
        "NVIDIA L40",
        "NVIDIA GB200",
        "Tesla V100-SXM3-32GB",
        "Tesla P100-PCIE-16GB",
        "AMD Instinct MI300X",
    ],
)
def test_similar_devices_have_no_peak(name):
    assert peak_flops_per_second(name, FP16, True) is None


@pytest.mark.parametrize("name", ["Tesla T4", "Tesla V100-SXM2-16GB"])
def test_no_bfloat16_peak_without_bfloat16_tensor_cores(name):
    assert peak_flops_per_second(name, BF16, False) is None


def test_peaks_increase_from_fp32_to_fp16():
    for name, peaks in PEAKS.items():
        tflops = [value for value in (peaks.fp32, peaks.tf32, peaks.fp16) if value]
        assert tflops == sorted(tflops), name
        assert peaks.bf16 in (None, peaks.fp16), name
