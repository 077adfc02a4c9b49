"""What mixed precision does to a model: the types of its ops, the range of its activations and gradients."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from functorch.compile import make_boxed_func
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch.utils._python_dispatch import TorchDispatchMode

from engine.precision.non_finite import block_of, float_tensors

FP16_MAX = torch.finfo(torch.float16).max
FP16_TINIEST = 2.0**-24  # the smallest above 0; half of it and less rounds to 0

# The names that users list (engine/op_lists.py), where torch's own differ by more than an affix.
_LISTED_AS = {
    "addmm": "linear", "mm": "linear", "bmm": "matmul", "baddbmm": "matmul", "convolution": "conv2d",
    "mkldnn_convolution": "conv2d", "cudnn_batch_norm": "batch_norm", "_log_softmax": "log_softmax",
    "_fused_rms_norm": "rms_norm", "linalg_vector_norm": "norm", "max_pool2d_with_indices": "max_pool2d",
}  # fmt: skip
COMPOSED = {"einsum", "normalize", "conv1d", "conv3d", "interpolate"}  # seen under other ops' names
_MOVES = {
    "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "zeros", "zeros_like", "new_zeros",
    "ones", "ones_like", "full", "full_like", "fill_", "zero_", "clone", "copy_", "lift_fresh", "_unsafe_view",
    "bernoulli_", "scalar_tensor", "resize_",
}  # fmt: skip


def listed_name(op: str) -> str:
    """The name in the op lists of one of torch's inner ops: `_softmax_backward_data` is `softmax`."""
    if "scaled_dot_product" in op:  # whichever kernel
        return "scaled_dot_product_attention"
    op = op.removesuffix("_backward_data").removesuffix("_backward")
    return _LISTED_AS.get(op, op.removeprefix("native_").removeprefix("_"))


@dataclass(frozen=True, order=True)
class OpRun:
    """An op in a pass: torch's inner name, the type of its result, the module it belongs to ('' for the loss)."""

    backward: bool
    op: str
    dtype: str
    module: str


@dataclass(frozen=True)
class Peak:
    """The largest absolute value that an op gave in the forward pass."""

    value: float
    op: str
    module: str


class OpRecorder(TorchDispatchMode):
    """While entered, counts the ops of forward and backward passes through `model`, and finds the largest activations.

    A compiled model is not seen so. Compiled with the recorder's `backend` it runs its graphs op by op and is counted,
    without entering the recorder.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.counts: Counter[OpRun] = Counter()
        self.peaks: dict[str, Peak] = {}  # by module

    def __enter__(self) -> "OpRecorder":
        self._places = _Places(self.model)
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        self._places.remove()
        super().__exit__(*error)

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        result = func(*args, **(kwargs or {}))
        backward = torch._C._current_graph_task_id() != -1
        self._note(func, args, result, self._places.now(backward), backward)
        return result

    def _note(self, func: Any, args: tuple, result: Any, module: str, backward: bool) -> None:
        outputs = float_tensors(result)
        if not outputs or func.namespace != "aten" or _only_moves(func):
            return
        op, dtype = func._schema.name.removeprefix("aten::"), outputs[0].dtype
        if op == "_to_copy":
            if not args or args[0].dtype == dtype:
                return
            op = "cast"
        self.counts[OpRun(backward, op, str(dtype).removeprefix("torch."), module)] += 1
        if not backward and op != "cast" and outputs[0].numel():
            peak = Peak(outputs[0].abs().max().item(), op, module)
            if module not in self.peaks or not peak.value <= self.peaks[module].value:
                self.peaks[module] = peak

    def backend(self, graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable:
        """For `torch.compile`."""
        compilers = {f"{name}_compiler": partial(self._interpreted, backward=name == "bw") for name in ("fw", "bw")}
        return aot_autograd(**compilers)(graph, inputs)

    def _interpreted(self, graph: torch.fx.GraphModule, inputs: list[torch.Tensor], backward: bool) -> Callable:
        note = self._note

        class Noting(torch.fx.Interpreter):
            def run_node(self, node: torch.fx.Node) -> Any:
                arguments, _ = self.fetch_args_kwargs_from_env(node)
                result = super().run_node(node)
                if isinstance(node.target, torch._ops.OpOverload):
                    note(node.target, arguments, result, _place_of(node), backward)
                return result

        return make_boxed_func(Noting(graph).run)


class _Places:
    """Which module an op belongs to: in the backward pass, the one in which its forward op was recorded.

    Autograd numbers its nodes as the forward pass makes them.
    """

    def __init__(self, model: nn.Module) -> None:
        self._stack = [""]
        self._numbers, self._modules = [0], [""]
        self._handles = []
        for path, module in model.named_modules():
            self._handles.append(module.register_forward_pre_hook(partial(self._enter, path)))
            self._handles.append(module.register_forward_hook(self._leave))

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()

    def _enter(self, path: str, *_: Any) -> None:
        self._stack.append(path)
        self._mark()

    def _leave(self, *_: Any) -> None:
        self._stack.pop()
        self._mark()

    def _mark(self) -> None:
        self._numbers.append(torch.autograd._get_sequence_nr())
        self._modules.append(self._stack[-1])

    def now(self, backward: bool) -> str:
        if not backward:
            return self._stack[-1]
        node = torch._C._current_autograd_node()
        return self._modules[bisect_right(self._numbers, node._sequence_nr()) - 1] if node is not None else ""


def _place_of(node: torch.fx.Node) -> str:
    """The path of the module that a compiled graph's node came from."""
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
    paths = [path for path, _ in stack.values()]
    return paths[-1].removeprefix("L['self']").lstrip(".") if paths else ""


def _only_moves(func: Any) -> bool:
    """Views, copies, and what makes tensors without computing."""
    is_view = any(value.alias_info and not value.alias_info.is_write for value in func._schema.returns)
    return is_view or func._schema.name.removeprefix("aten::") in _MOVES


@dataclass(frozen=True)
class Underflow:
    """Of the gradients of a block's parameters that are not 0, the share that fp16 rounds to 0."""

    unscaled: float
    scaled: float


def gradient_underflow(model: nn.Module, loss_scale: float) -> dict[str, Underflow]:
    """By block, from the fp32 gradients of a pass; `scaled` with the loss scale. A block without gradients has none."""
    counts: dict[str, torch.Tensor] = {}
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            size = parameter.grad.abs()
            lost = [((size > 0) & (size * scale <= FP16_TINIEST / 2)).sum() for scale in (1, loss_scale)]
            counts[block_of(name)] = counts.get(block_of(name), 0) + torch.stack([(size > 0).sum(), *lost])
    totals = {block: count.tolist() for block, count in counts.items()}
    return {block: Underflow(lost / total, scaled / total) for block, (total, lost, scaled) in totals.items() if total}


def activation_peaks(peaks: dict[str, Peak]) -> dict[str, Peak]:
    """The largest by block; NaN is larger than all."""
    largest: dict[str, Peak] = {}
    for peak in peaks.values():
        block = block_of(peak.module)
        if block and (block not in largest or not peak.value <= largest[block].value):
            largest[block] = peak
    return largest
