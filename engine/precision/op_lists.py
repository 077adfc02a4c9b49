"""Ops and modules that compute in fp32 or in half, by lists; autocast's own lists cannot be changed.

Norms of half inputs compute in half where the kernels sum the gradients of their weights in fp32, else in fp32.

A `TorchFunctionMode` intercepts a listed op and runs it with autocast off, on tensors cast to its dtype, so that its
backward pass has that dtype too. The mode is entered inside the `forward` of modules, so that it also applies when they
are compiled, wrapped for data parallelism, copied, or recomputed in the backward pass.
"""

import re
from collections.abc import Callable, Collection, Iterable
from fnmatch import fnmatchcase
from typing import Any

import torch
import torch.nn.functional as F
from timm.layers import RmsNorm, RmsNorm2d, SimpleNorm, SimpleNorm2d
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from configs.yaml_io import Values
from models.blocks import Casting, add_mixin
from utils.errors import UserError, did_you_mean
from utils.torch_compat import BatchNorm, DisableTorchFunction, disable_autocast_in_compiled_backward, tree_map

_ONE_KERNEL = (nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, RmsNorm)  # on a GPU; its statistics are in fp32
_SEVERAL_KERNELS = (RmsNorm2d, SimpleNorm, SimpleNorm2d)


class _CastingNorm(nn.Module):
    """A mix-in for the class of a norm: it computes in `norm_dtype`, and returns the dtype of its input."""

    norm_dtype: torch.dtype
    device_type: str  # also of the copy on the meta device, which has no autocast

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        with torch.autocast(self.device_type, enabled=False):
            result: Tensor = super().forward(x.to(self.norm_dtype), *args, **kwargs)
            return result.to(x.dtype)


CASTS = (Casting, _CastingNorm)  # the mix-ins of this file


def cast_norms(model: nn.Module, half: torch.dtype, device: torch.device, listed: Collection[nn.Module]) -> None:
    """Sets the dtype of all norms but batch norms and `listed` ones, whose dtype the user has chosen.

    On a CPU torch sums the gradients of the weights in the dtype of the input: in bf16 they are up to 87% wrong.
    """
    for module in model.modules():
        if isinstance(module, (*_ONE_KERNEL, *_SEVERAL_KERNELS)) and module not in listed:
            in_half = device.type == "cuda" and isinstance(module, _ONE_KERNEL)
            norm = add_mixin(module, _CastingNorm)
            norm.norm_dtype = half if in_half else torch.float32
            norm.device_type = device.type


def keeps_fp32_weights(module: nn.Module) -> bool:
    """Returns whether the weights of the module are in fp32 although the model's are in half."""
    norms = (*_ONE_KERNEL, *_SEVERAL_KERNELS, BatchNorm)
    return isinstance(module, norms) and getattr(module, "norm_dtype", torch.float32) == torch.float32


OPS = (
    "linear", "matmul", "einsum", "conv1d", "conv2d", "conv3d", "conv_transpose2d", "scaled_dot_product_attention",
    "softmax", "log_softmax", "layer_norm", "rms_norm", "group_norm", "batch_norm", "normalize", "cosine_similarity",
    "gelu", "relu", "silu", "hardswish", "sigmoid", "tanh", "softplus",
    "add", "sub", "elementwise_mul", "div", "pow", "square", "exp", "log", "sqrt", "rsqrt", "mean", "sum", "var",
    "norm", "cumsum", "cat", "stack", "interpolate", "avg_pool2d", "max_pool2d", "adaptive_avg_pool2d",
)  # fmt: skip
NORM_OPS = ("layer_norm", "rms_norm", "group_norm")
_OTHER_NAMES = {
    "matmul": ("mm", "bmm", "addmm", "baddbmm"), "elementwise_mul": ("mul",), "div": ("truediv", "true_divide"),
    "cat": ("concat",),
}  # fmt: skip
_PADDLE_OPS = {"conv2d_transpose": "conv_transpose2d", "depthwise_conv2d": "conv2d", "cos_sim": "cosine_similarity"}
_PADDLE_LOSSES = {
    "cross_entropy", "cross_entropy2", "nll_loss", "sigmoid_cross_entropy_with_logits", "softmax_with_cross_entropy",
    "c_softmax_with_cross_entropy",
}  # fmt: skip
Function = Callable[..., Any]
_BLACK = "AMP.CUSTOM_BLACK_LIST"
_WHITE = "AMP.CUSTOM_WHITE_LIST"


def _functions(op: str) -> set[Function]:
    """torch's Python functions for this op, without in-place ones, whose result dtype is fixed."""
    names = [form.format(name) for name in (op, *_OTHER_NAMES.get(op, ())) for form in ("{}", "__{}__", "__r{}__")]
    return {getattr(home, name) for home in (torch, F, Tensor) for name in names if hasattr(home, name)}


_FIRST_ARGUMENT_ONLY = _functions("batch_norm")  # the other arguments are running statistics, updated in place


