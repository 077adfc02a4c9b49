"""Fully sharded data parallelism: torch's `fully_shard` (FSDP2).

The ranks share the parameters, the gradients and the moments. The parameters of a block are gathered before its passes;
its gradients are averaged, and each rank keeps its part of them. As in DINOv3 and torchtitan, the order is gradient
checkpointing, compilation, sharding, optimizer. Nothing is wrapped: paths, classes and names of the state dict stay.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from configs.schema import Parallel
from engine.parallel.strategy import DtypeOf, Strategy
from models.blocks import blocks_of, local_tensor
from utils.distributed import ProcessContext
from utils.errors import UserError
from utils.torch_compat import BatchNorm, process_group_timeout, set_process_group_timeout

_SHARD, _REPLICATE = "shard", "replicate"


class FSDP(Strategy):
    """All ranks share one copy of the model (fsdp), or each group of `shards` ranks shares one (hsdp)."""

    is_sharded = True

    def __init__(self, options: Parallel, context: ProcessContext) -> None:
        """Raises UserError: the ranks cannot be divided into groups of SHARDS_PER_GROUP."""
        self.options, self.device, self.world_size = options, context.device, context.world_size
        self.shards = _shards_per_group(options, context)

    def shard(self, model: nn.Module, average: nn.Module | None = None, dtype_of: DtypeOf = lambda module: None) -> str:
        _refuse_batch_norm(model)
        # The backward pass starts with the parameters outside of blocks: they are not freed in between.
        units = self._shard_model(model, dtype_of, self.options.reshard_after_forward, reshard_rest=False)
        if average is not None:
            self._shard_model(average, dtype_of, reshard=True, reshard_rest=True)
        groups = "" if self.shards == self.world_size else f", {self.world_size // self.shards} groups"
        return f"{units} units over {self.shards} ranks each{groups}, gradients summed in float32"

    @cached_property
    def mesh(self) -> DeviceMesh:
        """The ranks that share a copy of the model, in hsdp for each copy. The first access is a collective call."""
        sizes = {_SHARD: self.shards}
        if self.options.strategy == "hsdp":
            sizes = {_REPLICATE: self.world_size // self.shards} | sizes
        mesh = init_device_mesh(self.device.type, tuple(sizes.values()), mesh_dim_names=tuple(sizes))
        if timeout := process_group_timeout(self.device):
            for name in sizes:
                set_process_group_timeout(timeout, mesh.get_group(name))
        return mesh

    def _shard_model(self, model: nn.Module, dtype_of: DtypeOf, reshard: bool, reshard_rest: bool) -> int:
        """Makes units: each block, each norm that stays in fp32, and the rest of the model; returns their number.

        reshard: whether the gathered parameters of blocks and norms are freed after a forward pass.
        reshard_rest: the same for the other gathered parameters.
        """
        # Autocast casts the inputs, as it does without sharding. The default of reduce_dtype differs between versions.
        half = dtype_of(model)
        policy = MixedPrecisionPolicy(half, reduce_dtype=torch.float32, cast_forward_inputs=False)
        fp32 = MixedPrecisionPolicy(reduce_dtype=torch.float32, cast_forward_inputs=False)
        norms = [module for module in model.modules() if dtype_of(module) != half and list(module.parameters())]
        for norm in norms:
            fully_shard(norm, mesh=self.mesh, reshard_after_forward=reshard, mp_policy=fp32)
        blocks = _separate_blocks(model)
        for block in reversed(blocks):  # inner ones first
            fully_shard(block, mesh=self.mesh, reshard_after_forward=reshard, mp_policy=policy)
        fully_shard(model, mesh=self.mesh, reshard_after_forward=reshard_rest, mp_policy=policy)
        _prefetch(model, blocks)
        return len(blocks) + len(norms) + 1

    @contextmanager
    def no_sync(self, wrapped: nn.Module) -> Iterator[None]:
        """Gradients are always exchanged within a group: whole ones would take the memory of the whole model.

        Only the exchange between groups waits for the last micro-step.
        """
        assert isinstance(wrapped, FSDPModule)
        wrapped.set_requires_all_reduce(False)
        try:
            yield
        finally:
            wrapped.set_requires_all_reduce(True)

    def total_norm(self, gradients: Iterable[torch.Tensor]) -> torch.Tensor:
        local_norm = nn.utils.get_total_norm([local_tensor(gradient) for gradient in gradients])
        squared = local_norm.square()
        dist.all_reduce(squared, group=self.mesh.get_group(_SHARD))
        return squared.sqrt()

    @contextmanager
    def evaluation(self, model: nn.Module) -> Iterator[None]:
        """Tensors of the inference mode would fail in the next backward pass (pytorch#113203)."""
        try:
            with torch.no_grad():
                yield
        finally:
            for module in _units(model):  # parameters that stay gathered would miss the updates of the following steps
                module.reshard()

    def gather_in_turn(self, model: nn.Module) -> Iterator[None]:
        for unit in _units(model):
            unit.unshard()
            yield
            unit.reshard()

    def load_model_state(self, model: nn.Module, state: dict[str, Any]) -> None:
        """`state`: whole tensors, equal on all ranks, or sharded ones."""
        own = model.state_dict()
        model.load_state_dict({name: _like(own.get(name), value) for name, value in state.items()})

    def load_optimizer_state(self, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
        """`state`: whole tensors, equal on all ranks, or sharded ones."""
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        order = [index for group in state["param_groups"] for index in group["params"]]
        if len(order) != len(parameters):
            raise ValueError("the optimizer has another number of parameters")
        parameter_of = dict(zip(order, parameters, strict=True))
        moments = {
            index: {name: _like(parameter_of[index], value) for name, value in values.items()}
            for index, values in state["state"].items()
        }
        super().load_optimizer_state(optimizer, {**state, "state": moments})


def _shards_per_group(options: Parallel, context: ProcessContext) -> int:
    if options.strategy == "fsdp":
        return context.world_size
    shards = options.shards_per_group or context.local_world_size
    if context.world_size % shards:
        divisors = [str(size) for size in range(2, context.world_size + 1) if context.world_size % size == 0]
        raise UserError(
            f"PARALLEL.SHARDS_PER_GROUP: {context.world_size} processes cannot be divided into groups of {shards}; set "
            f"it to one of {', '.join(divisors)}"
        )
    return shards


def _refuse_batch_norm(model: nn.Module) -> None:
    for path, module in model.named_modules():
        if isinstance(module, BatchNorm):
            raise UserError(
                f"PARALLEL.STRATEGY: this model has batch norms ({path}), whose running statistics are not shared; use "
                "ddp"
            )


def _separate_blocks(model: nn.Module) -> list[nn.Module]:
    """The blocks that share no parameter with another part. Others, such as CoaT's, belong to the rest of the model."""
    uses = _uses(model)
    return [block for block in blocks_of(model) if all(uses[key] == number for key, number in _uses(block).items())]


def _uses(module: nn.Module) -> Counter[nn.Parameter]:
    """The number of places of the module in which each parameter is."""
    return Counter(parameter for _, parameter in module.named_parameters(remove_duplicate=False))


def _units(model: nn.Module) -> list[FSDPModule]:
    """Outer ones first."""
    return [module for module in model.modules() if isinstance(module, FSDPModule)]


def _prefetch(model: nn.Module, blocks: list[nn.Module]) -> None:
    """Each block starts to gather the parameters of the next one, in the order of the pass."""
    units = [unit for unit in (model, *blocks) if isinstance(unit, FSDPModule)]
    for current, following in pairwise(units):
        current.set_modules_to_forward_prefetch(_units(following))
    for previous, current in pairwise(units[1:]):
        current.set_modules_to_backward_prefetch(_units(previous))


def _like(own: torch.Tensor | None, value: Any) -> Any:
    """This rank's part of the whole tensor `value`, if the tensor `own` is sharded and has its shape."""
    whole = isinstance(value, torch.Tensor) and not isinstance(value, DTensor)
    if not (whole and isinstance(own, DTensor) and own.shape == value.shape):
        return value
    return distribute_tensor(value.to(own.device), own.device_mesh, own.placements, src_data_rank=None)
