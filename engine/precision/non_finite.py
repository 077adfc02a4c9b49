"""Finds the first module of a pass that returns an infinite or NaN value."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from models.blocks import local_tensor
from utils.torch_compat import tree_leaves


@dataclass(frozen=True)
class Origin:
    """The first non-finite tensor, and the path of its module ('' if it belongs to no module)."""

    tensor: str
    module: str = ""

    def __str__(self) -> str:
        return f"{self.tensor} of {self.module}" if self.module else self.tensor


IMAGES = Origin("the images")


def first_non_finite(
    model: nn.Module, run_pass: Callable[[], object], gathered: Iterable[None] = (None,)
) -> Origin | None:
    """Hooks into `model` while `run_pass` runs its forward and backward pass; None if every value is finite.

    A module is the origin if its inputs are finite and its outputs are not; in the backward pass, if the gradients of
    its outputs are finite and the gradients of its inputs or parameters are not. The innermost such module is returned.

    `gathered`: `Strategy.gather_in_turn(model)`, if the model may be sharded.
    """
    hooks = _FiniteHooks(model, gathered)
    try:
        run_pass()
    finally:
        hooks.remove()
    return hooks.origin


class _FiniteHooks:
    """Hooks on tensors: full backward hooks of modules fail if an activation works in place."""

    def __init__(self, model: nn.Module, gathered: Iterable[None]) -> None:
        self.model = model
        self.origin: Origin | None = None
        self._finite_output_gradient: dict[nn.Module, bool] = {}
        self._handles: list[Any] = []
        for path, module in model.named_modules():
            self._handles.append(module.register_forward_hook(partial(self._after_forward, path)))
        hooked: set[torch.Tensor] = set()
        for _ in gathered:
            # The parameters that are not hooked yet, and that this rank holds as a whole.
            for path, module in model.named_modules():
                for name, parameter in module.named_parameters(recurse=False):
                    if parameter.requires_grad and parameter not in hooked and local_tensor(parameter) is parameter:
                        hooked.add(parameter)
                        hook = partial(self._parameter_gradient, path, name, module)
                        self._handles.append(parameter.register_post_accumulate_grad_hook(hook))

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()

    def _found(self, origin: Origin) -> None:
        """Keeps the first one."""
        if self.origin is None:
            self.origin = origin

    def _after_forward(self, path: str, module: nn.Module, inputs: Any, outputs: Any) -> None:
        """Hooks of inner modules run before hooks of outer modules, also on a tensor that both return."""
        inputs, outputs = float_tensors(inputs), float_tensors(outputs)
        if not _all_finite(outputs):
            if _all_finite(inputs):
                self._found(_in_module("the output", path))
            elif module is self.model:
                self._found(IMAGES)
        of_outputs = [(tensor, partial(self._output_gradient, module)) for tensor in outputs]
        of_inputs = [(tensor, partial(self._gradient, "the gradient at the input", path, module)) for tensor in inputs]
        for tensor, hook in (*of_outputs, *of_inputs):
            if tensor.requires_grad:
                self._handles.append(tensor.register_hook(hook))

    def _output_gradient(self, module: nn.Module, gradient: torch.Tensor) -> None:
        finite = _all_finite([gradient])
        self._finite_output_gradient[module] = self._finite_output_gradient.get(module, True) and finite
        if module is self.model and not finite:
            self._found(Origin("the gradient of the loss"))

    def _gradient(self, tensor: str, path: str, module: nn.Module, gradient: torch.Tensor | None) -> None:
        """Called with the gradient of an input or a parameter of the module, after those of its outputs."""
        if self._finite_output_gradient.get(module) and not _all_finite(float_tensors(gradient)):
            self._found(_in_module(tensor, path))

    def _parameter_gradient(self, path: str, name: str, module: nn.Module, parameter: nn.Parameter) -> None:
        self._gradient(f"the gradient of the {name}", path, module, parameter.grad)


def _in_module(tensor: str, path: str) -> Origin:
    return Origin(tensor, path) if path else Origin(f"{tensor} of the model")


def block_of(path: str) -> str:
    """The block of a module path: `blocks.3` for `blocks.3.mlp.fc1`, `head` for `head.weight`."""
    parts = path.split(".")
    numbers = [index for index, part in enumerate(parts) if part.isdecimal()]
    return ".".join(parts[: numbers[0] + 1]) if numbers else parts[0]


def float_tensors(values: Any) -> list[torch.Tensor]:
    return [value for value in tree_leaves(values) if isinstance(value, torch.Tensor) and value.is_floating_point()]


def _all_finite(tensors: list[torch.Tensor]) -> bool:
    return all(bool(tensor.isfinite().all()) for tensor in tensors)
