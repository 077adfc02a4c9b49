"""The fp32 weights that the optimizer updates, the half weights of the module that computes, and the average."""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

import torch
from timm.utils import ModelEmaV3
from torch import Tensor, nn

from engine.precision.op_lists import keeps_fp32_weights
from models.blocks import local_tensor
from utils.torch_compat import BatchNorm, fused_lerp_

_ALIGNMENT = 16  # elements


def half_copy(model: nn.Module, half: torch.dtype, half_buffers: bool) -> nn.Module:
    """A copy of `model` with weights in `half` that shares its fp32 norms.

    It shares the buffers too, or has them as `model.to(half)` would, except batch norms: running statistics need fp32.
    timm and transformers keep some in fp32: the sines of DINOv3's frequencies in bf16 are wrong by up to 0.02.
    """
    norms = [module for module in model.modules() if keeps_fp32_weights(module)]
    own = [one for norm in norms for one in (*norm.parameters(recurse=False), *norm.buffers(recurse=False))]
    kept = {id(one): one for one in own}
    memo = kept | {id(buffer): buffer for buffer in model.buffers()}
    for parameter in model.parameters():
        halved = nn.Parameter(parameter.detach().to(half), requires_grad=parameter.requires_grad)
        memo.setdefault(id(parameter), halved)

    def to_half(tensor: Tensor) -> Tensor:
        return tensor.to(half) if tensor.is_floating_point() and id(tensor) not in kept else tensor

    copied = copy.deepcopy(model, memo)
    if half_buffers:
        for module in copied.modules():
            if [*module.buffers(recurse=False)]:
                module._apply(to_half, recurse=False)  # which such modules override
    return copied


class MasterWeights:
    """The fp32 `master` model, the `compute` model that runs the passes, and the copies between them, once a step.

    In O2 the master weights persist (Apex, Paddle). In O3 (`keep_master=False`) they exist only while the optimizer
    works: they are copied from the half weights before, and rounded into them after. That rounding is stochastic (Gupta
    et al., 2015): up or down at random, unbiased, where rounding to the nearest would drop every update smaller than
    half the spacing of adjacent half-precision values. If `compute` is `master`, the copies do nothing.
    """

    def __init__(self, master: nn.Module, compute: nn.Module, keep_master: bool) -> None:
        self.master = master
        self.compute = compute
        self.keep_master = keep_master
        pairs = [pair for pair in zip(master.parameters(), compute.parameters(), strict=True) if pair[0] is not pair[1]]
        self._frozen = [pair for pair in pairs if not pair[0].requires_grad]
        trained = [pair for pair in pairs if pair[0].requires_grad]
        self._master_parameters: list[Tensor] = [full for full, _ in trained]
        self._compute_parameters: list[Tensor] = [half for _, half in trained]
        self._values: Tensor | None = None  # O3: all master weights, in one tensor
        zero = torch.zeros((), device=next(master.parameters()).device)
        self._shapes_only = [zero.expand(full.shape) for full in self._master_parameters]
        self._stats = _flatten_batch_stats(compute)
        self._saved_stats = [stats.clone() for stats in self._stats]
        self.sync_after_load()
        self._release()

    @property
    def saved(self) -> nn.Module:
        """The model whose weights persist between steps and are saved in checkpoints."""
        return self.master if self.keep_master else self.compute

    @torch.no_grad()
    def copy_grads_to_master(self) -> None:
        """Copies the half gradients, and in O3 the half weights, to the master model, before the optimizer's step."""
        if not self._master_parameters:
            return
        targets = []
        sources = []
        if not self.keep_master:
            self._values, values = _flat_views(self._compute_parameters, torch.float32)
            targets += values
            sources += self._compute_parameters
            for full, value in zip(self._master_parameters, values, strict=True):
                full.data = value
        _, gradients = _flat_views(self._compute_parameters, torch.float32)
        for full, half, gradient in zip(self._master_parameters, self._compute_parameters, gradients, strict=True):
            full.grad = None
            if half.grad is not None:
                targets.append(gradient)
                sources.append(half.grad)
                full.grad = gradient
                half.grad = None
        if targets:
            torch._foreach_copy_(targets, sources)

    @torch.no_grad()
    def copy_master_to_model(self, seed: int) -> None:
        """Copies the master weights to the compute model, after the optimizer's step. `seed`: equal on all ranks.

        Stochastic rounding, up or down with probabilities that keep the mean, never moves a value that half represents,
        so that unchanged weights keep theirs. Below its smallest normal number it rounds to the nearest.
        """
        if not self._master_parameters:
            return
        if self._values is not None:
            lost_bits = 23 - {torch.bfloat16: 7, torch.float16: 10}[self._compute_parameters[0].dtype]
            generator = torch.Generator(self._values.device).manual_seed(seed)
            bits = self._values.view(torch.int32)
            bits += torch.randint(2**lost_bits, bits.shape, dtype=torch.int32, device=bits.device, generator=generator)
            bits &= -(2**lost_bits)
        torch._foreach_copy_(self._compute_parameters, self._master_parameters)
        self._release()

    @torch.no_grad()
    def sync_after_load(self) -> None:
        """Copies weights that were loaded into the `saved` model to the other model."""
        for full, half in (*self._frozen, *zip(self._master_parameters, self._compute_parameters, strict=True)):
            if self.keep_master:
                half.copy_(full)
            elif not full.requires_grad:  # trained weights are copied when the optimizer needs them
                full.copy_(half)

    def save_batch_stats(self) -> None:
        """Copies the running statistics of batch norms, before the passes of a step."""
        for saved, current in zip(self._saved_stats, self._stats, strict=True):
            saved.copy_(current)

    def restore_batch_stats(self, skipped: Tensor) -> None:
        """Restores the statistics after the passes if the step was `skipped`, a bool (): the batch may contain NaN."""
        for saved, current in zip(self._saved_stats, self._stats, strict=True):
            torch.where(skipped, saved, current, out=current)

    @contextmanager
    def kept_batch_stats(self) -> Iterator[None]:
        """The context of a backward pass that recomputes blocks, compiled or not: the statistics stay as they are."""
        kept = [stats.clone() for stats in self._stats]
        yield
        for stats, before in zip(self._stats, kept, strict=True):
            stats.copy_(before)

    def _release(self) -> None:
        """Frees the memory that the next step allocates again."""
        self._values = None
        for full, shape_only in zip(self._master_parameters, self._shapes_only, strict=True):
            full.grad = None
            if not self.keep_master:
                full.data = shape_only


