"""How a run computes: the only reader of `AMP`.

The step calls everything here in every precision; what a precision does not need does nothing.
"""

import math

import torch
from torch import nn

from configs.schema import Amp
from engine.precision.loss_scaler import LossScaler
from engine.precision.master_weights import MasterWeights, half_copy
from engine.precision.non_finite import IMAGES, Origin, block_of
from engine.precision.op_lists import apply_op_lists

_DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}


class Precision:
    """`autocast()` around forward passes, `scaler` around gradients, `weights` around the optimizer.

    O1 is autocast over fp32 weights (Apex O1, Colossal-AI's torch AMP). O2 computes with half weights and fp32 norms
    and keeps fp32 master weights (Apex O2, Paddle O2, Colossal-AI's naive AMP). O3 keeps half weights only (Apex O3).
    """

    def __init__(self, options: Amp, device: torch.device) -> None:
        self.options, self.device = options, device
        default = "float16" if device.type == "cuda" else "bfloat16"
        self.dtype = _DTYPES[options.dtype or default] if options.enabled else torch.float32
        self.level = options.level if options.enabled else "O0"
        self.tf32 = options.enabled if options.tf32 is None else options.tf32
        self.scales = self.dtype == torch.float16
        self.scaler = self._scaler()
        self._set_tf32()

    def _scaler(self) -> LossScaler:
        options = self.options
        if not self.scales:
            return LossScaler(self.device, max_skipped=_max_skipped(options))
        return LossScaler(
            self.device,
            init_scale=options.init_loss_scaling,
            dynamic=options.use_dynamic_loss_scaling,
            growth_factor=options.incr_ratio,
            growth_interval=options.incr_every_n_steps,
            backoff_factor=options.decr_ratio,
            backoff_after=options.decr_every_n_nan_or_inf,
            min_scale=options.min_loss_scaling,
            max_skipped=_max_skipped(options),
        )

    def _set_tf32(self) -> None:
        """Of a GPU's fp32 matrix products and convolutions; torch's own default is off for the first, on for the other.

        The older of torch's two interfaces: reading it after setting the newer raises, and its compiler reads it.
        """
        torch.backends.cuda.matmul.allow_tf32 = self.tf32
        torch.backends.cudnn.allow_tf32 = self.tf32

    def autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, self.dtype, enabled=self.level in ("O1", "O2"))

    def prepare(self, model: nn.Module) -> None:
        """Applies the op lists to the fp32 model, once, before it is copied.

        Raises:
            UserError: a list names no op and no module.
        """
        if self.dtype != torch.float32:
            options = self.options
            # Without autocast the op behind a listed one expects half.
            result_dtype = self.dtype if self.level == "O3" else None
            lists = options.custom_white_list, options.custom_black_list
            apply_op_lists(model, *lists, self.dtype, self.device, result_dtype)

    @property
    def lists_softmax(self) -> bool:
        return self.dtype != torch.float32 and "softmax" in (
            *self.options.custom_white_list, *self.options.custom_black_list
        )  # fmt: skip

    def computing(self, model: nn.Module) -> nn.Module:
        """The model that does the forward passes of the fp32 `model`: itself, or a copy in half."""
        if self.level not in ("O2", "O3"):
            return model
        computing = half_copy(model, self.dtype, everything=self.level == "O3")
        if self.level == "O3":
            computing.register_forward_pre_hook(_InputCast(self.dtype))
        return computing

    def weights(self, model: nn.Module) -> MasterWeights:
        """The fp32 `model` beside the one that computes; without masters its own tensors are released."""
        return MasterWeights(model, self.computing(model), masters=self.level != "O3")

    def cure(self, origin: Origin | None) -> str:
        """What to change when gradients stay non-finite."""
        if origin == IMAGES:
            return "Look at the images."
        if self.dtype == torch.float32:
            return "Lower TRAIN.BASE_LR, set TRAIN.GRAD_CLIP 1.0, and look at the images."
        # The whole block: what a single op hands on in fp32, the next one may not hold in half. O3 hands on half.
        listable = origin and origin.module and self.level != "O3"
        listed = f"AMP.CUSTOM_BLACK_LIST [{block_of(origin.module)}.*], " if listable else ""
        other = "-amp_dtype=bfloat16" if self.scales else "no -amp"
        return f"Try {listed}{other}, or a lower TRAIN.BASE_LR."

    def state_dict(self) -> dict:
        return {"dtype": str(self.dtype), "scaler": self.scaler.state_dict()}

    def load_state_dict(self, state: dict) -> None:
        """A run resumed in another precision starts with that one's own scale."""
        if state["dtype"] == str(self.dtype):
            self.scaler.load_state_dict(state["scaler"])

    @property
    def name(self) -> str:
        """Level and type, in words."""
        half = str(self.dtype).removeprefix("torch.")
        return {
            "O0": "float32",
            "O1": f"O1: {half} autocast over float32 weights",
            "O2": f"O2: {half} weights, float32 norms and master weights",
            "O3": f"O3: {half} weights and norms, no master weights",
        }[self.level]

    def describe(self) -> str:
        """For the log."""
        parts = [self.name]
        if self.scales:
            kind = "dynamic" if self.options.use_dynamic_loss_scaling else "fixed"
            parts.append(f"loss scale {self.options.init_loss_scaling:g}, {kind}")
        if self.device.type == "cuda":
            parts.append(f"TF32 {'on' if self.tf32 else 'off'}")
        if self.dtype == torch.float16 and self.device.type == "cpu":
            parts.append("on a CPU 10 to 100 times slower than -amp_dtype=bfloat16")
        return "; ".join(parts)


def _max_skipped(options: Amp) -> int | None:
    if options.max_skipped_steps is not None:
        return options.max_skipped_steps or None
    shrinks = math.log(options.min_loss_scaling / options.init_loss_scaling, options.decr_ratio)
    return math.ceil(shrinks - 1e-9) * options.decr_every_n_nan_or_inf + 2


class _InputCast:
    """A forward pre-hook that casts the images: without autocast nothing else does. A class, so that copies have it."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def __call__(self, module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        return tuple(tensor.to(self.dtype) for tensor in inputs)
