"""Private names of torch, one function or alias each; checked: torch 2.10, 2.11, 2.15.

`torch._foreach_*` is used directly elsewhere: optimizers outside of torch (timm's among them) rely on these names.
"""

import importlib
import logging
import os
import platform
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from multiprocessing.process import BaseProcess
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves as tree_leaves  # nested tuples, lists and dicts
from torch.utils._pytree import tree_map as tree_map
from torch.utils._pytree import tree_map_only as tree_map_only

BatchNorm = nn.modules.batchnorm._BatchNorm  # the base class of all batch norms
# Context manager: calls inside it reach no `TorchFunctionMode`. An alias, because torch.compile recognizes the class.
DisableTorchFunction = torch._C.DisableTorchFunction
# (timeout, process group, by default the whole run's). `dist.set_timeout` is public; torch 2.10 lacks it.
set_process_group_timeout = getattr(dist, "set_timeout", None) or dist.distributed_c10d._set_pg_timeout


def process_group_timeout(device: torch.device, group: dist.ProcessGroup | None = None) -> timedelta | None:
    """The timeout of the default process group or another, for tensors of this device; None: its backend has none."""
    own: Any = group or dist.group.WORLD
    options: Any = own._get_backend(device).options
    return options and options._timeout


def loss_scale(scaler: torch.amp.GradScaler) -> Tensor:
    """The loss scale, a tensor that may be modified in place; None before the first `scaler.scale(tensor)`."""
    return scaler._scale  # type: ignore[return-value]


def growth_tracker(scaler: torch.amp.GradScaler) -> Tensor:
    """The number of consecutive steps without overflow (int32), may be modified in place; None as for `loss_scale`."""
    return scaler._growth_tracker  # type: ignore[return-value]


# `GradScaler.update` in one op: (scale, growth tracker, found_inf, growth factor, backoff factor, growth interval).
update_scale = torch._amp_update_scale_


def fused_lerp_(starts: list[Tensor], ends: list[Tensor], weight: float, skipped: Tensor) -> None:
    """start += weight * (end - start) in one kernel for all tensors, unless `skipped`, a bool () on their device.

    torch's fused lerp cannot be skipped on the device. Gradient ascent on `end` with a weight decay of 1 is the same.
    All tensors have one dtype.
    """
    rates: dict[str, Any] = {"lr": weight, "weight_decay": 1.0, "momentum": 0.0, "dampening": 0.0}
    switches: dict[str, Any] = {"nesterov": False, "maximize": True, "is_first_step": False}
    torch._fused_sgd_(starts, ends, [], **rates, **switches, found_inf=skipped.float())


def unscales_in_step(optimizer: torch.optim.Optimizer) -> bool:
    """Returns whether the step divides gradients by `optimizer.grad_scale`, and skips if `optimizer.found_inf`."""
    return getattr(optimizer, "_step_supports_amp_scaling", False)


def is_compiled(module: nn.Module) -> bool:
    """Returns whether `module.compile()` was called."""
    return module._compiled_call_impl is not None


def on_next_compiled_call(module: nn.Module, act: Callable[[], None]) -> None:
    """Calls `act` when the compiled `module` is called for the next time, and not after that."""
    run: Any = module._compiled_call_impl

    def call(*args: Any, **kwargs: Any) -> Any:
        module._compiled_call_impl = run
        act()
        return run(*args, **kwargs)

    module._compiled_call_impl = call


# The ops of `scaled_dot_product_attention`, and the place of the dropout rate among their arguments.
_ATTENTION = {
    torch.ops.aten._scaled_dot_product_cudnn_attention.default: 5,
    torch.ops.aten._scaled_dot_product_efficient_attention.default: 5,
    torch.ops.aten._scaled_dot_product_flash_attention.default: 3,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default: 3,
}


def is_attention_without_dropout(op: Any, arguments: tuple[Any, ...]) -> bool:
    """Returns whether a call of `op` is fused attention that draws no random numbers. arguments: without defaults."""
    return op in _ATTENTION and not any(arguments[_ATTENTION[op] : _ATTENTION[op] + 1])


# It warns of ops in place in compiled checkpoints: torch compiles them as ops that are not in place.
logging.getLogger("torch._higher_order_ops.wrap").addFilter(lambda record: "context_fn" not in str(record.msg))


