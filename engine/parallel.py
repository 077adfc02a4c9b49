"""How a training step runs: the processes share its work (one process, DDP, or FSDP), and `torch.compile`.

Only training is compiled. Evaluation, the search for non-finite modules and DDP's warm-up run the same modules eagerly:
they use other batch sizes and modes, and each would need a compilation of its own.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook, fp16_compress_hook
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from configs.schema import Parallel, Train
from configs.yaml_io import Values
from engine.progress import EpochProgress, Observer, TrainClock
from models.blocks import blocks_of, inside_stages, local_tensor, share_drop_path
from utils.device import untimed_convolutions
from utils.distributed import ProcessContext, gather_objects
from utils.errors import UserError, error_from, first_line
from utils.notes import Note
from utils.processes.launch import inherited_import_path
from utils.torch_compat import (
    BatchNorm,
    allow_recompilations,
    can_have_compiled,
    compile_cache_folders,
    is_compiled,
    on_next_compiled_call,
    process_group_timeout,
    select_compiled_kernels_by_time,
    set_process_group_timeout,
    split_graphs_at_ddp_buckets,
    tree_leaves,
    tree_map_only,
)

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule

_SHARD = "shard"
_REPLICATE = "replicate"
DtypeOf = Callable[[nn.Module], torch.dtype | None]
_HOOKS: dict[str, Callable[..., Any] | None] = {"none": None, "bf16": bf16_compress_hook, "fp16": fp16_compress_hook}


class Strategy:
    """The strategy of one process, and the interface of the others.

    `gather` and the `load_*_state` methods are collective calls: every rank makes them. A checkpoint has whole tensors,
    on rank 0 only.

    is_sharded: whether a rank holds a part of each parameter only, as a `DTensor`. Then all ranks must run every pass
        of the model.
    """

    is_sharded = False

    def shard(self, model: nn.Module, average: nn.Module | None, dtype_of: DtypeOf) -> str:
        """Shards the fp32 `model` and the `average` of its weights in place, before the optimizer is built.

        Called if `is_sharded`. Returns a description for the log.

        dtype_of: module -> dtype to which its gathered parameters are cast; None: they stay in fp32.
        Raises UserError: the model cannot be sharded.
        """
        raise NotImplementedError

    def wrap(self, model: nn.Module, images: Tensor) -> nn.Module:
        """The module whose forward pass training calls. `images` (B, C, S, S), B >= 2: a dummy batch for a warm-up."""
        return model

    def no_sync(self, wrapped: nn.Module) -> AbstractContextManager[Any]:
        """The context of a micro-step whose gradients are not exchanged yet."""
        return nullcontext()

    def total_norm(self, gradients: Iterable[Tensor]) -> Tensor:
        """The global L2 norm () of the gradients."""
        return nn.utils.get_total_norm(gradients)

    def evaluation(self, model: nn.Module) -> AbstractContextManager[Any]:
        """The context of passes of `model` without backward passes."""
        return torch.inference_mode()

    def gather_in_turn(self, model: nn.Module) -> Iterator[None]:
        """Gathers a sharded model unit by unit: in each iteration the parameters of one unit are whole. Collective."""
        yield

    def sync_buffers(self, model: nn.Module) -> None:
        """Copies rank 0's buffers (running statistics) to every rank before an evaluation."""

    def gather(self, content: Values) -> Values:
        """The content of a checkpoint with whole tensors, on rank 0: of a sharded model, copies in host memory."""
        return content

    def receive(self, tensor: Tensor, own: Tensor | None) -> Tensor:
        """A tensor of a checkpoint for this rank: a part of it if `own`, in its place, is sharded. Collective.

        tensor: whole on rank 0; a meta tensor, or a scalar, on the others.
        """
        return tensor

    def load_model_state(self, model: nn.Module, state: Values) -> None:
        own = model.state_dict()
        model.load_state_dict({name: self.receive(tensor, own.get(name)) for name, tensor in state.items()})

    def load_optimizer_state(self, optimizer: torch.optim.Optimizer, state: Values) -> None:
        """Restores the moments and the kind of momentum; weight decay, betas and other settings stay as they are.

        Raises ValueError: the state belongs to other parameters.
        """
        settings = [dict(group) for group in optimizer.param_groups]
        numbered = dict(enumerate(one for group in settings for one in group["params"]))  # as torch numbers them
        moments = {
            number: tree_map_only(Tensor, partial(self.receive, own=numbered.get(number)), values)
            for number, values in state["state"].items()
        }
        optimizer.load_state_dict(state | {"state": moments})
        for group, present in zip(optimizer.param_groups, settings, strict=True):
            present.pop("nesterov", None)  # before version 0.3, SGD had Nesterov momentum
            group.update(present)
        for parameter, moments in optimizer.state.items():
            optimizer.state[parameter] = tree_map_only(Tensor, partial(_copy_like, parameter), moments)


