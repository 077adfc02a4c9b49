"""Counts the bytes that the ops of a step move."""

from collections import Counter
from typing import Any

import torch
from dispatch import DispatchMode, op_name, returns_view

from utils.torch_compat import tree_leaves

_PRODUCTS = ("mm", "addmm", "bmm", "convolution", "convolution_backward")
_FREE = ("device", "empty", "new_empty", "_unsafe_view", "_record_function", "lift_fresh")
_OVERWRITES = ("copy_", "_foreach_copy_", "fill_", "zero_", "random_", "uniform_", "normal_")


class TrafficCounter(DispatchMode):
    """The ops inside the context that are neither matrix products nor views, and the bytes that they move, by op.

    An op reads its inputs once and writes its outputs once. The fused attention kernels count, too.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device = device
        self.ops: Counter[str] = Counter()
        self.num_bytes: Counter[str] = Counter()

    def __torch_dispatch__(self, op: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        result, name = op(*args, **kwargs), op_name(op)
        if not (returns_view(op) or name.startswith(_FREE) or name in _PRODUCTS):
            moved = sum(map(self._bytes_of, tree_leaves(_moved(op, name, args, kwargs, result))))
            self.ops[name] += bool(moved)
            self.num_bytes[name] += moved
        return result

    def _bytes_of(self, value: Any) -> int:
        """The bytes of the distinct elements of a tensor on the device."""
        if not isinstance(value, torch.Tensor) or value.device.type != self.device.type:
            return 0
        sizes = [size for size, stride in zip(value.shape, value.stride(), strict=True) if stride]
        return torch.Size(sizes).numel() * value.itemsize


def _moved(op: Any, name: str, args: tuple, kwargs: dict, result: Any) -> list[Any]:
    arguments = op._schema.arguments
    values = {argument.name: value for argument, value in zip(arguments, args, strict=False)} | kwargs
    is_written = {argument.name: bool(argument.alias_info and argument.alias_info.is_write) for argument in arguments}
    if name == "_fused_sgd_" and values.get("grad_scale") is None:
        is_written["grads"] = False  # the kernel stores them if it unscales them
    written = [value for name, value in values.items() if is_written[name]] or result
    read = [value for key, value in values.items() if not (is_written[key] and name in _OVERWRITES)]
    return [read, written]
