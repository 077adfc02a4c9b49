"""How the processes of a run share the work of a training step."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from configs.schema import Parallel
from utils.distributed import ProcessContext

DtypeOf = Callable[[nn.Module], torch.dtype | None]


@dataclass(frozen=True)
class Communication:
    """The exchange of gradients in one step. None: unknown in this version of torch.

    dtype: in which gradients are exchanged. bytes_per_step: gradients that each rank contributes; a ring sends nearly
    twice as many. hidden_seconds: the part of `seconds` during the backward pass.
    """

    dtype: str
    bytes_per_step: int
    buckets: int | None
    seconds: float | None
    hidden_seconds: float | None


class Strategy:
    """The interface of all strategies. The default methods serve a single process.

    The `*_state` methods are collective calls: every rank makes them, so that a strategy may gather or scatter parts of
    tensors.

    Attributes:
        is_sharded: whether a rank holds a part of each parameter only, as a `DTensor`. Then all ranks must run every
            pass of the model, and the states consist of `DTensor`s.
    """

    is_sharded = False

    def shard(self, model: nn.Module, average: nn.Module | None = None, dtype_of: DtypeOf = lambda module: None) -> str:
        """Shards the fp32 `model` and the `average` of its weights in place, before the optimizer is built.

        Called if `is_sharded`. Returns a description for the log.

        Args:
            dtype_of: module -> dtype to which its gathered parameters are cast; None: they stay in fp32.
        Raises:
            UserError: the model cannot be sharded.
        """
        raise NotImplementedError

    def wrap(self, model: nn.Module, images: torch.Tensor) -> nn.Module:
        """The module whose forward pass training calls. `images` (B, C, S, S), B >= 2: a dummy batch for a warm-up."""
        return model

    def no_sync(self, wrapped: nn.Module) -> AbstractContextManager[Any]:
        """The context of a micro-step whose gradients are not exchanged yet."""
        return nullcontext()

    def total_norm(self, gradients: Iterable[torch.Tensor]) -> torch.Tensor:
        """The global L2 norm () of the gradients."""
        return nn.utils.get_total_norm(gradients)

    def evaluation(self, model: nn.Module) -> AbstractContextManager[Any]:
        """The context of passes of `model` without backward passes."""
        return torch.inference_mode()

    def gather_in_turn(self, model: nn.Module) -> Iterator[None]:
        """Gathers a sharded model unit by unit: in each iteration the parameters of one unit are whole. Collective."""
        yield

    def sync_buffers(self, model: nn.Module) -> None:
        """Copies rank 0's buffers (running statistics) to every rank before an evaluation."""

    def communication(self, wrapped: nn.Module) -> Communication | None:
        """The exchange of gradients so far, for a profile; None: no figures."""
        return None

    def model_state(self, model: nn.Module) -> dict[str, Any]:
        return model.state_dict()

    def optimizer_state(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        return optimizer.state_dict()

    def load_model_state(self, model: nn.Module, state: dict[str, Any]) -> None:
        model.load_state_dict(state)

    def load_optimizer_state(self, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
        """Restores the moments; weight decay, betas and other settings keep their current values.

        Raises:
            ValueError: the state belongs to other parameters.
        """
        settings = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
        optimizer.load_state_dict(state)
        for group, present in zip(optimizer.param_groups, settings, strict=True):
            group.update(present)
        for parameter, moments in optimizer.state.items():
            for name, value in moments.items():
                is_like_parameter = torch.is_tensor(value) and value.shape == parameter.shape
                if is_like_parameter and value.stride() != parameter.stride():  # fused kernels need equal strides
                    moments[name] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)


class Single(Strategy):
    """The strategy of one process."""


def build_strategy(options: Parallel, context: ProcessContext) -> Strategy:
    """Builds the strategy of the run; one process uses none.

    Raises:
        UserError: as `FSDP`.
    """
    if context.world_size == 1:
        return Single()
    if options.strategy == "ddp":
        from engine.parallel.ddp import DDP  # imported where it is used

        return DDP(context.device, options)
    from engine.parallel.fsdp import FSDP

    return FSDP(options, context)
