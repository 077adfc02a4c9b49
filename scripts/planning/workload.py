"""Parameters, FLOPs and bytes of a training step, read from the model on torch's meta device, on any machine.

Tensors on the meta device have no memory. A real forward and backward pass runs there on a batch of shapes. Every
storage that an op makes is counted until its last reference is gone: then an allocator can use it again. The figure is
valid for any model, with and without gradient checkpointing. For a plain ViT it is near 34 x tokens x width x depth
bytes per image (Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", 2022).

Dtypes are as under autocast on a GPU. Attention keeps the tensors of a fused kernel: its inputs, its output, and one
fp32 value per query and head. Dropout keeps a mask of one byte per value. A compiled model keeps less.
"""

import warnings
import weakref
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode

from configs.schema import Config, Data
from engine.precision.policy import Precision
from engine.run.flops import count_parameters, training_flops
from engine.training.optimizer import SHARDED_OPTIMIZERS, moments_per_parameter
from models.blocks import blocks_of
from models.build import build_model
from models.kernels import EXPLICIT
from models.tuning import adapter_size
from utils.errors import UserError
from utils.torch_compat import BatchNorm, DispatchMode, backward_in_function_mode, tree_leaves, tree_map_only

BATCHES = (16, 32)  # images; memory grows linearly between them
_META = torch.device("meta")
# The ops of image models, from https://docs.pytorch.org/docs/stable/amp.html.
_IN_HALF = {"linear", "conv1d", "conv2d", "conv3d", "matmul", "__matmul__", "bmm", "baddbmm", "addmm", "einsum"}
_IN_FP32 = {"layer_norm", "group_norm", "softmax", "log_softmax", "cross_entropy"}


class PassMemory(NamedTuple):
    """Bytes of the passes besides weights, gradients and moments."""

    per_image: float  # activations
    fixed: float  # for any batch size, such as weights that autocast casts


class Workload(NamedTuple):
    """A training step of one model with one set of options."""

    parameters: int
    trained: int  # parameters with a gradient
    block: int  # parameters of the largest block
    rest: int  # parameters outside of all blocks
    flops_per_image: int  # of the forward and backward pass, without recomputation
    passes: dict[bool, PassMemory]  # by whether the blocks are checkpointed; without True if the model cannot do it
    moments: float  # values per trained parameter that the optimizer keeps
    has_average: bool  # on the device
    sharding_problem: str | None  # the part that FSDP and HSDP do not support
    precision: Precision


