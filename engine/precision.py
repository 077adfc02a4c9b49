"""Autocast and the gradient scaler: the only reader of `AMP`.

The step calls everything here in every precision; what a precision does not need does nothing.
"""

import torch

from configs.schema import Amp

_DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}
_NEVER = 2**31 - 1
_LOWEST_SCALE = 1.0  # below it lies 0, under which every gradient looks finite and turns to NaN


class SkippingScaler(torch.amp.GradScaler):
    """A `GradScaler` that counts the steps it skips, on the device, and whose scale may stand still.

    With a scale of 1 it guards fp32 and bf16 too: a step with a non-finite gradient leaves the weights as they are,
    and with a fused optimizer the host need not wait to know it.
    """

    def __init__(self, device: torch.device, init_scale: float, dynamic: bool) -> None:
        super().__init__(device.type, init_scale=init_scale)
        if not dynamic:
            self.set_backoff_factor(1.0)
            self.set_growth_interval(_NEVER)
        self.skipped = torch.zeros((), device=device)

    def update(self, new_scale: float | torch.Tensor | None = None) -> None:
        for state in self._per_optimizer_states.values():
            for found_inf in state["found_inf_per_device"].values():
                self.skipped += found_inf.clamp(max=1)
        super().update(new_scale)
        self._scale.clamp_(min=_LOWEST_SCALE)

    def state_dict(self) -> dict:
        return super().state_dict() | {"skipped": self.skipped.item()}

    def load_state_dict(self, state: dict) -> None:
        super().load_state_dict(state)
        self.skipped.fill_(state["skipped"])


class Precision:
    """How a run computes: `autocast()` around forward passes, `scaler` around gradients.

    `AMP.DTYPE` null means float16 on a GPU and bfloat16 on a CPU.
    """

    def __init__(self, options: Amp, device: torch.device) -> None:
        default = "float16" if device.type == "cuda" else "bfloat16"
        self.dtype = _DTYPES[options.dtype or default] if options.enabled else torch.float32
        self.device = device
        scales = self.dtype == torch.float16
        self.scaler = SkippingScaler(device, init_scale=2.0**16 if scales else 1.0, dynamic=scales)

    def autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, self.dtype, enabled=self.dtype != torch.float32)

    def state_dict(self) -> dict:
        return {"dtype": str(self.dtype), "scaler": self.scaler.state_dict()}

    def load_state_dict(self, state: dict) -> None:
        """A run resumed in another precision starts with that one's own scale."""
        if state["dtype"] == str(self.dtype):
            self.scaler.load_state_dict(state["scaler"])

    def describe(self) -> str:
        """For the log."""
        if self.dtype == torch.float32:
            return "float32"
        name = str(self.dtype).removeprefix("torch.")
        slow = self.dtype == torch.float16 and self.device.type == "cpu"
        hint = "; on a CPU about 100 times slower than -amp_dtype=bfloat16" if slow else ""
        return f"{name} autocast over float32 weights{hint}"
