"""Private names of torch and Python's standard library, one function each; checked with torch 2.10 and 2.15."""

from collections.abc import Callable
from typing import Any

import torch
import torch._functorch.config
from torch import nn
from torch.amp.grad_scaler import OptState
from torch.utils._python_dispatch import TorchDispatchMode as DispatchMode  # noqa: F401


def is_amp_fused(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the optimizer's kernel divides by `grad_scale` and skips on `found_inf` itself."""
    return bool(getattr(optimizer, "_step_supports_amp_scaling", False))


def mark_unscaled(scaler: torch.amp.GradScaler, optimizer: torch.optim.Optimizer, found_inf: torch.Tensor) -> None:
    """Tells the scaler that `optimizer.grad_scale` is set and infinities were looked for."""
    state = scaler._per_optimizer_states[id(optimizer)]
    state["found_inf_per_device"] = {found_inf.device: found_inf}
    state["stage"] = OptState.UNSCALED


def found_infs(scaler: torch.amp.GradScaler) -> list[torch.Tensor]:
    """The found_inf tensors (), 1 or 0, of all optimizers stepped since the last update."""
    return [inf for state in scaler._per_optimizer_states.values() for inf in state["found_inf_per_device"].values()]


def set_found_inf(scaler: torch.amp.GradScaler, found_inf: torch.Tensor) -> None:
    """Replaces what `scaler.update` reads as overflow."""
    for state in scaler._per_optimizer_states.values():
        state["found_inf_per_device"] = {found_inf.device: found_inf}


def is_compiled(model: nn.Module) -> bool:
    """Whether a module of the model was compiled in place (`module.compile()`)."""
    return any(module._compiled_call_impl for module in model.modules())


def keep_forward_dtypes_in_compiled_backward() -> None:
    """Compiled backward passes then use the dtypes of the forward pass, as eager ones do."""
    torch._functorch.config.backward_pass_autocast = "off"


def is_backward_pass() -> bool:
    """Whether autograd runs a backward pass in this thread: torch._C._current_graph_task_id."""
    return torch._C._current_graph_task_id() != -1


def next_sequence_number() -> int:
    """The number of the next autograd node of this thread's forward pass: torch.autograd._get_sequence_nr."""
    return torch.autograd._get_sequence_nr()


def current_sequence_number() -> int | None:
    """The number of the autograd node that runs now, or None: torch._C._current_autograd_node, Node._sequence_nr."""
    node = torch._C._current_autograd_node()
    return None if node is None else node._sequence_nr()


def is_op(target: Any) -> bool:
    """Whether a node of an FX graph calls an operator such as aten.mm.default: torch._ops.OpOverload."""
    return isinstance(target, torch._ops.OpOverload)


def op_name(op: Any) -> str:
    """The name of an operator without its namespace, such as 'mm': OpOverload._schema."""
    return op._schema.name.rpartition("::")[2]


def is_view(op: Any) -> bool:
    """Whether the result of an operator shares memory with an argument and is not written: OpOverload._schema."""
    return any(value.alias_info and not value.alias_info.is_write for value in op._schema.returns)


def graph_backend(
    forward: Callable[[torch.fx.GraphModule], Callable], backward: Callable[[torch.fx.GraphModule], Callable]
) -> Callable:
    """A backend for torch.compile: `forward` and `backward` turn ATen graphs into functions of their arguments.

    torch._dynamo.backends.common.aot_autograd, functorch.compile.make_boxed_func.
    """
    from functorch.compile import make_boxed_func  # both imports take seconds
    from torch._dynamo.backends.common import aot_autograd

    return aot_autograd(
        fw_compiler=lambda graph, inputs: make_boxed_func(forward(graph)),
        bw_compiler=lambda graph, inputs: make_boxed_func(backward(graph)),
    )