def measure_workload(config: Config) -> Workload:
    """Builds the model on the meta device, counts its FLOPs, and runs its passes there.

    Drop-path is off: it would save an amount of memory and time that changes from step to step.

    Raises:
        UserError: the model or the optimizer cannot be built, or its passes do not run on the meta device.
    """
    amp = config.amp.model_copy(update={"dtype": config.amp.dtype or "float16"})  # the default of a GPU
    config = config.with_model(pretrained=None, droppath=0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        precision = Precision(amp, _META)
        model, memory = _measured(config, precision, checkpointing=False)
        passes = {False: memory}
        if hasattr(model, "set_grad_checkpointing"):
            try:
                _, passes[True] = _measured(config, precision, checkpointing=True)
            except UserError:
                if config.model.grad_checkpointing:
                    raise
        flops = training_flops(model, config.data)
    blocks = _block_sizes(model)
    parameters, trained = count_parameters(model)
    problems = {
        "MODEL.TUNE lora": adapter_size(model) > 0,
        "AMP.LEVEL O3": precision.level == "O3",
        "batch norms, which this model has": any(isinstance(module, BatchNorm) for module in model.modules()),
        config.train.optimizer.name: config.train.optimizer.name.lower() not in SHARDED_OPTIMIZERS,
    }
    return Workload(
        parameters=parameters,
        trained=trained,
        block=max(blocks, default=0),
        rest=parameters - sum(blocks),
        flops_per_image=flops,
        passes=passes,
        moments=moments_per_parameter(config.train),
        has_average=config.train.model_ema,
        sharding_problem=next((problem for problem, is_present in problems.items() if is_present), None),
        precision=precision,
    )


def _measured(config: Config, precision: Precision, checkpointing: bool) -> tuple[nn.Module, PassMemory]:
    """The model, and the memory of its passes."""
    options = config.with_model(grad_checkpointing=checkpointing)
    with _META:
        model, _ = build_model(options.model, options.data, _META)
    half = precision.dtype if precision.level in ("O1", "O2") else None
    try:
        copy = precision.compute_copy(model)
        return model, measure_passes(copy, config.data, half, config.model.attention == EXPLICIT)
    except Exception as error:  # a model may do anything that tensors without memory do not support
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise UserError(
            f"MODEL.NAME: {config.model.name} does not run without memory ({reason}); measure it with -profile"
        ) from error


def _block_sizes(model: nn.Module) -> list[int]:
    """Parameters of each block, without the blocks inside it."""
    counted: set[nn.Parameter] = set()
    sizes = []
    for block in reversed(blocks_of(model)):  # inner ones first
        own = set(block.parameters()) - counted
        counted |= own
        sizes.append(sum(map(torch.numel, own)))
    return sizes


def measure_passes(model: nn.Module, data: Data, half: torch.dtype | None, explicit_attention: bool) -> PassMemory:
    """The memory of a micro-step of `model`, which is on the meta device, in training mode.

    half: the dtype of autocast; None without autocast.
    """
    dtype, shape = next(model.parameters()).dtype, (data.image_channels, data.image_size, data.image_size)
    ops, (small, large) = _GPUOps(half, explicit_attention), BATCHES
    for parameter in filter(lambda parameter: parameter.requires_grad, model.train().parameters()):
        parameter.register_post_accumulate_grad_hook(lambda tensor: setattr(tensor, "grad", None))

    def peak_bytes(batch_size: int) -> int:
        """The largest sum of all storages that the passes make. Gradients of weights are freed at once."""
        images = torch.empty(batch_size, *shape, dtype=dtype, device=_META)
        with _LiveBytes() as live, ops:
            outputs = tree_leaves(model(images))  # a distilled model has two
            backward_in_function_mode([output.float().sum() for output in outputs])
        return live.peak

    low, high = map(peak_bytes, BATCHES)
    per_image = (high - low) / (large - small)
    return PassMemory(per_image, max(0.0, low - small * per_image))


class _LiveBytes(DispatchMode):
    """Sums the bytes of the storages that are in use. Earlier tensors are not counted."""

    def __init__(self) -> None:
        super().__init__()
        self.peak = 0
        self._sizes: dict[int, int] = {}

    def __torch_dispatch__(self, op: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        inputs = {id(storage) for storage in _storages((args, kwargs))}
        result = op(*args, **(kwargs or {}))
        for storage in _storages(result):
            if id(storage) not in inputs and id(storage) not in self._sizes:
                self._sizes[id(storage)] = storage.nbytes()
                self.peak = max(self.peak, sum(self._sizes.values()))
                weakref.finalize(storage, self._sizes.pop, id(storage)).atexit = False
        return result


def _storages(values: Any) -> list[torch.UntypedStorage]:
    return [value.untyped_storage() for value in tree_leaves(values) if isinstance(value, torch.Tensor)]


class _GPUOps(TorchFunctionMode):
    """Autocast, fused attention and dropout of a GPU: the meta device has none of them."""

    def __init__(self, half: torch.dtype | None, explicit_attention: bool) -> None:
        super().__init__()
        self.fuses_attention = not explicit_attention
        in_half = _IN_HALF | ({F.scaled_dot_product_attention.__name__} if self.fuses_attention else set())
        self.dtypes = dict.fromkeys(in_half, half) | dict.fromkeys(_IN_FP32, torch.float32) if half else {}

    def __torch_function__(self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs, dtype = kwargs or {}, self.dtypes.get(getattr(function, "__name__", ""))
        if dtype:
            args, kwargs = tree_map_only(
                torch.Tensor, lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor, (args, kwargs)
            )
        if function is F.scaled_dot_product_attention and self.fuses_attention:
            return _FusedAttention.apply(*args[:3], kwargs.get("attn_mask"))
        return _dropout(*args, **kwargs) if function is F.dropout else function(*args, **kwargs)


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
