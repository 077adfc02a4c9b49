"""Datasheet peaks are found by the exact device names that torch reports."""

import pytest
import torch

from engine.run.mfu.device_peaks import PEAKS, peak_flops_per_second

FP32, FP16, BF16 = torch.float32, torch.float16, torch.bfloat16


@pytest.mark.parametrize(
    ("name", "dtype", "tf32", "tflops"),
    [
        ("NVIDIA A100-SXM4-80GB", BF16, False, 312),
        ("A100-PCIE-40GB", BF16, False, 312),
        ("NVIDIA H100 80GB HBM3", BF16, False, 989.4),
        ("NVIDIA H200 NVL", BF16, False, 835.5),
        ("NVIDIA RTX 6000 Ada Generation", BF16, False, 364.2),
        ("NVIDIA GeForce RTX 4070 Ti SUPER", FP16, False, 88.2),
        ("NVIDIA A100-SXM4-80GB", FP32, False, 19.5),
        ("NVIDIA A100-SXM4-80GB", FP32, True, 156),
        ("NVIDIA GeForce RTX 3090", FP32, True, 35.6),
        ("Tesla T4", FP16, True, 65),
        ("Tesla T4", FP32, True, 8.1),  # no TF32: it computes in float32
        ("Tesla T4", BF16, False, None),  # no bfloat16 tensor cores
        ("Tesla V100-SXM2-16GB", FP16, False, 125),
    ],
)
def test_peak_by_device_name_and_dtype(name, dtype, tf32, tflops):
    assert peak_flops_per_second(name, dtype, tf32) == (tflops and pytest.approx(1e12 * tflops))


SIMILAR = (
    "NVIDIA GeForce RTX 3080 Laptop GPU", "NVIDIA GeForce RTX 4090 D", "NVIDIA A10-24Q", "NVIDIA H100 80GB HBM2e",
    "NVIDIA A100-SXM4-40GB MIG 1g.5gb", "NVIDIA L40", "Tesla V100-SXM3-32GB", "AMD Instinct MI300X",
)  # fmt: skip


def test_similar_devices_have_no_peak():
    assert not any(peak_flops_per_second(name, FP16, True) for name in SIMILAR)


def test_peaks_increase_from_fp32_to_fp16():
    for name, peaks in PEAKS.items():
        tflops = [value for value in (peaks.fp32, peaks.tf32, peaks.fp16) if value]
        assert tflops == sorted(tflops), name
        assert peaks.bf16 in (None, peaks.fp16), name
