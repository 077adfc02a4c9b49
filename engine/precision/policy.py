"""The numeric precision of a run, its dynamic loss scaling, and the switches of torch that hold for its whole process.

In the engine, this package alone reads `AMP`. A training step calls the same methods in every precision. A precision
that does not need a method makes it empty. Loss scaling has the rules of Paddle's Fleet, decided on the device.
"""

import math
from collections import deque
from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import Any

import torch
from timm.models import VisionTransformer
from torch import Tensor, nn

from configs.schema import Amp, Config
from configs.yaml_io import Values
from engine.precision.master_weights import MasterWeights, WeightAverage, half_copy
from engine.precision.non_finite import IMAGES, Origin, block_of
from engine.precision.op_lists import cast_listed_ops, cast_norms, keeps_fp32_weights, listed_in_blocks, torch_name
from models.blocks import is_sharded
from utils import torch_compat
from utils.device import gpu_kind, use_deterministic_algorithms
from utils.distributed import ProcessContext, gather_objects
from utils.errors import UserError
from utils.notes import texts_of
from utils.torch_compat import has_bfloat16_instructions

TotalNorm = Callable[[Iterable[Tensor]], Tensor]
_READ_DELAY = 2  # steps
_SAVED_KEYS = ("scale", "_growth_tracker")


