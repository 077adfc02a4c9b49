"""The parts of a model: the repeated ones, sharded tensors, and mix-ins for the classes of existing modules.

The repeated parts are compiled, sharded and recomputed one by one. A sharded tensor is a `DTensor`, of which each rank
holds a part.
"""

from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from utils.errors import UserError
from utils.torch_compat import BatchNorm, in_backward_pass


@cache
def with_mixin(mixin: type[nn.Module], module_class: type[nn.Module]) -> type[nn.Module]:
    """One subclass per class, so that modules of one class still share it, and compile once."""
    return type(module_class.__name__, (mixin, module_class), {})


_CONTAINERS = (nn.ModuleList, nn.Sequential)


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """The items of all containers named `blocks`, at any depth (timm's transformers, and the stages of others).

    Without such a container: the items of the containers of the model itself, such as its stages; [] without any.
    An outer block stands before those inside it.
    """
    named = [module for path, module in model.named_modules() if path.rpartition(".")[2] == "blocks"]
    containers = [module for module in named if isinstance(module, _CONTAINERS)]
    containers = containers or [module for module in model.children() if isinstance(module, _CONTAINERS)]
    return [block for block in _flat(containers) if any(True for _ in block.parameters())]


def _flat(modules: Iterable[nn.ModuleList | nn.Sequential]) -> Iterator[nn.Module]:
    """The items of the modules. A list among them has no forward pass, as in Twins: its items stand for it."""
    for module in modules:
        for item in module:
            yield from _flat([item]) if isinstance(item, nn.ModuleList) else (item,)


def enable_grad_checkpointing(model: nn.Module, name: str) -> None:
    """Stores only the inputs of the blocks of a timm model. The backward pass recomputes all other activations.

    The recomputation uses the same random numbers and dtypes, so the gradients are bit-identical. torch.compile
    supports it; with batch norm a compiled model saves little memory. Raises UserError if timm does not support it.
    """
    timm_model: Any = model
    try:
        timm_model.set_grad_checkpointing(True)
    except (AttributeError, AssertionError):  # no such method, or a method that refuses
        raise UserError(
            f"MODEL.GRAD_CHECKPOINTING: timm does not support it for {name}; set it to false, lower -batch_size"
        ) from None
    for module in model.modules():
        if isinstance(module, BatchNorm) and module.track_running_stats:
            norm: Any = module
            norm.__class__ = with_mixin(_KeepStatistics, type(norm))  # type: ignore[arg-type]  # a class is hashable


class _KeepStatistics(nn.Module):
    """Mix-in of a batch norm: the recomputation does not update the running statistics a second time."""

    def forward(self, *args: Any) -> torch.Tensor:
        if torch.compiler.is_compiling() or not in_backward_pass():
            return super().forward(*args)
        statistics = dict(self.named_buffers(recurse=False))
        try:
            for name, buffer in statistics.items():
                setattr(self, name, buffer.clone())
            return super().forward(*args)
        finally:  # torch ends a recomputation early, by an exception
            for name, buffer in statistics.items():
                setattr(self, name, buffer)


def is_sharded(model: nn.Module) -> bool:
    """Returns whether a parameter of the model is sharded. Such a model cannot be copied."""
    return any(isinstance(parameter, DTensor) for parameter in model.parameters())


def local_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """The part of a sharded tensor that this rank holds, of the same memory; another tensor itself."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
