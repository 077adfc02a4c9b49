"""Many devices: wrapping for data parallelism, and when gradients are exchanged."""

from contextlib import AbstractContextManager, nullcontext

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from utils.distributed import ProcessContext


def parallelize(model: nn.Module, context: ProcessContext) -> nn.Module:
    """The model itself for one process, else wrapped so that backward averages gradients over the ranks."""
    if context.world_size == 1:
        return model
    device_ids = [context.device] if context.device.type == "cuda" else None
    return DistributedDataParallel(model, device_ids=device_ids, gradient_as_bucket_view=True)


def gradient_sync(model: nn.Module, enabled: bool) -> AbstractContextManager:
    """Around forward and backward: exchanges gradients only where an accumulation window closes."""
    return nullcontext() if enabled or not isinstance(model, DistributedDataParallel) else model.no_sync()


def share_buffers(model: nn.Module, context: ProcessContext) -> None:
    """Rank 0's buffers (running statistics) on every rank, so that all evaluate one model."""
    if context.world_size > 1:
        for buffer in model.buffers():
            dist.broadcast(buffer, src=0)
