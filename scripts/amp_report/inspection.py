"""Effects of mixed precision on a model: the dtypes of its ops, and the range of its activations and gradients."""

from bisect import bisect_right
from collections import Counter
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn

from engine.precision.non_finite import block_of, float_tensors
from utils.torch_compat import (
    DispatchMode,
    current_sequence_number,
    in_backward_pass,
    next_sequence_number,
    op_name,
    returns_view,
)

FP16_MAX = torch.finfo(torch.float16).max
FP16_MIN_SUBNORMAL = 2.0**-24  # fp16 rounds half of it, and all smaller values, to 0

# The op lists (engine/precision/op_lists.py) use other names than ATen for these ops.
_LIST_NAMES = {
    "addmm": "linear", "mm": "linear", "bmm": "matmul", "baddbmm": "matmul", "convolution": "conv2d",
    "mkldnn_convolution": "conv2d", "cudnn_batch_norm": "batch_norm", "_log_softmax": "log_softmax",
    "_fused_rms_norm": "rms_norm", "linalg_vector_norm": "norm", "max_pool2d_with_indices": "max_pool2d",
}  # fmt: skip
_COPY_OPS = {
    "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "zeros", "zeros_like", "new_zeros",
    "ones", "ones_like", "full", "full_like", "fill_", "zero_", "clone", "copy_", "lift_fresh", "_unsafe_view",
    "bernoulli_", "scalar_tensor", "resize_",
}  # fmt: skip


def listed_name(op: str) -> str:
    """The name of an ATen op in the op lists: `_softmax_backward_data` -> `softmax`."""
    if "scaled_dot_product" in op:  # any of its kernels
        return "scaled_dot_product_attention"
    op = op.removesuffix("_backward_data").removesuffix("_backward")
    return _LIST_NAMES.get(op, op.removeprefix("native_").removeprefix("_"))


class OpRun(NamedTuple):
    """An op in a pass: ATen name, dtype of its result, path of its module ('' for the loss)."""

    backward: bool
    op: str
    dtype: str
    module: str


class Peak(NamedTuple):
    """The largest absolute value of an op's result in the forward pass."""

    value: float
    op: str
    module: str


class OpRecorder(DispatchMode):
    """Counts the ops of forward and backward passes of `model` and finds its largest activations. A context manager.

    A backward op belongs to the module of its forward op. Autograd numbers its nodes in the order of the forward pass:
    `_numbers` has the first number of each section of the forward pass, `_modules` the module of the section.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.counts: Counter[OpRun] = Counter()
        self.peaks: dict[str, Peak] = {}  # by block; NaN counts as the largest value
        self._stack, self._numbers, self._modules = [""], [0], [""]

    def __enter__(self) -> "OpRecorder":
        self._hooks = ExitStack()
        for path, module in self.model.named_modules():
            self._hooks.enter_context(module.register_forward_pre_hook(partial(self._enter_module, path)))
            self._hooks.enter_context(module.register_forward_hook(self._leave_module))
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        self._hooks.close()
        super().__exit__(*error)

    def _enter_module(self, path: str, *_: Any) -> None:
        self._stack.append(path)
        self._start_section()

    def _leave_module(self, *_: Any) -> None:
        self._stack.pop()
        self._start_section()

    def _start_section(self) -> None:
        self._numbers.append(next_sequence_number())
        self._modules.append(self._stack[-1])

    def _module(self, backward: bool) -> str:
        if not backward:
            return self._stack[-1]
        number = current_sequence_number()
        return "" if number is None else self._modules[bisect_right(self._numbers, number) - 1]

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        result = func(*args, **(kwargs or {}))
        outputs = float_tensors(result)
        if outputs and func.namespace == "aten" and not returns_view(func) and op_name(func) not in _COPY_OPS:
            self._record(op_name(func), args, outputs)
        return result

    def _record(self, op: str, args: tuple, outputs: list[torch.Tensor]) -> None:
        backward, dtype = in_backward_pass(), outputs[0].dtype
        module = self._module(backward)
        if op == "_to_copy":
            if args[0].dtype == dtype:
                return
            op = "cast"
        self.counts[OpRun(backward, op, str(dtype).removeprefix("torch."), module)] += 1
        block = block_of(module)
        if block and not backward and op != "cast" and outputs[0].numel():
            peak = Peak(outputs[0].abs().max().item(), op, module)
            if block not in self.peaks or not peak.value <= self.peaks[block].value:
                self.peaks[block] = peak


def gradient_underflow(model: nn.Module, loss_scale: float) -> dict[str, tuple[float, float]]:
    """The shares of a block's non-zero parameter gradients that fp16 rounds to 0, without and with the loss scale.

    By block, from the fp32 gradients of a pass. Omits blocks without gradients.
    """
    counts: dict[str, torch.Tensor] = {}
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            size = parameter.grad.abs()
            lost = [((size > 0) & (size * scale <= FP16_MIN_SUBNORMAL / 2)).sum() for scale in (1, loss_scale)]
            counts[block_of(name)] = counts.get(block_of(name), 0) + torch.stack([(size > 0).sum(), *lost])
    totals = {block: count.tolist() for block, count in counts.items()}
    return {block: (lost / total, scaled / total) for block, (total, lost, scaled) in totals.items() if total}
