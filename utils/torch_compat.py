"""Private names of torch and Python's standard library, one function each; checked with torch 2.10 and 2.15."""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode as DispatchMode  # noqa: F401


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