@dataclass(eq=False)
class DDP(Strategy):
    """Data parallelism: every rank holds the whole model, and gradients are averaged over the ranks.

    With COMM_HOOK each rank casts its gradients to 16 bits and divides them by the number of ranks; their sum has 16
    bits too. A value beyond the range of the dtype becomes infinite on all ranks, so that all of them skip the step.
    The hooks keep no state: resuming stays exact.
    """

    device: torch.device
    options: Parallel

    def wrap(self, model: nn.Module, images: Tensor) -> nn.Module:
        device_ids = [self.device] if self.device.type == "cuda" else None
        wrapped = DistributedDataParallel(
            model,
            device_ids=device_ids,
            bucket_cap_mb=self.options.bucket_mb,
            gradient_as_bucket_view=True,
            find_unused_parameters=bool(unused_parameters(model, images, model)),
        )
        if hook := _HOOKS[self.options.comm_hook]:
            wrapped.register_comm_hook(None, hook)
        # DDP regroups gradients after its first backward pass. With three or more ranks the grouping changes the last
        # bits of the sums, so that a resumed run would differ from an uninterrupted one.
        for _ in range(2):
            unused_parameters(model, images, wrapped)
        return wrapped

    def no_sync(self, wrapped: nn.Module) -> AbstractContextManager[Any]:
        assert isinstance(wrapped, DistributedDataParallel)
        return wrapped.no_sync()

    def sync_buffers(self, model: nn.Module) -> None:
        for buffer in model.buffers():
            dist.broadcast(buffer, src=0)

    def receive(self, tensor: Tensor, own: Tensor | None) -> Tensor:
        return _broadcast(tensor, self.device)


def unused_parameters(model: nn.Module, images: Tensor, wrapped: nn.Module) -> list[str]:
    """The names of the trained parameters without a gradient, by passes of the images that are then discarded."""
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    if not trained:
        return []
    buffers = [buffer.clone() for buffer in model.buffers()]
    with untimed_convolutions():
        outputs = tree_leaves(wrapped(images))  # a distilled model has two
        sum(output.sum() for output in outputs).backward()
    unused = [name for name, parameter in trained.items() if parameter.grad is None]
    model.zero_grad(set_to_none=True)
    for buffer, before in zip(model.buffers(), buffers, strict=True):
        buffer.copy_(before)
    return unused


def _ranks_per_host(context: ProcessContext) -> int:
    """The number of ranks on each host; a collective call. Raises UserError on all ranks if it is not the same."""
    counts = gather_objects(context.local_world_size, context)
    for rank, count in enumerate(counts):
        if count != counts[0]:
            problem = f"{context.name(rank)} is one of {count} on its host, {context.name(0)} one of {counts[0]}"
            raise UserError(
                f"PARALLEL.STRATEGY hsdp: {problem}; "
                "start the same number on each host, or set PARALLEL.SHARDS_PER_GROUP"
            )
    return counts[0]


