"""Finds the first module of a forward pass that returns an infinite or NaN value."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from utils.torch_compat import tree_leaves


@dataclass(frozen=True)
class Origin:
    """The first non-finite tensor, and the path of its module ('' if it belongs to no module)."""

    tensor: str
    module: str = ""

    def __str__(self) -> str:
        return f"{self.tensor} of {self.module}" if self.module else self.tensor


IMAGES = Origin("the images")


def first_non_finite(model: nn.Module, run_pass: Callable[[], object]) -> Origin | None:
    """Hooks into `model` while `run_pass` runs its forward pass; None if every value is finite.

    A module is the origin if its inputs are finite and its outputs are not. The innermost such module is returned.
    """
    origins: list[Origin] = []

    def check(path: str, module: nn.Module, inputs: Any, outputs: Any) -> None:
        """Hooks of inner modules run before hooks of outer modules, also on a tensor that both return."""
        if _all_finite(outputs):
            return
        if _all_finite(inputs):
            origins.append(Origin("the output", path or "the model"))
        elif module is model:
            origins.append(IMAGES)

    handles = [module.register_forward_hook(partial(check, path)) for path, module in model.named_modules()]
    try:
        run_pass()
    finally:
        for handle in handles:
            handle.remove()
    return origins[0] if origins else None


def block_of(path: str) -> str:
    """The block of a module path: `blocks.3` for `blocks.3.mlp.fc1`, `head` for `head.weight`."""
    parts = path.split(".")
    numbers = [index for index, part in enumerate(parts) if part.isdecimal()]
    return ".".join(parts[: numbers[0] + 1]) if numbers else parts[0]


def float_tensors(values: Any) -> list[torch.Tensor]:
    return [value for value in tree_leaves(values) if isinstance(value, torch.Tensor) and value.is_floating_point()]


def _all_finite(values: Any) -> bool:
    return all(bool(tensor.isfinite().all()) for tensor in float_tensors(values))
