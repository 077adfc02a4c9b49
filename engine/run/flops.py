"""Floating-point operations of a model, counted and not measured, and the peaks of GPUs, for the MFU.

A multiply-add counts as two. Only matrix products and convolutions count. Recomputation for activation checkpointing
does not count, and stochastic depth does not reduce the count: these are the model FLOPs of Chowdhery et al., "PaLM:
Scaling Language Modeling with Pathways" (2022), appendix B.

The peak FLOP/s of a GPU by the dtype of the matrix products, its memory and its links come from NVIDIA's datasheets.
All figures are dense: a datasheet figure "with sparsity" is halved. Figures for float16 have float32 accumulation, as
in torch. A GPU or dtype without a figure here has no MFU: a missing MFU is better than a wrong one.
"""

import copy
import re
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode, conv_flop_count

from configs.schema import Data
from engine.run.facts import Model
from models.kernels import EXPLICIT, use_attention
from utils.distributed import ProcessContext


class Peaks(NamedTuple):
    """TFLOP/s of one GPU. None: the GPU has no tensor cores for this dtype, or the datasheets disagree."""

    fp32: float | None  # without tensor cores
    tf32: float | None
    fp16: float | None
    bf16: float | None


_H100_SXM = Peaks(66.9, 494.7, 989.4, 989.4)  # "NVIDIA H100 Tensor Core GPU Architecture" (whitepaper), table 2
PEAKS = {
    # NVIDIA's datasheet of each GPU; sparse figures are halved
    "T4": Peaks(8.1, None, 65.0, None),
    "V100 PCIE": Peaks(14.0, None, 112.0, None),
    "V100 SXM2": Peaks(15.7, None, 125.0, None),
    "A10": Peaks(31.2, 62.5, 125.0, 125.0),
    "A30": Peaks(10.3, 82.0, 165.0, 165.0),
    "A40": Peaks(37.4, 74.8, 149.7, 149.7),
    "A100 PCIE": Peaks(19.5, 156.0, 312.0, 312.0),
    "A100 SXM4": Peaks(19.5, 156.0, 312.0, 312.0),
    "L4": Peaks(30.3, 60.0, 121.0, 121.0),
    "L40S": Peaks(91.6, 183.0, 362.0, 362.0),
    "H100": _H100_SXM,
    "H100 PCIE": Peaks(51.2, 378.0, 756.0, 756.0),  # the whitepaper, table 2
    "H100 NVL": Peaks(60.0, 417.5, 835.0, 835.0),
    "H200": _H100_SXM,  # with more memory
    "H200 NVL": Peaks(60.0, 417.5, 835.5, 835.5),
    "GH200": _H100_SXM,
    "B200": Peaks(None, 1100.0, 2250.0, 2250.0),  # its fp32 varies by edition
    # Workstation: the whitepapers "NVIDIA Ampere GA102 GPU Architecture", "NVIDIA Ada GPU Architecture"
    "RTX A6000": Peaks(38.7, 77.4, 154.8, 154.8),
    "RTX 6000 ADA GENERATION": Peaks(91.1, 182.1, 364.2, 364.2),
}
# TFLOP/s in fp32, 2 x CUDA cores x boost clock: "NVIDIA Ampere GA102 GPU Architecture", "NVIDIA Ada GPU Architecture",
# "NVIDIA RTX Blackwell GPU Architecture". The 3080 is the one with 10 GB; with 12 GB it has the same name, and 30.6.
_GEFORCE = {
    "3050": 9.1, "3060": 12.7, "3060 TI": 16.2, "3070": 20.3, "3070 TI": 21.7, "3080": 29.8, "3080 TI": 34.1,
    "3090": 35.6, "3090 TI": 40.0,
    "4060": 15.1, "4060 TI": 22.1, "4070": 29.1, "4070 SUPER": 35.5, "4070 TI": 40.1, "4070 TI SUPER": 44.1,
    "4080": 48.7, "4080 SUPER": 52.2, "4090": 82.6,
    "5050": 13.2, "5060": 19.2, "5060 TI": 23.7, "5070": 30.9, "5070 TI": 43.9, "5080": 56.3, "5090": 104.8,
}  # fmt: skip
# Since Ampere, a GeForce computes TF32 as fast as float32, and 16-bit types twice as fast.
PEAKS |= {f"RTX {name}": Peaks(fp32, fp32, 2 * fp32, 2 * fp32) for name, fp32 in _GEFORCE.items()}
_BRANDS_AND_MEMORY = re.compile(r"\b(NVIDIA|TESLA|QUADRO|GEFORCE|\d+GB?|HBM3E?)\b")


