"""How the processes of a run share the work of a training step."""

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from utils.distributed import ProcessContext
from utils.torch_compat import tree_leaves


class Strategy:
    """The interface of all strategies. The default methods are those of a single process.

    The `*_state` methods are collective calls: every rank makes them, so that a strategy may gather or scatter shards.
    """

    def wrap(self, model: nn.Module, images: torch.Tensor) -> nn.Module:
        """The module whose forward pass training calls. `images` (B, C, S, S), B >= 2: a dummy batch for a warm-up."""
        return model

    def no_sync(self, wrapped: nn.Module) -> AbstractContextManager:
        """The context of a micro-step whose gradients are not exchanged yet."""
        return nullcontext()

    def total_norm(self, gradients: Iterable[torch.Tensor]) -> torch.Tensor:
        """The global L2 norm () of the gradients."""
        return nn.utils.get_total_norm(gradients)

    def sync_buffers(self, model: nn.Module) -> None:
        """Before an evaluation: rank 0's buffers (running statistics) on every rank."""

    def model_state(self, model: nn.Module) -> dict[str, Any]:
        return model.state_dict()

    def optimizer_state(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        return optimizer.state_dict()

    def load_model_state(self, model: nn.Module, state: dict[str, Any]) -> None:
        model.load_state_dict(state)

    def load_optimizer_state(self, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
        """Restores the moments; weight decay, betas and other settings stay those of the current options.

        Raises:
            ValueError: the state belongs to other parameters.
        """
        settings = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
        optimizer.load_state_dict(state)
        for group, present in zip(optimizer.param_groups, settings, strict=True):
            group.update(present)


class Single(Strategy):
    """One process."""


class DDP(Strategy):
    """Data parallelism: every rank holds the whole model, and gradients are averaged over the ranks."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def wrap(self, model: nn.Module, images: torch.Tensor) -> nn.Module:
        device_ids = [self.device] if self.device.type == "cuda" else None
        wrapped = DistributedDataParallel(model, device_ids=device_ids, gradient_as_bucket_view=True)
        _rebuild_buckets(wrapped, model, images)
        return wrapped

    def no_sync(self, wrapped: nn.Module) -> AbstractContextManager:
        return wrapped.no_sync()

    def sync_buffers(self, model: nn.Module) -> None:
        for buffer in model.buffers():
            dist.broadcast(buffer, src=0)


def build_strategy(context: ProcessContext) -> Strategy:
    return Single() if context.world_size == 1 else DDP(context.device)


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
