"""Many devices: wrapping for data parallelism, and when gradients are exchanged."""

from contextlib import AbstractContextManager, nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from utils.distributed import ProcessContext


def parallelize(model: nn.Module, context: ProcessContext, images: torch.Tensor) -> nn.Module:
    """The model itself for one process, else wrapped so that backward averages gradients over the ranks.

    `images` (B, C, S, S) is any batch it can be tried with, B at least 2.
    """
    if context.world_size == 1:
        return model
    device_ids = [context.device] if context.device.type == "cuda" else None
    parallel = DistributedDataParallel(model, device_ids=device_ids, gradient_as_bucket_view=True)
    _settle_buckets(parallel, model, images)
    return parallel


def _settle_buckets(parallel: nn.Module, model: nn.Module, images: torch.Tensor) -> None:
    """Throws two passes away, so that the first step already sums gradients as all later ones do.

    DDP regroups gradients after its first backward pass, and from three ranks on the grouping shows in the last bits
    of their sums: a resumed run would differ from an unbroken one.
    """
    buffers = [buffer.clone() for buffer in model.buffers()]
    for _ in range(2):
        parallel(images).sum().backward()
    model.zero_grad(set_to_none=True)
    for buffer, before in zip(model.buffers(), buffers, strict=True):
        buffer.copy_(before)


def gradient_sync(model: nn.Module, enabled: bool) -> AbstractContextManager:
    """Around forward and backward: exchanges gradients only where an accumulation window closes."""
    return nullcontext() if enabled or not isinstance(model, DistributedDataParallel) else model.no_sync()


def share_buffers(model: nn.Module, context: ProcessContext) -> None:
    """Rank 0's buffers (running statistics) on every rank, so that all evaluate one model."""
    if context.world_size > 1:
        for buffer in model.buffers():
            dist.broadcast(buffer, src=0)