class LossScaler(torch.amp.GradScaler):
    """A `GradScaler` with the rules of Paddle's Fleet and without host syncs.

    The scale shrinks after `backoff_after` consecutive overflows (an overflow is a step with a non-finite gradient) and
    grows after `growth_interval` consecutive steps without one; it stays in [`min_scale`, the largest fp32 value]. A
    constant scale of 1 protects fp32 and bf16 training: a step with a non-finite gradient does not change the weights.

    Averaged gradients are non-finite on all ranks or on none, so all ranks take the same decision.
    """

    def __init__(self, device: torch.device, options: Amp, scales: bool, total_norm: TotalNorm) -> None:
        """`scales`: whether to scale the loss as `options` say; else the scale is 1."""
        self.initial_scale = options.init_loss_scaling if scales else 1.0
        rules = options.incr_ratio, options.decr_ratio, options.incr_every_n_steps
        super().__init__(device.type, self.initial_scale, *rules)
        self.dynamic = scales and options.use_dynamic_loss_scaling
        self.backoff_after = options.decr_every_n_nan_or_inf
        self.min_scale = options.min_loss_scaling
        self.total_norm = total_norm
        self.max_skipped = options.max_skipped_steps or None  # consecutive skipped steps; None: no limit
        if options.max_skipped_steps is None:  # the steps in which the scale falls to its minimum, plus 2
            shrinks = math.log(options.min_loss_scaling / options.init_loss_scaling, options.decr_ratio)
            self.max_skipped = math.ceil(shrinks - 1e-9) * options.decr_every_n_nan_or_inf + 2
        self.scale(torch.zeros((), device=device))  # creates the tensors of the base class
        self._counts = torch.zeros(2, device=device)  # skipped steps: in total, and consecutive
        self.last_skipped = torch.zeros((), dtype=torch.bool, device=device)  # whether the last step was skipped
        self._overflow = self.last_skipped.float()
        self._delayed_reads: deque[tuple[Tensor, torch.cuda.Event]] = deque()

    @property
    def skipped(self) -> int:
        """Skipped steps in total. Waits for the device."""
        return int(self._counts[0])

    @property
    def consecutive_skipped(self) -> int:
        """Skipped steps since the last one that was applied. Waits for the device."""
        return int(self._counts[1])

    def backward(self, loss: Tensor, samples: int) -> None:
        """The backward pass of `scale(loss / samples)`, with the same bits."""
        factor = torch_compat.loss_scale(self) / samples
        if loss.is_cuda:
            loss.backward(factor)  # without kernels for the product
        else:
            (loss * factor).backward()  # torch imports sympy to check the shape of an argument

    def step(  # type: ignore[override]  # no closure; the norm instead of the closure's loss
        self, optimizer: torch.optim.Optimizer, max_norm: float | None = None
    ) -> Tensor:
        """Unscales the gradients, clips their global norm to `max_norm`, and steps the optimizer.

        A step with a non-finite gradient norm is skipped. A fused optimizer unscales, clips and updates in one pass
        over the gradients. For any other optimizer the host waits for the device.

        Returns:
            The global gradient norm (), unscaled, before clipping; on the device.
        """
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        scale = torch_compat.loss_scale(self)
        scaled_norm = self.total_norm(gradients)
        self.last_skipped = scaled_norm * 0 != 0  # infinity * 0 and NaN * 0 are NaN, which differs from 0
        self._overflow = self.last_skipped.float()
        divisor = scale
        if max_norm:  # the formula of clip_grad_norm_, with all terms multiplied by the scale
            divisor = torch.maximum(scale, torch.add(scaled_norm, scale, alpha=1e-6) / max_norm)
        if torch_compat.unscales_in_step(optimizer):
            fused: Any = optimizer
            fused.grad_scale = divisor
            fused.found_inf = self._overflow
            try:
                fused.step()
            finally:
                del fused.grad_scale, fused.found_inf
        elif not self.last_skipped:
            torch._foreach_div_(gradients, divisor)
            optimizer.step()
        return scaled_norm / scale

    def update(self) -> None:  # type: ignore[override]  # no new scale by hand
        """Counts the step and updates the scale."""
        overflow = self._overflow
        consecutive = self._counts[1]
        self._counts.add_(overflow)
        consecutive.mul_(overflow)
        if not self.dynamic:
            return
        scale = torch_compat.loss_scale(self)
        tracker = torch_compat.growth_tracker(self)
        shrinks = overflow
        if self.backoff_after > 1:
            shrinks = overflow * (consecutive % self.backoff_after == 0)
            # torch counts a step without shrinking as a good one: an overflow starts from -1, so it counts as 0.
            tracker.copy_(tracker * (1 - overflow) - overflow)
        rules = self.get_growth_factor(), self.get_backoff_factor(), self.get_growth_interval()
        torch_compat.update_scale(scale, tracker, shrinks, *rules)
        scale.clamp_(min=self.min_scale)

    def skipped_too_often(self) -> bool:
        """Returns whether at least the last `max_skipped` steps were skipped; equal on all ranks.

        On a GPU the count is read two steps late, so that the host does not wait, and then confirmed.
        """
        if self.max_skipped is None:
            return False
        if self._counts.device.type == "cuda":
            event = torch.cuda.Event(blocking=True)  # waits without using a core
            self._delayed_reads.append((self._counts[1].to("cpu", non_blocking=True), event))
            event.record()
            if len(self._delayed_reads) <= _READ_DELAY:
                return False
            consecutive, event = self._delayed_reads.popleft()
            event.synchronize()
            if consecutive < self.max_skipped:
                return False
        return self.consecutive_skipped >= self.max_skipped

    def restart(self) -> None:
        """Resets the scale and the consecutive count, for a run that is resumed after it was aborted."""
        torch_compat.loss_scale(self).fill_(self.initial_scale)
        self._counts[1] = 0

    def state_dict(self) -> Values:
        counts = {"counts": self._counts.tolist()}
        if not self.dynamic:
            return counts
        state = super().state_dict()
        return {key: state[key] for key in _SAVED_KEYS} | counts

    def load_state_dict(self, state: Values, keeps_scale: bool = True) -> None:
        """Restores the scale and the counts. The rules, and a constant scale, come from this run's options.

        keeps_scale: False if this run's initial scale is another one: it then starts with it.
        """
        saved = {key: state[key] for key in _SAVED_KEYS if key in state and self.dynamic and keeps_scale}
        super().load_state_dict(super().state_dict() | saved)
        torch_compat.loss_scale(self).clamp_(min=self.min_scale)
        self._counts.copy_(torch.tensor(state["counts"]))


def uses_tf32(options: Amp) -> bool:
    """Returns whether a GPU computes fp32 matrix products and convolutions in TF32."""
    return options.enabled if options.tf32 is None else options.tf32


