"""How much of the device a run uses: the floating-point operations of its model over what the device can do.

A multiply-add counts as two. Only matrix products and convolutions count, as in the field's figures; what is computed a
second time to save memory does not, nor is anything taken off for what stochastic depth leaves out: the model FLOPs
utilization of Chowdhery et al., "PaLM: Scaling Language Modeling with Pathways" (2022).
"""

import copy
import os
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode, conv_flop_count

from configs.schema import Config
from engine.precision.policy import Precision
from utils.cache import found_once
from utils.device import device_name, timed
from utils.distributed import ProcessContext, broadcast_object

_SIZES = (256, 512, 1024, 2048, 4096, 8192)
_LONG_SECONDS = 0.03  # of one product, after which no larger ones are tried
_TRIALS, _TRIAL_SECONDS = 50, 0.1  # of each size, at most


@dataclass(frozen=True)
class MFUMeter:
    """Turns images per second into FLOP/s and their share of the peak; without a count of the FLOPs into None.

    `flops_per_image` is of a training step, `peak_flops_per_second` of all devices together.
    """

    flops_per_image: int | None
    peak_flops_per_second: float

    def __str__(self) -> str:
        work = "FLOPs of this model cannot be counted"
        if self.flops_per_image is not None:
            work = f"{three_digits(self.flops_per_image / 1e9)} GFLOP per training image"
        return f"{work}; measured peak: {three_digits(self.peak_flops_per_second / 1e12)} TFLOP/s"

    def tflops_per_second(self, images_per_second: float) -> float | None:
        return None if self.flops_per_image is None else images_per_second * self.flops_per_image / 1e12

    def utilization(self, images_per_second: float) -> float | None:
        tflops = self.tflops_per_second(images_per_second)
        return None if tflops is None else 1e12 * tflops / self.peak_flops_per_second

    def describe(self, images_per_second: float) -> str:
        """'TFLOP/s: 307 (38.9% of peak)', or nothing."""
        tflops, share = self.tflops_per_second(images_per_second), self.utilization(images_per_second)
        return "" if tflops is None else f"TFLOP/s: {three_digits(tflops)} ({three_digits(100 * share)}% of peak)"


def three_digits(value: float) -> str:
    """Without an exponent where it is large."""
    return f"{value:.3g}" if value < 999.5 else f"{value:.0f}"


def build_mfu_meter(model: nn.Module, config: Config, precision: Precision, context: ProcessContext) -> MFUMeter:
    """Every rank must call it; the main process counts and measures."""
    gauge = None
    if context.is_main:
        gauge = MFUMeter(training_flops(model, config), _peak(precision) * _devices(context))
    return broadcast_object(gauge, context)


def forward_flops(model: nn.Module, config: Config) -> int:
    """Of one image's forward pass."""
    with torch.no_grad():
        return _count(model, config)


def training_flops(model: nn.Module, config: Config) -> int | None:
    """Of one image's forward and backward pass; what is frozen has less of the second. None if it cannot be counted."""
    try:
        return _count(model, config)
    except Exception:  # whatever a model may do that tensors without memory cannot
        return None


def _count(model: nn.Module, config: Config) -> int:
    """On a copy without memory, with explicit attention: torch counts the fused one's recomputation, too."""
    data = config.data
    images = torch.empty((1, data.image_channels, data.image_size, data.image_size), device="meta")
    empty = _without_memory(model)
    for module in empty.modules():
        if hasattr(module, "fused_attn"):
            module.fused_attn = False
    counter = FlopCounterMode(
        display=False, custom_mapping={torch.ops.aten.convolution_backward: _convolution_backward_flops}
    )
    with counter, sdpa_kernel(SDPBackend.MATH):
        logits = empty(images)
        if logits.requires_grad:
            logits.sum().backward()
    return counter.get_total_flops()


def _without_memory(model: nn.Module) -> nn.Module:
    memo: dict[int, torch.Tensor] = {}
    for parameter in model.parameters():
        values = torch.empty_like(parameter, device="meta")
        memo[id(parameter)] = nn.Parameter(values, requires_grad=parameter.requires_grad)
    for buffer in model.buffers():
        memo[id(buffer)] = torch.empty_like(buffer, device="meta")
    return copy.deepcopy(model, memo).eval()


def _convolution_backward_flops(
    grad: list[int], images: list[int], weight: list[int], *others: object, out_shape: object
) -> int:
    """Of each wanted gradient as many as forward; torch's own count takes groups (depthwise) for dense ones."""
    transposed, wanted = others[4], others[7]
    return conv_flop_count(images, weight, grad, transposed) * (wanted[0] + wanted[1])


def _peak(precision: Precision) -> float:
    """Of this device, measured once on the machine."""
    device = {"device": device_name(precision.device), "threads": torch.get_num_threads(), "torch": torch.__version__}
    question = {"what": "FLOP/s of a matrix product", "dtype": str(precision.dtype), "tf32": precision.tf32}
    return found_once(question | device, lambda: matmul_flops_per_second(precision))


def matmul_flops_per_second(precision: Precision) -> float:
    """The best of square matrix products in the type that a run computes in, the larger the quicker the device."""
    device = precision.device
    generator = torch.Generator(device).manual_seed(0)
    best = 0.0
    for size in _SIZES:
        matrix = torch.randn(size, size, device=device, generator=generator).to(precision.dtype)
        seconds: list[float] = []
        while len(seconds) < _TRIALS and sum(seconds) < _TRIAL_SECONDS:
            seconds.append(timed(lambda matrix=matrix: matrix @ matrix, device))
        best = max(best, 2 * size**3 / min(seconds))
        if min(seconds) > _LONG_SECONDS:
            break
    if device.type == "cuda":
        del matrix
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)  # the run's peak is its own
    return best


def _devices(context: ProcessContext) -> float:
    """As many as can work at once: processes on CPUs share the cores of their host."""
    if context.device.type == "cuda":
        return context.world_size
    hosts = context.world_size / context.local_world_size
    cores = len(os.sched_getaffinity(0))
    return hosts * max(1.0, min(context.local_world_size, cores / torch.get_num_threads()))
