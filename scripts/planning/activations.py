"""Memory of the passes of a training step, measured on torch's meta device: tensors without memory, on any machine.

A real forward and backward pass runs on a batch of shapes. Every storage that an op makes is counted until its last
reference is gone: then an allocator can use it again. The figure is valid for any model, with and without gradient
checkpointing. For a plain ViT it is near 34 x tokens x width x depth bytes per image (Korthikanti et al., "Reducing
Activation Recomputation in Large Transformer Models", 2022).

Dtypes are as under autocast on a GPU. Attention keeps the tensors of a fused kernel: its inputs, its output, and one
fp32 value per query and head. Dropout keeps a mask of one byte per value. A compiled model keeps less.
"""

import weakref
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode

from configs.schema import Data
from utils.torch_compat import DispatchMode, backward_in_function_mode, tree_leaves, tree_map_only

BATCHES = (16, 32)  # images; memory grows linearly between them
# The ops of image models, from https://docs.pytorch.org/docs/stable/amp.html.
_IN_HALF = {"linear", "conv1d", "conv2d", "conv3d", "matmul", "__matmul__", "bmm", "baddbmm", "addmm", "einsum"}
_IN_FP32 = {"layer_norm", "group_norm", "softmax", "log_softmax", "cross_entropy"}


class PassMemory(NamedTuple):
    """Bytes of the passes besides weights, gradients and moments.

    per_image: activations. fixed: for any batch size, such as weights that autocast casts.
    """

    per_image: float
    fixed: float


def measure_passes(model: nn.Module, data: Data, half: torch.dtype | None, explicit_attention: bool) -> PassMemory:
    """The memory of a micro-step of `model`, which is on the meta device, in training mode.

    Args:
        half: the dtype of autocast; None without autocast.
    """
    small, large = BATCHES
    low, high = (_peak_bytes(model, data, size, _GPUOps(half, explicit_attention)) for size in BATCHES)
    per_image = (high - low) / (large - small)
    return PassMemory(per_image, max(0.0, low - small * per_image))


def _peak_bytes(model: nn.Module, data: Data, batch_size: int, ops: "_GPUOps") -> int:
    """The largest sum of all storages that the passes make. Gradients of weights are freed at once."""
    dtype = next(model.parameters()).dtype
    images = torch.empty(batch_size, data.image_channels, data.image_size, data.image_size, dtype=dtype, device="meta")
    for parameter in filter(lambda parameter: parameter.requires_grad, model.parameters()):
        parameter.register_post_accumulate_grad_hook(lambda tensor: setattr(tensor, "grad", None))
    with _LiveBytes() as live, ops:
        outputs = model.train()(images)  # a distilled model has two
        backward_in_function_mode([output.float().sum() for output in tree_leaves(outputs)])
    return live.peak


class _LiveBytes(DispatchMode):
    """Sums the bytes of the storages that are in use. Earlier tensors are not counted."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, op: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        inputs = set(map(id, self._storages((args, kwargs))))
        result = op(*args, **(kwargs or {}))
        for storage in self._storages(result):
            key, size = id(storage), storage.nbytes()
            if key not in self._known and key not in inputs:
                self._known.add(key)
                self.bytes += size
                self.peak = max(self.peak, self.bytes)
                weakref.finalize(storage, self._free, key, size).atexit = False
        return result

    @staticmethod
    def _storages(values: Any) -> list[torch.UntypedStorage]:
        return [value.untyped_storage() for value in tree_leaves(values) if isinstance(value, torch.Tensor)]

    def _free(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.bytes -= size


class _GPUOps(TorchFunctionMode):
    """Autocast, fused attention and dropout of a GPU: the meta device has none of them."""

    def __init__(self, half: torch.dtype | None, explicit_attention: bool) -> None:
        super().__init__()
        self.half, self.explicit_attention = half, explicit_attention

    def __torch_function__(self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs, name = kwargs or {}, getattr(function, "__name__", "")
        is_fused = function is F.scaled_dot_product_attention and not self.explicit_attention
        if self.half and (name in _IN_HALF or is_fused):
            args, kwargs = _cast(args, kwargs, self.half)
        elif self.half and name in _IN_FP32:
            args, kwargs = _cast(args, kwargs, torch.float32)
        if is_fused:
            return _FusedAttention.apply(*args[:3], kwargs.get("attn_mask"))
        if function is F.dropout:
            return _dropout(*args, **kwargs)
        return function(*args, **kwargs)


def _cast(args: tuple, kwargs: dict, dtype: torch.dtype) -> tuple[tuple, dict]:
    def cast(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(dtype) if tensor.is_floating_point() else tensor

    return tree_map_only(torch.Tensor, cast, (args, kwargs))


class _FusedAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        # (B, heads, N, C) that is stored as (B, N, heads, C), as the kernels store it.
        shape = (*q.shape[:-3], q.shape[-2], q.shape[-3], v.shape[-1])
        output = q.new_empty(shape).transpose(-3, -2)
        ctx.save_for_backward(q, k, v, mask, output, q.new_empty(q.shape[:-1], dtype=torch.float32))
        return output

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        q, k, v, mask = ctx.saved_tensors[:4]
        needs_mask = mask is not None and ctx.needs_input_grad[3]
        return (*map(torch.empty_like, (q, k, v)), torch.empty_like(mask) if needs_mask else None)


def _dropout(input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
    return torch.native_dropout(input, p, True)[0] if training and p > 0 else input