class FSDP(Strategy):
    """Fully sharded data parallelism: torch's `fully_shard` (FSDP2).

    The ranks share the parameters, the gradients and the moments: all ranks one copy of the model (fsdp), or each group
    of `shards` ranks (hsdp). The parameters of a block are gathered before its passes; its gradients are averaged, and
    each rank keeps its part of them. As in DINOv3 and torchtitan, the order is gradient checkpointing, compilation,
    sharding, optimizer. Nothing is wrapped: paths, classes and names of the state dict stay. Other runs do not import
    these parts of torch, which take half a second.
    """

    is_sharded = True

    def __init__(self, options: Parallel, context: ProcessContext) -> None:
        """A collective call with hsdp. Raises UserError: the ranks cannot be divided into groups of equal size."""
        self.options = options
        self.device = context.device
        self.world_size = context.world_size
        self.is_main = context.is_main
        if options.strategy == "fsdp":
            self.shards = context.world_size
        else:
            self.shards = options.shards_per_group or _ranks_per_host(context)
        if self.world_size % self.shards:
            problem = f"{self.world_size} processes cannot be divided into groups of {self.shards}"
            raise UserError(f"PARALLEL.SHARDS_PER_GROUP: {problem}; set it to a divisor of {self.world_size}")

    def shard(self, model: nn.Module, average: nn.Module | None, dtype_of: DtypeOf) -> str:
        for path, module in model.named_modules():
            if isinstance(module, BatchNorm):
                problem = f"this model has batch norms ({path}), whose running statistics are not shared"
                raise UserError(f"PARALLEL.STRATEGY: {problem}; use ddp")
        # The backward pass starts with the parameters outside of blocks: they are not freed in between.
        units = self._shard_model(model, dtype_of, self.options.reshard_after_forward, reshard_rest=False)
        if average is not None:
            self._shard_model(average, dtype_of, reshard=True, reshard_rest=True)
        groups = "" if self.shards == self.world_size else f", {self.world_size // self.shards} groups"
        return f"{units} units over {self.shards} ranks each{groups}, gradients summed in float32"

    @cached_property
    def mesh(self) -> DeviceMesh:
        """The ranks that share a copy of the model, in hsdp for each copy. The first access is a collective call."""
        sizes = {_SHARD: self.shards}
        if self.options.strategy == "hsdp":
            sizes = {_REPLICATE: self.world_size // self.shards} | sizes
        mesh = init_device_mesh(self.device.type, tuple(sizes.values()), mesh_dim_names=tuple(sizes))
        if timeout := process_group_timeout(self.device):
            for name in sizes:
                set_process_group_timeout(timeout, mesh.get_group(name))
        return mesh

    def _shard_model(self, model: nn.Module, dtype_of: DtypeOf, reshard: bool, reshard_rest: bool) -> int:
        """Makes units: each block, each norm that stays in fp32, and the rest of the model; returns their number.

        reshard: whether the gathered parameters of blocks and norms are freed after a forward pass.
        reshard_rest: the same for the other gathered parameters.
        """
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        # Autocast casts the inputs, as it does without sharding. The default of reduce_dtype differs between versions.
        half = dtype_of(model)
        policy = MixedPrecisionPolicy(half, reduce_dtype=torch.float32, cast_forward_inputs=False)
        fp32 = MixedPrecisionPolicy(reduce_dtype=torch.float32, cast_forward_inputs=False)
        norms = [module for module in model.modules() if dtype_of(module) != half and list(module.parameters())]
        for norm in norms:
            fully_shard(norm, mesh=self.mesh, reshard_after_forward=reshard, mp_policy=fp32)
        blocks = _separate_blocks(model)
        for block in reversed(blocks):  # inner ones first
            fully_shard(block, mesh=self.mesh, reshard_after_forward=reshard, mp_policy=policy)
        fully_shard(model, mesh=self.mesh, reshard_after_forward=reshard_rest, mp_policy=policy)
        return len(blocks) + len(norms) + 1

    @contextmanager
    def no_sync(self, wrapped: nn.Module) -> Iterator[None]:
        """Gradients are always exchanged within a group: whole ones would take the memory of the whole model.

        Only the exchange between groups waits for the last micro-step.
        """
        from torch.distributed.fsdp import FSDPModule

        assert isinstance(wrapped, FSDPModule)
        wrapped.set_requires_all_reduce(False)
        try:
            yield
        finally:
            wrapped.set_requires_all_reduce(True)

    def total_norm(self, gradients: Iterable[Tensor]) -> Tensor:
        squared = nn.utils.get_total_norm([local_tensor(gradient) for gradient in gradients]).square()
        dist.all_reduce(squared, group=self.mesh.get_group(_SHARD))
        return squared.sqrt()

    @contextmanager
    def evaluation(self, model: nn.Module) -> Iterator[None]:
        """Tensors of the inference mode would fail in the next backward pass (pytorch#113203)."""
        try:
            with torch.no_grad():
                yield
        finally:
            for module in _units(model):  # parameters that stay gathered would miss the updates of the following steps
                module.reshard()

    def gather_in_turn(self, model: nn.Module) -> Iterator[None]:
        for unit in _units(model):
            unit.unshard()
            yield
            unit.reshard()

    def gather(self, content: Values) -> Values:
        from torch.distributed.tensor import DTensor

        def to_host(tensor: Tensor) -> Tensor | None:
            whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
            return whole.detach().to("cpu", copy=True) if self.is_main else None

        return tree_map_only(Tensor, to_host, content)

    def receive(self, tensor: Tensor, own: Tensor | None) -> Tensor:
        from torch.distributed.tensor import DTensor, distribute_tensor

        if not (isinstance(own, DTensor) and own.shape == tensor.shape):
            return _broadcast(tensor, self.device)
        return distribute_tensor(_on_device(tensor, self.device), own.device_mesh, own.placements)


def _copy_like(parameter: Tensor, value: Tensor) -> Tensor:
    """A copy outside of the file, with the strides of the parameter if the shapes are equal, as fused kernels need."""
    like = parameter if value.shape == parameter.shape else value
    return torch.empty_like(like, dtype=value.dtype, device=value.device).copy_(value)


def _separate_blocks(model: nn.Module) -> list[nn.Module]:
    """The blocks that share no parameter with another part. Others, such as CoaT's, belong to the rest of the model."""

    def uses(module: nn.Module) -> Counter[nn.Parameter]:  # the number of places in which each parameter is
        return Counter(parameter for _, parameter in module.named_parameters(remove_duplicate=False))

    total = uses(model)
    return [block for block in blocks_of(model) if all(total[key] == number for key, number in uses(block).items())]


def _units(model: nn.Module) -> "list[FSDPModule]":
    """Outer ones first."""
    from torch.distributed.fsdp import FSDPModule

    return [module for module in model.modules() if isinstance(module, FSDPModule)]


def _broadcast(tensor: Tensor, device: torch.device) -> Tensor:
    """Rank 0's tensor, on the device. Scalars, which all ranks have, stay on the CPU."""
    if tensor.dim():
        tensor = _on_device(tensor, device)
        dist.broadcast(tensor, src=0)
    return tensor


def _on_device(tensor: Tensor, device: torch.device) -> Tensor:
    """A contiguous tensor, uninitialized if `tensor` is a meta tensor."""
    if tensor.is_meta:
        return torch.empty(tensor.shape, dtype=tensor.dtype, device=device)
    return tensor.to(device).contiguous()


def build_strategy(options: Parallel, context: ProcessContext) -> Strategy:
    """Builds the strategy of the run; one process uses none. Raises UserError: as `FSDP`."""
    if context.world_size == 1:
        return Strategy()
    return DDP(context.device, options) if options.strategy == "ddp" else FSDP(options, context)


def compile_model(model: nn.Module, options: Train, context: ProcessContext, is_sharded: bool = False) -> str | None:
    """Marks `model` for compilation in its first pass; returns a description of the compiled part, or None.

    `default` compiles block by block: blocks of the same structure share one compilation of a few seconds. Blocks that
    drop samples without computing them have one for each number. A model without `blocks` is compiled as a whole, and
    any model with `model` and `max`; compile time grows with depth. On a GPU `max` also times several kernels per
    matrix product, and replays CUDA graphs where that is safe. Kernels round differently: a run that is resumed without
    torch's cache, or on another machine, may differ in the last bits. Parameters and state dict keep their names.

    A sharded model is always compiled block by block, between the gathering and the freeing of a block's parameters.
    Marking a module compiles nothing yet, so the model may be sharded before.
    Raises UserError: no working compiler.
    """
    if not options.compiles:
        return None
    check_compiler(context.device)
    select_compiled_kernels_by_time(not torch.are_deterministic_algorithms_enabled())
    blocks = list[nn.Module]()  # none: the model is compiled as a whole
    if is_sharded:
        blocks = blocks_of(model) or [model]
    elif options.compile == "default":
        blocks = list(getattr(model, "blocks", ()))
    if getattr(model, "grad_checkpointing", False):
        blocks = inside_stages(blocks)
    mode = None  # on a CPU torch's default is faster than its other kernels
    if options.compile == "max" and context.device.type != "cpu":
        # A replay of CUDA graphs overwrites the outputs of the previous one, so it would overwrite accumulated
        # gradients; graphs are not tried with DDP. Otherwise a step reads no logits and no gradients of earlier steps,
        # and needs no `cudagraph_mark_step_begin`: for torch a forward pass that follows a backward pass begins a step.
        graphs_are_safe = options.accum_iter == 1 and context.world_size == 1
        mode = "max-autotune" if graphs_are_safe else "max-autotune-no-cudagraphs"
    split_graphs_at_ddp_buckets(not blocks)  # a block ends before its gradients fill a bucket
    about = "the whole model"
    if blocks:
        about = f"{len(blocks)} blocks"
        share_drop_path(model)
        allow_recompilations(len(blocks))
    for part in blocks or [model]:
        part.compile(dynamic=False, mode=mode)
    return f"{about}, {mode}" if mode else about


class CompiledParts(Observer):
    """Tells which of the compiled modules of a model the first step calls. recomputes: by gradient checkpointing."""

    def __init__(self, model: nn.Module, recomputes: bool, clock: TrainClock, tell: Callable[[Note], None]) -> None:
        self._recomputes = recomputes
        self._clock = clock
        self._tell = tell
        self._parts = [module for module in model.modules() if is_compiled(module)]
        self._called: list[nn.Module] = []
        for part in self._parts:
            on_next_compiled_call(part, partial(self._called.append, part))

    def after_step(self, progress: EpochProgress) -> None:
        if self._parts:
            self._tell(self._note())
            self._parts = []

    def _note(self) -> Note:
        called = len(self._called)
        marked = len(self._parts)
        seconds = self._clock.lap_seconds
        text = f"{called} of {marked} marked modules ran compiled; the first step took {seconds:.1f} s"
        if called == marked:
            return Note("log", f"Compiled: {text}")
        reason = "the model does not call the others"
        if self._recomputes:
            reason = "MODEL.GRAD_CHECKPOINTING calls the modules inside the others"
        return Note("warning", f"{text}: {reason}; -compile=no saves the time of the compiler")


def run_eagerly() -> AbstractContextManager[None]:
    """The context in which compiled modules run eagerly."""
    return torch.compiler.set_stance("force_eager") if can_have_compiled() else nullcontext()


def check_compiler(device: torch.device) -> None:
    """Compiles a small function, so that a missing compiler or a damaged cache is found before training starts.

    Raises UserError: it cannot be compiled, or the cache belongs to another user.
    """
    for folder in compile_cache_folders():
        try:
            os.makedirs(folder, mode=0o700, exist_ok=True)
        except OSError as error:
            raise error_from(
                error,
                f"TRAIN.COMPILE: {folder}: cannot be created: {error.strerror}; "
                "set TORCHINDUCTOR_CACHE_DIR to a folder that can be written, or remove -compile",
            ) from None
        if {os.stat(folder).st_uid, os.lstat(folder).st_uid} != {os.geteuid()}:  # a link's owner can replace it
            problem = f"TRAIN.COMPILE: the cache {folder} belongs to another user, and torch runs code from it"
            raise UserError(
                f"{problem}; set TORCHINDUCTOR_CACHE_DIR, and TRITON_CACHE_DIR if it is set, to folders of your own"
            )
    try:
        with inherited_import_path():  # torch asks Python processes which vector instructions work
            torch.compile(lambda tensor: tensor.sin() + 1)(torch.zeros(8, device=device))
    except Exception as error:  # of many types: a missing C++ compiler, no Triton, a read-only folder
        reason = first_line(getattr(error, "inner_exception", error))
        raise error_from(
            error,
            f"TRAIN.COMPILE: torch cannot compile: {reason}; "
            "install g++, delete a damaged cache (/tmp/torchinductor_*), or remove -compile",
        ) from error
