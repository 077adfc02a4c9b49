"""Model FLOPs utilization (MFU): the model FLOP/s of a run / the datasheet peak of its devices.

Chowdhery et al., "PaLM: Scaling Language Modeling with Pathways" (2022), appendix B. Its model is the one in training:
the forward pass of a teacher (TRAIN.DISTILLATION_TYPE) takes time, but its FLOPs do not count.
"""

from dataclasses import dataclass

import torch
from torch import nn

from configs.schema import Data
from engine.run.facts import describe_flops
from engine.run.mfu.device_peaks import peak_flops_per_second
from engine.run.mfu.flops import training_flops
from utils.columns import three_digits
from utils.distributed import ProcessContext


@dataclass(frozen=True)
class MFUMeter:
    """Converts images/s over all devices to TFLOP/s and MFU.

    flops_per_image: of a training step; None if it cannot be counted. peak_flops_per_second: datasheet peak of all
    devices together; None for CPUs and unknown GPUs.
    """

    flops_per_image: int | None
    peak_flops_per_second: float | None

    def __str__(self) -> str:
        return describe_flops(self.flops_per_image, self.peak_flops_per_second)

    def tflops_per_second(self, images_per_second: float) -> float | None:
        return None if self.flops_per_image is None else images_per_second * self.flops_per_image / 1e12

    def utilization(self, images_per_second: float) -> float | None:
        """MFU, 0 to 1."""
        if self.flops_per_image is None or self.peak_flops_per_second is None:
            return None
        return images_per_second * self.flops_per_image / self.peak_flops_per_second


def build_mfu_meter(model: nn.Module, data: Data, dtype: torch.dtype, tf32: bool, context: ProcessContext) -> MFUMeter:
    """Counts the FLOPs of the model, and looks up the peak of the device.

    Args:
        dtype: of the matrix products. tf32: whether those in float32 may use TF32.
    """
    try:
        flops = training_flops(model, data)
    except Exception:  # a model may do anything that tensors without memory do not support
        flops = None
    peak = None
    if context.device.type == "cuda":
        peak = peak_flops_per_second(torch.cuda.get_device_name(context.device), dtype, tf32)
    return MFUMeter(flops, peak and peak * context.world_size)


def format_rates(tflops_per_second: float | None, utilization: float | None) -> list[str]:
    """['TFLOP/s: 307', 'MFU: 31.0%'], without the rates that are None."""
    rates = [] if tflops_per_second is None else [f"TFLOP/s: {three_digits(tflops_per_second)}"]
    return rates if utilization is None else [*rates, f"MFU: {utilization:.1%}"]
