"""Sharded tensors: `DTensor`s, of which each rank holds a part."""

import torch
from torch import nn
from torch.distributed.tensor import DTensor


def is_sharded(model: nn.Module) -> bool:
    """Returns whether a parameter of the model is sharded. Such a model cannot be copied."""
    return any(isinstance(parameter, DTensor) for parameter in model.parameters())


def local_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """The part of a sharded tensor that this rank holds, of the same memory; another tensor itself."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
