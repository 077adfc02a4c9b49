"""Floating-point operations of a model, counted and not measured.

A multiply-add counts as two. Only matrix products and convolutions count. Recomputation for activation checkpointing
does not count, and stochastic depth does not reduce the count: these are the model FLOPs of Chowdhery et al., "PaLM:
Scaling Language Modeling with Pathways" (2022), appendix B.
"""

import copy
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode, conv_flop_count

from configs.schema import Data
from engine.run.facts import Model
from engine.run.mfu.device_peaks import peak_flops_per_second
from models.attention import EXPLICIT, use_attention
from utils.distributed import ProcessContext


def describe_model(model: nn.Module, data: Data, dtype: torch.dtype, tf32: bool, context: ProcessContext) -> Model:
    """Counts the parameters and FLOPs of the model, and looks up the peak of the devices.

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
    parameters, trainable = count_parameters(model)
    return Model(
        parameters=parameters,
        flops_per_image=flops,
        peak_flops_per_second=peak and peak * context.world_size,
        trainable=trainable,
    )


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
    images = torch.empty((1, data.image_channels, data.image_size, data.image_size), device="meta")
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