def set_process_switches(config: Config, device: torch.device) -> None:
    """Sets deterministic algorithms, TF32, and cuDNN's choice of algorithms.

    Call it before the first operation of a model. Without DETERMINISTIC, cuDNN times its algorithms for each new shape
    of a convolution.
    """
    on_gpu = device.type == "cuda"
    tf32 = uses_tf32(config.amp)
    use_deterministic_algorithms(config.deterministic)
    # The older of torch's two interfaces: torch's compiler reads it, and reading raises after the newer one was set.
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    torch.backends.cudnn.benchmark = on_gpu and not config.deterministic
    # A product that is split adds its parts in half by default. In float16 a part may overflow where the sum does not.
    # In bfloat16 neither time nor error of a ViT's products depends on it (docs/log.md, H200).
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False


def use_fused_blocks(model: nn.Module, options: Amp, context: ProcessContext) -> tuple[int, str]:
    """Gives the blocks of a plain ViT Triton kernels, on a GPU in half, without shards and lists of their other ops.

    In bfloat16 their residual stream is bfloat16, too, unless `add` is on the black list (docs/log.md, bfloat16).
    A collective call: the kernels must work on all ranks.
    Returns their number, 0 for another model; and what to say of them, or why a ViT has none.
    """
    if context.device.type != "cuda" or not options.enabled or not isinstance(model, VisionTransformer):
        return 0, ""
    white, black = ({*map(torch_name, names)} for names in (options.custom_white_list, options.custom_black_list))
    half_stream = "add" not in black and (options.dtype == "bfloat16" or "add" in white)
    reason = listed_in_blocks(model, options.custom_white_list, options.custom_black_list)
    if is_sharded(model):
        reason = "the model is sharded"
    if not reason:
        try:
            from models.fused_blocks import fuse_blocks as fuse
            from models.fused_blocks import why_not_fused
            from models.fused_proof import find_fault

            half = compute_dtype(options, context.device)
            reason = why_not_fused(model) or find_fault(model, half, half_stream, context.device)
        except ImportError as error:  # Triton comes with torch's packages for Linux only
            reason = str(error)
    reason = max(gather_objects(reason, context))  # of a rank that has one
    if reason:
        return 0, f"blocks are not fused: {reason}"
    fuse(model, half_stream)
    number = len(model.blocks)
    is_default = half_stream and options.level == "O1" and "add" not in white
    stream = ", sums between them in half (AMP.CUSTOM_BLACK_LIST=[add] undoes it)" if is_default else ""
    return number, f"{number} blocks fused by Triton{stream}"


FLOAT32 = "float32"
_DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}


