"""Batch norms over the batches of all ranks: PARALLEL.SYNC_BN."""

from typing import Any

import torch
import torch.distributed as dist
from timm.layers import convert_sync_batchnorm
from torch import nn

from utils.distributed import ProcessContext
from utils.errors import UserError
from utils.torch_compat import BatchNorm


def synchronize_batch_norms(model: nn.Module, context: ProcessContext) -> nn.Module:
    """The model whose batch norms, in training, have the mean and variance of the batches of all ranks.

    On GPUs: timm's conversion to torch's SyncBatchNorm, which has no CPU kernels. On CPUs the ranks exchange the whole
    inputs of each norm, which is slow. Names and values of the state dict stay.

    Raises:
        UserError: the model has no batch norms.
    """
    norms = [module for module in model.modules() if isinstance(module, BatchNorm)]
    if not norms:
        raise UserError("PARALLEL.SYNC_BN: this model has no batch norms; set it to false")
    if context.device.type == "cuda":
        return convert_sync_batchnorm(model)
    for norm in norms:
        norm.register_forward_pre_hook(_gather)
        norm.register_forward_hook(_own_part)
    return model


class _Gather(torch.autograd.Function):
    """The batches of all ranks, of equal shapes: (B, ...) -> (world size x B, ...)."""

    @staticmethod
    def forward(ctx: Any, images: torch.Tensor) -> torch.Tensor:
        parts = [torch.empty_like(images, memory_format=torch.contiguous_format) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, images.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(gradient := gradient.clone(memory_format=torch.contiguous_format))
        return gradient.chunk(dist.get_world_size())[dist.get_rank()]


def _gather(norm: nn.Module, inputs: tuple[torch.Tensor, ...]) -> Any:
    return _Gather.apply(*inputs) if norm.training else None


def _own_part(norm: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> torch.Tensor:
    """A copy: the next layer may work in place."""
    return output.chunk(dist.get_world_size())[dist.get_rank()].clone() if norm.training else output