class CastingMode(TorchFunctionMode):
    """Runs each function of `dtypes` in its dtype; casts results to `result_dtype` if it is given.

    observer: receives function, arguments, result and dtype of each, for the AMP report.
    """

    observer: Callable[[Function, Any, Any, torch.dtype], None] | None = None

    def __init__(self, dtypes: dict[Function, torch.dtype], device_type: str, result_dtype: torch.dtype | None) -> None:
        super().__init__()
        self.dtypes = dtypes
        self.device_type = device_type
        self.result_dtype = result_dtype

    def __torch_function__(
        self, func: Function, types: Any, args: tuple[Any, ...] = (), kwargs: Values | None = None
    ) -> Any:
        kwargs = kwargs or {}
        dtype = self.dtypes.get(func)
        if dtype is None:
            return func(*args, **kwargs)
        if func in _FIRST_ARGUMENT_ONLY:
            args = (_cast(args[0], dtype), *args[1:])
        else:
            args, kwargs = tree_map(lambda value: _cast(value, dtype), (args, kwargs))
        with DisableTorchFunction(), torch.autocast(self.device_type, enabled=False):
            result = func(*args, **kwargs)
        if self.result_dtype is not None:
            result = _cast(result, self.result_dtype)
        if self.observer:
            self.observer(func, (args, kwargs), result, dtype)
        return result


def _cast(value: Any, dtype: torch.dtype) -> Any:
    return value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() else value


def cast_listed_ops(
    model: nn.Module,
    white: Iterable[str],
    black: Iterable[str],
    half: torch.dtype,
    device: torch.device,
    result_dtype: torch.dtype | None,
) -> set[nn.Module]:
    """Makes the listed ops and modules of `model` compute in `half` (white list) or fp32 (black list, which wins).

    An entry is one of `OPS`, a pattern for module paths (`blocks.11.*` is the whole block 11), or both (`norm`). In a
    listed module all ops of `OPS` change; ops outside of modules, such as the loss, do not.

    Returns:
        The modules in which an op of `NORM_OPS` is listed. On a CPU the white list has no effect on these ops.

    Raises UserError: an entry is neither an op nor a module.
    """
    white_ops, white_paths = _resolve(model, white, _WHITE)
    black_ops, black_paths = _resolve(model, black, _BLACK)
    listed = white_ops | white_paths | black_ops | black_paths
    if not listed:
        return set()
    disable_autocast_in_compiled_backward()
    kept = NORM_OPS if device.type == "cpu" else ()  # in fp32: see `cast_norms`
    tables = {
        "": _table(half, white_ops.difference(kept)) | _table(torch.float32, black_ops),
        _WHITE: _table(half, set(OPS).difference(kept)) | _table(torch.float32, black_ops),
        _BLACK: _table(torch.float32, OPS),
    }
    units = set(_units(model))
    lists: dict[str, str] = {}
    for path, module in list(model.named_modules()):
        outer = lists.get(path.rpartition(".")[0], "")
        lists[path] = outer
        if path in black_paths:
            lists[path] = _BLACK
        elif path in white_paths and outer != _BLACK:
            lists[path] = _WHITE
        if tables[lists[path]] and (module in units or lists[path] != outer):
            add_mixin(module, Casting).casting_mode = CastingMode(tables[lists[path]], device.type, result_dtype)
    norms = _table(half, NORM_OPS)
    return {module for path, module in model.named_modules() if norms.keys() & tables[lists[path]].keys()}


# Of timm's block with fused attention, but without `add` and `layer_norm`. With `softmax` attention is explicit.
_OPS_OF_BLOCKS = {"linear", "scaled_dot_product_attention", "softmax", "gelu", "elementwise_mul"}


def listed_in_blocks(model: nn.Module, white: Iterable[str], black: Iterable[str]) -> str:
    """An entry that changes an op in `model.blocks`, other than `add` and `layer_norm`, after its key; '' if none does.

    Raises UserError: as `cast_listed_ops`.
    """
    for key, entries in ((_WHITE, white), (_BLACK, black)):
        for entry in entries:
            ops, paths = _resolve(model, [entry], key)
            if ops & _OPS_OF_BLOCKS or any(path.startswith("blocks") for path in paths):
                return f"{key} has {entry}"
    return ""


def torch_name(op: str) -> str:
    """Torch's name of an op that has Paddle's, such as elementwise_add, reduce_mean and matmul_v2."""
    return _PADDLE_OPS.get(op) or re.sub(r"^(elementwise|reduce)_|_v2$", "", op)


def _resolve(model: nn.Module, entries: Iterable[str], key: str) -> tuple[set[str], set[str]]:
    """The ops and the module paths that the entries match."""
    paths = [path for path, _ in model.named_modules() if path]
    ops = set()
    matched = set()
    for written in entries:
        entry = name if (name := torch_name(written)) in OPS else written
        # The dot at the end lets `blocks.11.*` match block 11 itself.
        found = {path for path in paths if fnmatchcase(path, entry) or fnmatchcase(f"{path}.", entry)}
        matched |= found
        if entry in OPS:
            ops.add(entry)
        elif not found and not (key == _BLACK and entry in _PADDLE_LOSSES):  # the loss is always computed in fp32
            hint = did_you_mean(entry, (*OPS, *paths))
            if entry == "mul":
                hint = "; write linear for Paddle's, elementwise_mul for torch's"
            raise UserError(
                f"{key}: {entry[:80]} is neither an op nor a module of this model{hint} (ops: {', '.join(OPS)})"
            )
    return ops, matched


def _table(dtype: torch.dtype, ops: Iterable[str]) -> dict[Function, torch.dtype]:
    return {function: dtype for op in ops for function in _functions(op)}


def _units(module: nn.Module) -> list[nn.Module]:
    """The model and its parts: blocks, embeddings, norms, heads, which may be compiled or recomputed separately."""
    parts = [module]
    for child in module.children():
        parts += _units(child)[1:] if isinstance(child, nn.Sequential | nn.ModuleList) else [child]
    return parts
