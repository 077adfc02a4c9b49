"""DistributedDataParallel."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook, fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from configs.schema import Parallel
from engine.parallel.strategy import Communication, Strategy
from utils.torch_compat import ddp_figures, tree_leaves

_HOOKS: dict[str, tuple[Callable[..., Any] | None, torch.dtype | None]] = {
    "none": (None, None),
    "bf16": (bf16_compress_hook, torch.bfloat16),
    "fp16": (fp16_compress_hook, torch.float16),
}


class DDP(Strategy):
    """Data parallelism: every rank holds the whole model, and gradients are averaged over the ranks.

    With COMM_HOOK each rank casts its gradients to 16 bits and divides them by the number of ranks; their sum has 16
    bits too. A value beyond the range of the dtype becomes infinite on all ranks, so that all of them skip the step.
    The hooks keep no state: resuming stays exact.
    """

    def __init__(self, device: torch.device, options: Parallel) -> None:
        self.device = device
        self._hook, self._dtype = _HOOKS[options.comm_hook]
        self._bucket_mb = options.bucket_mb

    def wrap(self, model: nn.Module, images: torch.Tensor) -> nn.Module:
        device_ids = [self.device] if self.device.type == "cuda" else None
        wrapped = DistributedDataParallel(
            model, device_ids=device_ids, bucket_cap_mb=self._bucket_mb, gradient_as_bucket_view=True
        )
        if self._hook:
            wrapped.register_comm_hook(None, self._hook)
        _rebuild_buckets(wrapped, model, images)
        return wrapped

    def no_sync(self, wrapped: nn.Module) -> AbstractContextManager[Any]:
        assert isinstance(wrapped, DistributedDataParallel)
        return wrapped.no_sync()

    def sync_buffers(self, model: nn.Module) -> None:
        for buffer in model.buffers():
            dist.broadcast(buffer, src=0)

    def communication(self, wrapped: nn.Module) -> Communication:
        figures = ddp_figures(wrapped)
        sizes, time = figures.get("rebuilt_bucket_sizes"), figures.get("backward_comm_time")
        hidden = figures.get("backward_compute_comm_overlap_time")
        trained = [parameter for parameter in wrapped.parameters() if parameter.requires_grad]
        dtypes = [self._dtype or parameter.dtype for parameter in trained]
        return Communication(
            dtype=" and ".join(sorted({str(dtype).removeprefix("torch.") for dtype in dtypes})),
            bytes_per_step=sum(part.numel() * dtype.itemsize for part, dtype in zip(trained, dtypes, strict=True)),
            buckets=len(sizes.split(",")) if sizes else None,
            seconds=time / 1e9 if time else None,
            hidden_seconds=hidden / 1e9 if time and hidden is not None else None,
        )


def _rebuild_buckets(wrapped: nn.Module, model: nn.Module, images: torch.Tensor) -> None:
    """Runs and discards two passes, so that the first step sums gradients in the same order as all later steps.

    DDP regroups gradients after its first backward pass. With three or more ranks the grouping changes the last bits
    of the sums, so that a resumed run would differ from an uninterrupted one.
    """
    buffers = [buffer.clone() for buffer in model.buffers()]
    for _ in range(2):
        outputs = tree_leaves(wrapped(images))  # a distilled model has two
        sum(output.sum() for output in outputs).backward()
    model.zero_grad(set_to_none=True)
    for buffer, before in zip(model.buffers(), buffers, strict=True):
        buffer.copy_(before)
