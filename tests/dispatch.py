"""The ops that torch dispatches, for tests that count or record them."""

from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode as DispatchMode  # noqa: F401


def op_name(op: Any) -> str:
    """'add' for torch.ops.aten.add.Tensor, an op as a `TorchDispatchMode` shows it."""
    return op._schema.name.partition("::")[2]


def returns_view(op: Any) -> bool:
    """Returns whether an output of the op is a view of an input."""
    return any(value.alias_info and not value.alias_info.is_write for value in op._schema.returns)