class Precision:
    """The level and dtype of a run, its loss scaler and, in training, its master weights.

    O1: autocast over fp32 weights (Apex O1, Colossal-AI's torch AMP). O2: half weights, fp32 master weights (Apex O2,
    Paddle O2, Colossal-AI's naive AMP). O3: half weights without master weights (Apex O3).
    """

    weights: MasterWeights  # of the model in training, from `attach`

    def __init__(
        self,
        options: Amp,
        device: torch.device,
        total_norm: TotalNorm = nn.utils.get_total_norm,
        is_sharded: bool = False,
    ) -> None:
        """`total_norm` computes the global norm of gradients, which may be sharded.

        is_sharded: whether the trained model is sharded. Autocast then caches no half copies of the parameters: with
        gradient checkpointing it would keep whole parameters of all blocks until the end of the forward pass.
        """
        self.options = options
        self.device = device
        self.dtype = compute_dtype(options, device)
        self.level = options.level if options.enabled else "O0"
        self.tf32 = uses_tf32(options)
        self._caches_casts = not is_sharded
        self.scales_loss = self.dtype == torch.float16
        self.scaler = LossScaler(device, options, self.scales_loss, total_norm)

    def autocast(self) -> torch.autocast:
        """The context of a forward pass."""
        enabled = self.level in ("O1", "O2")
        return torch.autocast(self.device.type, self.dtype, enabled=enabled, cache_enabled=self._caches_casts)

    def check_ranks(self, context: ProcessContext) -> None:
        """A collective call. The random numbers of a CUDA kernel depend on the number of multiprocessors; ranks that
        round differently would train different weights.

        Raises UserError: the GPUs of the ranks differ, in O3.
        """
        if self.level != "O3" or context.device.type != "cuda":
            return
        kinds = sorted(set(gather_objects(gpu_kind(context.device), context)))
        if len(kinds) > 1:
            raise UserError(
                f"AMP.LEVEL O3: the ranks have different GPUs ({', '.join(kinds)}), "
                "whose stochastic rounding differs; use GPUs of one kind, or AMP.LEVEL=O2"
            )

    def apply_op_lists(self, model: nn.Module) -> None:
        """Applies the white and black list to the fp32 model, and `set_norm_dtypes` to the norms that no list names.

        Call it once, before the model is copied or sharded.
        Raises UserError: a list entry names neither an op nor a module.
        """
        listed = set()
        if self.listed:
            options = self.options
            # Without autocast, the op that follows a listed op expects half.
            result_dtype = self.dtype if self.level == "O3" else None
            lists = options.custom_white_list, options.custom_black_list
            listed = cast_listed_ops(model, *lists, self.dtype, self.device, result_dtype)
        self.set_norm_dtypes(model, listed)

    def set_norm_dtypes(self, model: nn.Module, listed: Collection[nn.Module] = ()) -> None:
        """Sets the dtype of the norms of the fp32 model. For models without lists, such as a teacher.

        In O1 autocast computes norms in fp32 on a GPU; on a CPU it leaves the half results of convolutions to them.
        """
        if self.level in ("O2", "O3") or (self.level == "O1" and self.device.type == "cpu"):
            cast_norms(model, self.dtype, self.device, listed)

    def gathered_dtype(self, module: nn.Module) -> torch.dtype | None:
        """The dtype to which gathered parameters of a module in a sharded model are cast; None: they stay in fp32.

        Raises UserError: O3, which has no fp32 weights to shard.
        """
        if self.level == "O3":
            raise UserError("AMP.LEVEL O3: PARALLEL.STRATEGY fsdp and hsdp shard fp32 weights; use AMP.LEVEL=O2")
        return self.dtype if self.level == "O2" and not keeps_fp32_weights(module) else None

    @property
    def listed(self) -> tuple[str, ...]:
        """The entries of the op lists; empty in fp32, which has none."""
        return self.options.custom_white_list + self.options.custom_black_list if self.dtype != torch.float32 else ()

    def compute_copy(self, model: nn.Module) -> nn.Module:
        """The module that runs the forward passes of the fp32 `model`: the model itself, or a half copy.

        A sharded model is never copied: its gathered parameters are cast as `gathered_dtype` says.
        """
        if self.level not in ("O2", "O3") or is_sharded(model):
            return model
        copy = half_copy(model, self.dtype, half_buffers=self.level == "O3")
        if self.level == "O3":
            copy.register_forward_pre_hook(partial(_cast_images, self.dtype))
        return copy

    def attach(self, model: nn.Module) -> nn.Module:
        """Takes the fp32 `model` for training; returns the module that runs its forward passes.

        Without master weights (O3) the tensors of `model` are released between steps.
        """
        self.weights = MasterWeights(model, self.compute_copy(model), keep_master=self.level != "O3")
        return self.weights.compute

    def step(
        self, optimizer: torch.optim.Optimizer, max_norm: float | None, seed: int, average: WeightAverage | None = None
    ) -> Tensor:
        """Computes the weights of the next step from the gradients of this one.

        Unscales the gradients, clips their global norm to `max_norm`, updates the weights and their average unless a
        gradient is not finite, updates the loss scale, and copies the weights to the compute model. The host does not
        wait for a GPU if the optimizer is fused.

        seed: of stochastic rounding (O3); equal on all ranks.

        Returns:
            The global gradient norm (), unscaled, before clipping; on the device.
        """
        self.weights.copy_grads_to_master()
        grad_norm = self.scaler.step(optimizer, max_norm)
        self.scaler.update()
        self.weights.restore_batch_stats(self.scaler.last_skipped)
        optimizer.zero_grad(set_to_none=True)
        if average:
            average.update(self.scaler.last_skipped)
        self.weights.copy_master_to_model(seed)
        return grad_norm

    def suggest_fix(self, origin: Origin | None) -> str:
        """Names options to change when gradients stay non-finite."""
        if origin == IMAGES:
            return "Check the images."
        if self.dtype == torch.float32:
            return "Lower TRAIN.BASE_LR, set TRAIN.GRAD_CLIP=1.0, and check the images."
        # The whole block: if one op ran in fp32, the next half op could overflow on its result. In O3 listed ops return
        # half, so a list does not help.
        listed = ""
        if origin and origin.module and self.level != "O3":
            listed = f"{self.with_black_list([f'{block_of(origin.module)}.*'])[1]}, "
        other = "-amp_dtype=bfloat16" if self.scales_loss and not self._emulates_bfloat16 else "no -amp"
        return f"Try {listed}{other}, or a lower TRAIN.BASE_LR."

    def with_black_list(self, entries: Iterable[str]) -> tuple[Amp, str]:
        """The options with these entries too, and the words of the command line; as the two methods below."""
        listed = (*self.options.custom_black_list, *entries)
        changed = self.options.changed(custom_black_list=listed)
        return changed, f'-opts "AMP.CUSTOM_BLACK_LIST=[{", ".join(listed)}]"'

    def with_scale(self, scale: float) -> tuple[Amp, str]:
        scale = max(scale, self.options.min_loss_scaling)
        changed = self.options.changed(init_loss_scaling=scale)
        return changed, f'-opts "AMP.INIT_LOSS_SCALING={scale:.15g}"'

    def with_bfloat16(self) -> tuple[Amp, str]:
        return self.options.changed(dtype="bfloat16"), "-amp_dtype=bfloat16"

    def state_dict(self) -> Values:
        return {"dtype": str(self.dtype), "scaler": self.scaler.state_dict()}

    def load_state_dict(self, state: Values, changed: Collection[str] = ()) -> None:
        """Restores the loss scale. A run resumed in another dtype starts with its own scale.

        changed: the keys in which the options differ from the state.
        """
        if state["dtype"] == str(self.dtype):
            self.scaler.load_state_dict(state["scaler"], "AMP.INIT_LOSS_SCALING" not in changed)

    @property
    def _emulates_bfloat16(self) -> bool:
        return self.device.type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False)

    @property
    def name(self) -> str:
        """Level and dtype, in words."""
        half = str(self.dtype).removeprefix("torch.")
        norms = half if self.device.type == "cuda" else FLOAT32
        return {
            "O0": FLOAT32,
            "O1": f"O1: {half} autocast over float32 weights",
            "O2": f"O2: {half} weights, {norms} norms, float32 master weights",
            "O3": f"O3: {half} weights, {norms} norms, no master weights",
        }[self.level]

    def describe(self) -> str:
        """The precision in words, for the log."""
        parts = [self.name]
        if self.scales_loss:
            kind = "dynamic" if self.options.use_dynamic_loss_scaling else "fixed"
            parts.append(f"loss scale {self.options.init_loss_scaling:g}, {kind}")
        if self.device.type == "cuda":
            parts.append(f"TF32 {'on' if self.tf32 else 'off'}")
        return "; ".join(parts)

    @property
    def short_name(self) -> str:
        return f"AMP {self.options.level} {str(self.dtype).removeprefix('torch.')}" if self.options.enabled else FLOAT32

    def misfits(self) -> list[str]:
        """Why this device gains nothing from the precision, or loses by it; for warnings."""
        on_cpu = self.device.type == "cpu"
        is_bfloat16 = self.dtype == torch.bfloat16
        return texts_of(
            (on_cpu and self.dtype == torch.float16,
             "float16 is 10 to 100 times slower than -amp_dtype=bfloat16 on a CPU"),
            (on_cpu and is_bfloat16 and not has_bfloat16_instructions(),
             "bfloat16 is 2 to 90 times slower than -amp=no on this CPU, which has no AVX512-BF16 or AMX"),
            (is_bfloat16 and self._emulates_bfloat16,
             "this GPU emulates bfloat16 (compute capability below 8.0): use -amp_dtype=float16"),
        )  # fmt: skip


def compute_dtype(options: Amp, device: torch.device) -> torch.dtype:
    """The dtype of matrix products: float32 without AMP; AMP.DTYPE, by default float16 on a GPU, else bfloat16."""
    if not options.enabled:
        return torch.float32
    return _DTYPES[options.dtype or ("float16" if device.type == "cuda" else "bfloat16")]


def _cast_images(dtype: torch.dtype, module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """A forward pre-hook that casts the images to half, since O3 has no autocast."""
    return tuple(tensor.to(dtype) for tensor in inputs)