class WeightAverage(ModelEmaV3):
    """timm's average of all parameters and buffers of `model`. A skipped step does not change it.

    With `warmup`, timm's `get_decay` gives the decay, a function of the step, which is 0 at the first one; with "copy"
    it is constant from the second one on. Without `warmup` it is constant.
    """

    def __init__(self, model: nn.Module, decay: float, warmup: bool | Literal["copy"] = False) -> None:
        super().__init__(model, decay, use_warmup=warmup is True)
        self._follows_timm = bool(warmup)
        self.follow(model)

    @torch.no_grad()
    def follow(self, model: nn.Module) -> None:
        """Averages the tensors that `model` has now. If both models are sharded, each rank averages its part."""
        values, averages = (module.state_dict(keep_vars=True).values() for module in (model, self.module))
        # A tensor that a model uses under several names is averaged once.
        unique = {id(average): (average, value) for average, value in zip(averages, values, strict=True)}.values()
        pairs = [(local_tensor(average), local_tensor(value)) for average, value in unique]
        self._averaged = _transposed([pair for pair in pairs if pair[0].is_floating_point()])
        self._copied = _transposed([pair for pair in pairs if not pair[0].is_floating_point()])
        self._update_weight = 1 - self.decay

    def set_step(self, step: int) -> None:
        """Sets the optimizer step of the next update, counted from 0."""
        if self._follows_timm:
            self._update_weight = 1 - self.get_decay(step + 1)  # timm counts from 1

    @torch.no_grad()
    def update(self, skipped: Tensor) -> None:  # type: ignore[override]  # the model is known to `follow`
        """average += (1 - decay) * (model - average), unless `skipped`, a bool () on the device."""
        averages, values = self._averaged
        if skipped.device.type == "cpu":
            torch._foreach_lerp_(averages, values, [self._update_weight * ~skipped] * len(averages))
        else:
            fused_lerp_(averages, values, self._update_weight, skipped)
        if self._copied:
            targets, values = self._copied
            torch._foreach_copy_(targets, values)


def _flat_views(tensors: Sequence[Tensor], dtype: torch.dtype) -> tuple[Tensor, list[Tensor]]:
    """One uninitialized tensor, and views of it in the shapes and strides of `tensors`.

    Each is aligned for vectorized kernels. Fused optimizers need equal strides of weights and gradients.
    """
    sizes = [-(-tensor.numel() // _ALIGNMENT) * _ALIGNMENT for tensor in tensors]
    flat = torch.empty(sum(sizes), dtype=dtype, device=tensors[0].device)
    parts = zip(flat.split(sizes), tensors, strict=True)
    return flat, [part.as_strided(tensor.shape, tensor.stride(), part.storage_offset()) for part, tensor in parts]


def _flatten_batch_stats(model: nn.Module) -> list[Tensor]:
    """Moves the buffers of all batch norms to one tensor per dtype, of which they become views; returns these tensors.

    One kernel per dtype then saves or restores all of them. Neither torch.compile nor torch.save supports views of one
    storage in two dtypes.
    """
    batch_norms = [module for module in model.modules() if isinstance(module, BatchNorm)]
    buffers = [buffer for norm in batch_norms for buffer in norm.buffers()]
    tensors = []
    for dtype in dict.fromkeys(buffer.dtype for buffer in buffers):
        group = [buffer for buffer in buffers if buffer.dtype == dtype]
        flat, views = _flat_views(group, dtype)
        flat.zero_()  # the padding too: a checkpoint holds it
        torch._foreach_copy_(views, group)
        for buffer, view in zip(group, views, strict=True):
            buffer.data = view
        tensors.append(flat)
    return tensors


def _transposed(pairs: list[tuple[Tensor, Tensor]]) -> list[list[Tensor]]:
    """Pairs of tensors as two lists; empty if there are none."""
    return list(map(list, zip(*pairs, strict=True)))
