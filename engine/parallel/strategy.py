"""How the processes of a run share the work of a training step: one process, or DistributedDataParallel.

They also exchange their options at the start, since each rank may be started by a command of its own, and, in parallel
with the training, requests and step times.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook, fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from configs.compare import shared_options
from configs.schema import Config, Parallel
from configs.yaml_io import format_value
from utils.distributed import ProcessContext, gather_objects
from utils.errors import Unavailable, UserError
from utils.processes.failure import State, leaving_state
from utils.torch_compat import ddp_figures, tree_leaves

DtypeOf = Callable[[nn.Module], torch.dtype | None]
_HOOKS: dict[str, tuple[Callable[..., Any] | None, torch.dtype | None]] = {
    "none": (None, None),
    "bf16": (bf16_compress_hook, torch.bfloat16),
    "fp16": (fp16_compress_hook, torch.float16),
}


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

    The `load_*_state` methods are collective calls: every rank makes them.

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
            model,
            device_ids=device_ids,
            bucket_cap_mb=self._bucket_mb,
            gradient_as_bucket_view=True,
            find_unused_parameters=bool(unused_parameters(model, images)),
        )
        if self._hook:
            wrapped.register_comm_hook(None, self._hook)
        # DDP regroups gradients after its first backward pass. With three or more ranks the grouping changes the last
        # bits of the sums, so that a resumed run would differ from an uninterrupted one.
        for _ in range(2):
            unused_parameters(model, images, wrapped)
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


def unused_parameters(model: nn.Module, images: torch.Tensor, wrapped: nn.Module | None = None) -> list[str]:
    """The names of the trained parameters without a gradient, by passes of the images that are then discarded."""
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    if not trained:
        return []
    buffers = [buffer.clone() for buffer in model.buffers()]
    outputs = tree_leaves((wrapped or model)(images))  # a distilled model has two
    sum(output.sum() for output in outputs).backward()
    unused = [name for name, parameter in trained.items() if parameter.grad is None]
    model.zero_grad(set_to_none=True)
    for buffer, before in zip(model.buffers(), buffers, strict=True):
        buffer.copy_(before)
    return unused


def build_strategy(options: Parallel, context: ProcessContext) -> Strategy:
    """Builds the strategy of the run; one process uses none.

    Raises:
        UserError: as `FSDP`.
    """
    if context.world_size == 1:
        return Single()
    if options.strategy == "ddp":
        return DDP(context.device, options)
    from engine.parallel.fsdp import FSDP  # imported where it is used

    return FSDP(options, context)


def check_same_options(config: Config, context: ProcessContext, **flags: str | int | None) -> None:
    """Checks that all ranks have the same `shared_options` and `flags`. A collective call.

    Raises:
        UserError: on all ranks; it names the first rank that differs from rank 0, and each key with both values.
    """
    of_main, *others = gather_objects(shared_options(config) | flags, context)
    for rank, of_rank in enumerate(others, 1):
        if keys := [key for key in of_main | of_rank if of_main.get(key) != of_rank.get(key)]:
            main, own = (", ".join(f"{key} {format_value(of.get(key))}" for key in keys) for of in (of_main, of_rank))
            raise UserError(
                f"{context.name(rank)} has {own}, but {context.name(0)} has {main}; start all ranks with equal options"
            )


class RankExchange:
    """The greatest request and the times of all ranks, one call late, so that ranks do not wait for each other.

    A rank waits only for one that is more than a call behind, at most `timeout_seconds`. The exchange uses gloo between
    hosts, in parallel with the collectives of the devices.
    """

    def __init__(self, context: ProcessContext, timeout_seconds: float) -> None:
        self._rank, self._ranks = context.rank, context.world_size
        self._group: Any = None
        self._pending: tuple[Any, torch.Tensor, bool] | None = None  # the previous call
        if context.world_size > 1:
            try:
                self._group = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_seconds))
            except RuntimeError as error:  # NCCL may use another network than gloo
                if leaving_state(error) is not State.FAILED:
                    raise
                raise Unavailable(
                    f"the hosts of this run cannot reach each other ({error}); set GLOO_SOCKET_IFNAME to the name of "
                    "their common network interface"
                ) from error

    def swap(self, request: int, seconds: Sequence[float] | None = None) -> tuple[int, torch.Tensor | None]:
        """Sends the request; returns the greatest request of the previous call, 0 at first, and the times of all ranks.

        All ranks must call it equally often. In a run of one process the results are of this call.

        Args:
            seconds: of this rank in a step: waiting for data, in the forward pass; all ranks give them, or none. The
                times (ranks, 2) are None if the previous call gave none.
        """
        values = torch.zeros(1 + 2 * self._ranks, dtype=torch.float64)  # every rank fills its own two places
        values[0] = request
        if seconds is not None:
            values[1 + 2 * self._rank : 3 + 2 * self._rank] = torch.tensor(seconds, dtype=torch.float64)
        has_seconds = seconds is not None
        if self._group is not None:
            previous = self._pending
            work = dist.all_reduce(values, dist.ReduceOp.MAX, self._group, async_op=True)
            self._pending = work, values, has_seconds
            if previous is None:
                return 0, None
            work, values, has_seconds = previous
            work.wait()
        return int(values[0]), values[1:].view(-1, 2) if has_seconds else None
