"""Finds the first module of a pass that returns an infinite or NaN value."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor, nn

from models.blocks import local_tensor
from utils.torch_compat import tree_leaves


@dataclass(frozen=True)
class Origin:
    """The first non-finite tensor, and the path of its module: '' for the model, None if it belongs to no module."""

    tensor: str
    module: str | None = None

    def __str__(self) -> str:
        return self.tensor if self.module is None else f"{self.tensor} of {self.module or 'the model'}"


IMAGES = Origin("the images")


def first_non_finite(
    model: nn.Module, run_pass: Callable[[], object], gathered: Iterable[None] = (None,)
) -> Origin | None:
    """Hooks into `model` while `run_pass` runs its forward and backward pass; None if every value is finite.

    A module is the origin if its inputs are finite and its outputs are not; in the backward pass, if the gradients of
    its outputs are finite and the gradients of its inputs or parameters are not. The innermost such module is returned.

    `gathered`: `Strategy.gather_in_turn(model)`, if the model may be sharded.
    """
    found = []
    finite_output_gradient: dict[nn.Module, bool] = {}
    handles = []

    # Hooks on tensors: full backward hooks of modules fail if an activation works in place.
    def after_forward(path: str, module: nn.Module, inputs: Any, outputs: Any) -> None:
        """Hooks of inner modules run before hooks of outer modules, also on a tensor that both return."""
        inputs = float_tensors(inputs)
        outputs = float_tensors(outputs)
        if not _all_finite(outputs):
            if _all_finite(inputs):
                found.append(Origin("the output", path))
            elif module is model:
                found.append(IMAGES)
        of_outputs = [(tensor, partial(output_gradient, module)) for tensor in outputs]
        of_inputs = [(tensor, partial(other_gradient, "the gradient at the input", path, module)) for tensor in inputs]
        for tensor, hook in (*of_outputs, *of_inputs):
            if tensor.requires_grad:
                handles.append(tensor.register_hook(hook))

    def output_gradient(module: nn.Module, gradient: Tensor) -> None:
        finite = _all_finite([gradient])
        finite_output_gradient[module] = finite_output_gradient.get(module, True) and finite
        if module is model and not finite:
            found.append(Origin("the gradient of the loss"))

    def other_gradient(tensor: str, path: str, module: nn.Module, gradient: Tensor | None) -> None:
        """Called with the gradient of an input or a parameter of the module, after the gradients of its outputs."""
        if finite_output_gradient.get(module) and not _all_finite(float_tensors(gradient)):
            found.append(Origin(tensor, path))

    def parameter_gradient(path: str, name: str, module: nn.Module, parameter: nn.Parameter) -> None:
        other_gradient(f"the gradient of the {name}", path, module, parameter.grad)

    for path, module in model.named_modules():
        handles.append(module.register_forward_hook(partial(after_forward, path)))
    hooked = set()
    for _ in gathered:
        # The parameters that are not hooked yet, and that this rank holds as a whole.
        for path, module in model.named_modules():
            for name, parameter in module.named_parameters(recurse=False):
                if parameter.requires_grad and parameter not in hooked and local_tensor(parameter) is parameter:
                    hooked.add(parameter)
                    hook = partial(parameter_gradient, path, name, module)
                    handles.append(parameter.register_post_accumulate_grad_hook(hook))
    try:
        run_pass()
    finally:
        for handle in handles:
            handle.remove()
    return found[0] if found else None


def block_of(path: str) -> str:
    """The block of a module path: `blocks.3` for `blocks.3.mlp.fc1`, `head` for `head.weight`."""
    parts = path.split(".")
    numbers = [index for index, part in enumerate(parts) if part.isdecimal()]
    return ".".join(parts[: numbers[0] + 1]) if numbers else parts[0]


def float_tensors(values: Any) -> list[Tensor]:
    return [value for value in tree_leaves(values) if isinstance(value, Tensor) and value.is_floating_point()]


def _all_finite(tensors: list[Tensor]) -> bool:
    return all(bool(tensor.isfinite().all()) for tensor in tensors)