# Ops that initialize weights. On the meta device torch runs them in Python, for which it imports sympy.
_OF_VALUES = {torch.ops.aten.clamp_, torch.ops.aten.erfinv_, torch.ops.aten.normal_, torch.ops.aten.uniform_}


class WithoutValues(TorchDispatchMode):
    """The context in which tensors have no values: ops that set them do nothing."""

    def __torch_dispatch__(self, op: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
        return arguments[0] if op.overloadpacket in _OF_VALUES else op(*arguments, **(keywords or {}))


_PRODUCTS = {torch.ops.aten.mm, torch.ops.aten.addmm, torch.ops.aten.bmm, torch.ops.aten.baddbmm}
_WITH_HIDDEN_PRODUCTS = {  # on a CPU; the last two of modules without gradients
    torch.ops.aten.mkldnn_rnn_layer,
    torch.ops.aten._native_multi_head_attention,
    torch.ops.aten._transformer_encoder_layer_fwd,
}


class ProductCounter(TorchDispatchMode):
    """The context of a forward pass that counts the FLOPs of products and convolutions, and of their gradients.

    A multiply-add counts as two. torch's own counter imports Triton, and runs the backward pass, too.

    Raises NotImplementedError: an op has products that it does not show.
    """

    flops = 0

    def __torch_dispatch__(self, op: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
        result = op(*arguments, **(keywords or {}))
        products = 0
        operands = arguments[:2]
        if op.overloadpacket in _PRODUCTS:
            operands = arguments[-2:]
            products = result.numel() * operands[1].shape[-2]
        elif op.overloadpacket == torch.ops.aten.convolution:
            is_transposed = arguments[6]
            products = (operands[0] if is_transposed else result).numel() * operands[1][0].numel()
        elif op.overloadpacket in _WITH_HIDDEN_PRODUCTS:
            raise NotImplementedError
        if products:
            self.flops += 2 * products * (1 + sum(operand.requires_grad for operand in operands))
        return result


def base_of(tensor: Tensor) -> Tensor:
    """The tensor of which this one is a view, else the tensor itself."""
    return tensor if tensor._base is None else tensor._base


def has_forward_hooks(module: nn.Module) -> bool:
    return bool(module._forward_hooks)


def hooks_of(module: nn.Module) -> tuple[dict[int, Any], ...]:
    """The module's hooks before and after its forward and backward pass; the dicts change with the hooks."""
    return module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks


_DYNAMO = "torch._dynamo"  # torch's compiler


def import_dynamo_late() -> None:
    """Lets torch import its compiler when something compiles; call it before torchvision and timm are imported.

    The compiler takes a quarter of the seconds of all imports. It is asked for a few names where nothing compiles: by
    torchvision's module of region pooling, by timm's Kron, and by torch's optimizers in each step. Until another name
    or module of it is asked for, `_LateModule` has these.
    """
    if _DYNAMO in sys.modules:
        return
    config = _LateModule(f"{_DYNAMO}.config")
    names = {"__path__": [], "graph_break": lambda: None, "disable": _disable}
    sys.modules[_DYNAMO] = _LateModule(_DYNAMO, **names, config=config)
    utils = _LateModule(f"{_DYNAMO}.utils")
    utils.__dict__["is_compile_supported"] = lambda device: utils.__getattr__("is_compile_supported")(device)
    sys.modules[utils.__name__] = utils
    sys.meta_path.insert(0, _LateModules())


def is_dynamo_late() -> bool:
    """Returns whether `import_dynamo_late` was called, and the compiler has not been imported."""
    return isinstance(sys.modules.get(_DYNAMO), _LateModule)


def _disable(function: Any = None, *arguments: Any, **keywords: Any) -> Any:
    """`torch._dynamo.disable`: no block calls the functions of these packages; a plugin's function may be compiled."""
    package, _, _ = getattr(function, "__module__", "").partition(".")
    if package in ("torch", "torchvision", "timm", "utils"):
        return function
    return import_dynamo().disable(function, *arguments, **keywords)


class _LateModule(ModuleType):
    """Has the place of a module until a name is asked for that it lacks."""

    def __init__(self, name: str, **names: Any) -> None:
        super().__init__(name)
        vars(self).update(names)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # asked of all modules, such as by `inspect`
            raise AttributeError(name)
        import_dynamo()
        return getattr(importlib.import_module(self.__name__), name)


class _LateModules(MetaPathFinder, Loader):
    """Imports a module of the compiler after the compiler itself, in whose place there is a `_LateModule`."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if not name.startswith(f"{_DYNAMO}."):
            return None
        import_dynamo()
        self._module = importlib.import_module(name)
        self._spec = self._module.__spec__
        vars(self._module)["__spec__"] = None  # else Python would run the module again
        return ModuleSpec(name, self)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        """The module has run."""
        vars(module)["__spec__"] = self._spec


def import_dynamo() -> Any:
    """The compiler, with the settings that were made before its import."""
    late = sys.modules.get(_DYNAMO)
    if not isinstance(late, _LateModule):
        return importlib.import_module(_DYNAMO)
    del sys.modules[_DYNAMO], sys.modules[f"{_DYNAMO}.utils"]
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _LateModules)]
    dynamo: Any = importlib.import_module(_DYNAMO)
    for name, value in vars(late.config).items():
        if not name.startswith("__"):
            setattr(dynamo.config, name, value)
    return dynamo


def can_have_compiled() -> bool:
    """Returns whether the compiler has been imported."""
    return not isinstance(sys.modules.get(_DYNAMO), _LateModule | None)


def disable_autocast_in_compiled_backward() -> None:
    """Makes compiled backward passes run without autocast, as eager ones do."""
    import torch._functorch.config

    torch._functorch.config.backward_pass_autocast = "off"


def allow_recompilations(number: int) -> None:
    """Allows at least this many versions of a function, such as one for each rate of drop-path; by default 8."""
    import torch._dynamo.config as config

    config.recompile_limit = max(config.recompile_limit, number)


def split_graphs_at_ddp_buckets(enabled: bool) -> None:
    """Sets whether a graph compiled under DistributedDataParallel ends where a bucket of gradients is full."""
    import torch._dynamo.config

    torch._dynamo.config.optimize_ddp = enabled


def select_compiled_kernels_by_time(enabled: bool) -> None:
    """Sets whether the compiler may time kernels and padded products to choose among them."""
    import torch._inductor.config as config

    if hasattr(config, "deterministic"):  # not in all builds of torch 2.10
        config.deterministic = not enabled


def compile_cache_folders() -> list[str]:
    """The folders from which torch.compile runs code; they may not exist yet."""
    mask = os.umask(0o077)  # the first import of the compiler makes one of them
    try:
        from torch._inductor.runtime.cache_dir_utils import default_cache_dir
    finally:
        os.umask(mask)

    folder = os.environ.get("TORCHINDUCTOR_CACHE_DIR") or default_cache_dir()
    return [folder, os.environ.get("TRITON_CACHE_DIR") or folder]


def shared_zeros(shape: tuple[int, ...]) -> Tensor:
    """Zeros of torch.uint8 in new shared memory; raises RuntimeError if it is full."""
    num_bytes = torch.Size(shape).numel()
    return torch.empty(0, dtype=torch.uint8).set_(torch.UntypedStorage._new_shared(num_bytes)).view(shape)


def start_loader(loader: Any, wait: Callable[[Any, Callable[[], Any]], Any]) -> Iterator[Any]:
    """`iter(loader)`, in which `wait(iterator, receive)` is each wait for a message of a worker: `receive()`.

    Persistent workers answer before they start again.
    """

    def hook(iterator: Any) -> None:
        own = weakref.ref(iterator)
        receive = type(iterator)._get_data
        iterator._get_data = lambda: wait(own(), lambda: receive(own()))

    if loader._iterator is not None:
        hook(loader._iterator)
    iterator = iter(loader)
    hook(iterator)
    return iterator


def loader_workers(iterator: Any) -> list[BaseProcess]:
    """The worker processes of a DataLoader's iterator."""
    return list(iterator._workers)


def release_loader_event(iterator: Any) -> None:
    """Frees the lock of the event that ends workers, which a killed one may hold: torch waits for it forever."""
    lock = iterator._workers_done_event._cond._lock
    lock.acquire(timeout=1.0)
    lock.release()


def multiplies_bfloat16_with_onednn() -> bool:
    """Otherwise torch multiplies bfloat16 matrices on one core: 93 times slower than float32 on an AVX2 CPU."""
    return not torch.backends.mkldnn.is_available() or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def has_bfloat16_instructions() -> bool:
    """Otherwise the CPU emulates bfloat16, 2 to 4 times slower than float32, or as above. torch tells of x86 alone."""
    if platform.machine() != "x86_64":
        return multiplies_bfloat16_with_onednn()
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