def peak_flops_per_second(device_name: str, dtype: torch.dtype, tf32: bool) -> float | None:
    """Datasheet peak of one GPU for matrix products of this dtype; None where the table has no figure.

    device_name: as `torch.cuda.get_device_name` gives it. The whole name must match an entry, apart from brand and
    memory size: laptop GPUs, MIG slices and virtual GPUs are slower than their namesakes.
    tf32: whether float32 matrix products may use TF32; GPUs without TF32 then compute in float32.
    """
    peaks = PEAKS.get(model_name(device_name))
    if peaks is None:
        return None
    by_dtype = {
        torch.float32: (tf32 and peaks.tf32) or peaks.fp32,
        torch.float16: peaks.fp16,
        torch.bfloat16: peaks.bf16,
    }
    tflops = by_dtype[dtype]
    return None if tflops is None else 1e12 * tflops


def model_name(device_name: str) -> str:
    """'A100 SXM4' for 'NVIDIA A100-SXM4-80GB'; the H100 with HBM3 is the SXM one, whose name does not say so."""
    return " ".join(_BRANDS_AND_MEMORY.sub(" ", device_name.upper().replace("-", " ")).split())


def describe_model(model: nn.Module, data: Data, dtype: torch.dtype, tf32: bool, context: ProcessContext) -> Model:
    """Counts parameters and FLOPs, and looks up the peak of the devices. dtype, tf32: as `peak_flops_per_second`."""
    try:
        flops = training_flops(model, data)
    except Exception:  # a model may do anything that tensors without memory do not support
        flops = None
    peak = None
    if context.device.type == "cuda":
        peak = peak_flops_per_second(torch.cuda.get_device_name(context.device), dtype, tf32)
    parameters, trainable = count_parameters(model)
    return Model(parameters, flops, peak and peak * context.world_size, trainable)


def count_parameters(model: nn.Module) -> tuple[int, int]:
    """All parameters, and the trainable ones."""
    parameters = list(model.parameters())
    trainable = (parameter.numel() for parameter in parameters if parameter.requires_grad)
    return sum(map(torch.numel, parameters)), sum(trainable)


def forward_flops(model: nn.Module, data: Data) -> int:
    """FLOPs of the forward pass of one image."""
    # Not by `no_grad`: torch's counter fails on views of parameters, such as an expanded class token, under it.
    return _count(copy_to_meta(model).requires_grad_(False), data)


def training_flops(model: nn.Module, data: Data) -> int:
    """FLOPs of the forward and backward pass of one image. Frozen parameters have no weight gradients."""
    return _count(copy_to_meta(model), data)


def _count(meta_model: nn.Module, data: Data) -> int:
    """Runs a copy of a model on the meta device, with explicit attention and without gradient checkpointing.

    Recomputed values do not count as model FLOPs; torch would count the ones of fused attention and checkpointing.
    """
    images = torch.empty((1, data.image_channels, *data.input_size), device="meta")
    use_attention(meta_model, EXPLICIT)
    checkpointed: list[Any] = [module for module in meta_model.modules() if hasattr(module, "grad_checkpointing")]
    for module in checkpointed:
        module.grad_checkpointing = False
    counter = FlopCounterMode(
        display=False, custom_mapping={torch.ops.aten.convolution_backward: _convolution_backward_flops}
    )
    with counter, sdpa_kernel(SDPBackend.MATH):
        logits = meta_model(images)
        if logits.requires_grad:
            logits.sum().backward()
    return counter.get_total_flops()


def copy_to_meta(model: nn.Module) -> nn.Module:
    """A copy in evaluation mode whose tensors have no memory; the model itself stays as it is."""
    memo: dict[int, torch.Tensor] = {}
    for parameter in model.parameters():
        values = torch.empty_like(parameter, device="meta")
        memo[id(parameter)] = nn.Parameter(values, requires_grad=parameter.requires_grad)
    for buffer in model.buffers():
        memo[id(buffer)] = torch.empty_like(buffer, device="meta")
    return copy.deepcopy(model, memo).eval()


def _convolution_backward_flops(
    grad: list[int], images: list[int], weight: list[int], *others: Any, out_shape: object
) -> int:
    """Each required gradient costs as much as the forward pass. torch's own formula ignores groups (depthwise)."""
    transposed, output_mask = others[4], others[7]
    return conv_flop_count(images, weight, grad, transposed) * (output_mask[0] + output_mask[1])
