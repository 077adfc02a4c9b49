"""A GPU without hardware: fake tensors on `cuda:0`, which have shapes, dtypes and a device, but no data.

Every op that reaches a device runs the code that CUDA would run: torch's own autocast, one `native_dropout`, flash
attention, fused optimizers. Only the C++ engine of the backward pass needs a GPU: `backward` replaces it.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import accumulate
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from datasets.batch import Batch
from engine.progress import EpochProgress, MetricSums
from engine.training.step import TrainState, train_steps
from utils.distributed import ProcessContext

GPU = torch.device("cuda:0")
CONTEXT = ProcessContext(0, 0, 1, 1, GPU)
_torch_linspace = torch.linspace
_PROPERTIES = SimpleNamespace(name="fake", multi_processor_count=132, major=9, minor=0)
_EVENT = SimpleNamespace(record=lambda: None, synchronize=lambda: None, query=lambda: False)


def _fused_sgd(*arguments: Any, **options: Any):
    """torch has fake implementations of the other fused optimizers only."""


torch.library.impl("aten::_fused_sgd_", "Meta", _fused_sgd)
torch.library.impl("aten::_fused_sgd_.tensor_lr", "Meta", _fused_sgd)


@contextmanager
def fake_gpu() -> Iterator[None]:
    """Inside, tensors can be created on `GPU`, and models trained."""
    with FakeTensorMode(), pytest.MonkeyPatch.context() as patch:
        generator = torch.Generator
        patch.setattr("torch.Generator", lambda device="cpu": generator())
        patch.setattr("torch.linspace", _linspace)
        # Before torch 2.15 it needs a driver.
        patch.setattr("torch._subclasses.fake_tensor.init_gpu_context", lambda device: None)
        patch.setattr("torch.cuda.is_available", lambda: True)  # else autocast disables itself
        patch.setattr("torch.cuda.is_bf16_supported", lambda: True)
        patch.setattr("torch.cuda.get_device_properties", lambda device: _PROPERTIES)
        patch.setattr("torch.cuda.is_current_stream_capturing", lambda: False)
        patch.setattr("torch.cuda.default_generators", [SimpleNamespace(manual_seed=lambda seed: None)])
        patch.setattr("torch.cuda.Event", lambda **options: _EVENT)
        patch.setattr("torch.utils._foreach_utils._foreach_supported_types", [Tensor, nn.Parameter, FakeTensor])
        patch.setattr(
            "torch._subclasses.fake_tensor.FakeTensorMode.__deepcopy__", lambda mode, memo: mode, raising=False
        )
        patch.setattr("torch.nn.Module.to", _module_to)
        patch.setattr("torch.nn.functional.scaled_dot_product_attention", fused_attention)
        patch.setattr("torch.Tensor.backward", backward)
        yield


class _Constants(list[Tensor]):
    """Fake tensors with one element each, whose values timm reads for its rates of drop-path."""

    def split(self, sizes: list[int]) -> list["_Constants"]:
        ends = list(accumulate(sizes))
        return [_Constants(self[end - size : end]) for end, size in zip(ends, sizes, strict=True)]

    def tolist(self) -> list[float]:
        return [value.item() for value in self]


def _linspace(start: float, end: float, steps: int, **options: Any) -> _Constants | Tensor:
    if options.get("device") == GPU:
        return _torch_linspace(start, end, steps, **options)
    return _Constants(torch.tensor(start + (end - start) * index / max(steps - 1, 1)) for index in range(steps))


def _module_to(
    module: nn.Module, device: torch.device | None = None, memory_format: torch.memory_format | None = None
) -> nn.Module:
    """torch's own method swaps tensors in place, which fake ones do not support. Memory formats stay."""
    if device is None:
        return module
    memo: dict[Tensor, Tensor] = {}
    for part in module.modules():
        for name, parameter in part._parameters.items():
            if parameter is not None and parameter not in memo:
                memo[parameter] = nn.Parameter(parameter.detach().to(device), parameter.requires_grad)
            part._parameters[name] = memo.get(parameter)
        for name, buffer in part._buffers.items():
            part._buffers[name] = None if buffer is None else buffer.to(device)
    return module


def fused_attention(q: Tensor, k: Tensor, v: Tensor, dropout_p: float = 0.0, **options: Any) -> Tensor:
    """The kernel that CUDA chooses for these dtypes, after autocast; cuDNN's on an H100 moves the same bytes."""
    assert not any(options.values()), options
    if torch.is_autocast_enabled("cuda"):
        q, k, v = (tensor.to(torch.get_autocast_dtype("cuda")) for tensor in (q, k, v))
    if q.dtype == torch.float32:
        return torch.ops.aten._scaled_dot_product_efficient_attention(q, k, v, None, True, dropout_p)[0]
    return torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, dropout_p)[0]


@torch.no_grad()
def backward(loss: Tensor, gradient: Tensor):
    """`loss.backward(gradient)` in this thread, with the ops of torch's engine: the sums of several gradients of one
    tensor, and over broadcast dimensions."""
    gradients: defaultdict[Any, dict[int, Tensor]] = defaultdict(dict)
    gradients[loss.grad_fn][0] = gradient
    waiting = _number_of_uses(loss.grad_fn)
    ready = [loss.grad_fn]
    while ready:
        node = ready.pop()
        received = gradients.pop(node, {})
        if not received:
            results = [None] * len(node.next_functions)
        elif hasattr(node, "variable"):
            _accumulate(node.variable, received[0])
            continue
        else:
            results = node(*(received.get(index) for index in range(len(node._input_metadata))))
            results = results if isinstance(results, tuple) else (results,)
        for result, (following, index) in zip(results, node.next_functions, strict=True):
            if following is None:
                continue
            if result is not None:
                _add(gradients[following], index, _fitted(result, following._input_metadata[index]))
            waiting[following] -= 1
            if not waiting[following]:
                ready.append(following)


def _number_of_uses(root: Any) -> Counter[Any]:
    uses = Counter()
    pending = [root]
    while pending:
        for following, _ in pending.pop().next_functions:
            if following is not None:
                if following not in uses:
                    pending.append(following)
                uses[following] += 1
    return uses


def _fitted(gradient: Tensor, expected: Any) -> Tensor:
    if gradient.shape != torch.Size(expected.shape):
        gradient = gradient.sum_to_size(expected.shape)
    return gradient.to(expected.dtype)


def _add(sums: dict[int, Tensor], index: int, gradient: Tensor):
    sums[index] = sums[index] + gradient if index in sums else gradient


def _accumulate(variable: Tensor, gradient: Tensor):
    if variable.grad is not None:
        variable.grad += gradient
    else:
        variable.grad = gradient if gradient.stride() == variable.stride() else gradient.clone()


def training_loop(state: TrainState, batches: Iterator[Batch], context: ProcessContext) -> Callable[[int], None]:
    """Returns a function that trains the given number of optimizer steps with the loop of a real run."""
    progress = EpochProgress(0, 10**6, 10**6, MetricSums(context.device))
    return lambda steps: train_steps(state, batches, progress, progress.done_steps + steps, lambda _: None)
