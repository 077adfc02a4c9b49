"""The loss scale: how it follows overflows, and how many steps they have cost."""

from collections import deque

import torch
from torch import nn
from torch.amp.grad_scaler import OptState

_NEVER = 2**31 - 1
_READ_LATE = 2  # steps
_STATE = ("scale", "_growth_tracker")


class LossScaler(torch.amp.GradScaler):
    """A `GradScaler` under the rules of Paddle's Fleet, decided on the device: the host need not wait.

    The scale shrinks after `backoff_after` overflows in a row (each `update` that found a non-finite gradient is one)
    and grows after `growth_interval` steps in a row without; it never leaves [`min_scale`, the largest fp32]. With
    `dynamic` off it stands still. A scale of 1 that stands still guards fp32 and bf16: a step with a non-finite
    gradient leaves the weights as they are.

    Averaged gradients are non-finite on all ranks or on none, so all ranks decide alike.
    """

    def __init__(
        self,
        device: torch.device,
        *,
        init_scale: float = 1.0,
        dynamic: bool = False,
        growth_factor: float = 2.0,
        growth_interval: int = 2000,
        backoff_factor: float = 0.5,
        backoff_after: int = 1,
        min_scale: float = 1.0,
        max_skipped: int | None = None,
    ) -> None:
        super().__init__(device.type, init_scale, growth_factor, backoff_factor, growth_interval)
        self.dynamic, self.backoff_after, self.min_scale, self.max_skipped = (
            dynamic, backoff_after, min_scale, max_skipped
        )  # fmt: skip
        self._first_scale = init_scale
        if not dynamic:
            self.set_backoff_factor(1.0)
            self.set_growth_interval(_NEVER)
        # Steps skipped: in all, in a row, and since the scale last shrank.
        self._counts = torch.zeros(3, device=device)
        self.last_skipped = torch.zeros((), device=device)  # 1 if the last step was
        self._late_readings: deque[tuple[torch.Tensor, torch.cuda.Event]] = deque()

    @property
    def skipped(self) -> int:
        """Steps skipped so far. Waits for the device."""
        return int(self._counts[0])

    @property
    def skipped_in_a_row(self) -> int:
        """Steps skipped since the last one that was not. Waits for the device."""
        return int(self._counts[1])

    def step(self, optimizer: torch.optim.Optimizer, max_norm: float | None = None) -> None:
        """Divides the scale out of the gradients, clips their global norm to `max_norm`, and lets the optimizer work.

        A fused optimizer does all three in its own pass over the gradients, and is told by which number to divide.
        Clipped or not, a step with a non-finite gradient is skipped; clipped, one whose norm leaves float32 is, too.
        """
        if max_norm:
            parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
            if getattr(optimizer, "_step_supports_amp_scaling", False):
                self._clip_within_step(optimizer, parameters, max_norm)
            else:
                self.unscale_(optimizer)
                nn.utils.clip_grad_norm_(parameters, max_norm)
        super().step(optimizer)

    def _clip_within_step(
        self, optimizer: torch.optim.Optimizer, parameters: list[nn.Parameter], max_norm: float
    ) -> None:
        """Tells the optimizer what to divide by. The gradients stay scaled until then, and are read once, for the norm.

        To the base class they are unscaled already, so that it looks for no infinities: those show in the norm.
        """
        norm = nn.utils.get_total_norm([parameter.grad for parameter in parameters if parameter.grad is not None])
        excess = (norm / self._scale + 1e-6) / max_norm  # as torch.nn.utils.clip_grad_norm_ has it
        optimizer.grad_scale = self._scale * excess.clamp(min=1)
        state = self._per_optimizer_states[id(optimizer)]
        state["found_inf_per_device"] = {norm.device: (~norm.isfinite()).float()}
        state["stage"] = OptState.UNSCALED

    def update(self, new_scale: float | torch.Tensor | None = None) -> None:
        found = [tensor for state in self._per_optimizer_states.values()
                 for tensor in state["found_inf_per_device"].values()]  # fmt: skip
        overflow = torch.stack([tensor.to(self._counts.device) for tensor in found]).amax().clamp(max=1)
        self.last_skipped = overflow
        self._counts += overflow
        self._counts[1:] *= overflow
        shrinks = (self._counts[2] >= self.backoff_after).float() * overflow
        self._counts[2] *= 1 - shrinks
        # The base class counts a step without shrinking as a good one: from -1, an overflow counts as none.
        self._growth_tracker.copy_(self._growth_tracker * (1 - overflow) - overflow)
        for state in self._per_optimizer_states.values():
            state["found_inf_per_device"] = {self._counts.device: shrinks}
        super().update(new_scale)
        self._scale.clamp_(min=self.min_scale)

    def skipped_too_often(self) -> bool:
        """Whether the last `max_skipped` steps, or more, were skipped; on all ranks alike.

        From a GPU the host hears of it two steps late, so that it need not wait, and then looks again.
        """
        if self.max_skipped is None:
            return False
        if self._counts.device.type == "cuda":
            event = torch.cuda.Event()
            self._late_readings.append((self._counts[1].to("cpu", non_blocking=True), event))
            event.record()
            if len(self._late_readings) <= _READ_LATE:
                return False
            in_a_row, event = self._late_readings.popleft()
            event.synchronize()
            if in_a_row < self.max_skipped:
                return False
        return self.skipped_in_a_row >= self.max_skipped

    def restart(self) -> None:
        """For a run that goes on after it was stopped: it looks for its scale anew."""
        self._scale.fill_(self._first_scale)
        self._counts[1:] = 0

    def state_dict(self) -> dict:
        state = super().state_dict() if self.dynamic else {}
        return {key: state[key] for key in _STATE if key in state} | {"counts": self._counts.tolist()}

    def load_state_dict(self, state: dict) -> None:
        """Where the scale stands; the rules, and a scale that stands still, are as this run's options have them."""
        kept = {key: state[key] for key in _STATE if key in state and self.dynamic}
        super().load_state_dict(super().state_dict() | kept)
        self._counts.copy_(torch.tensor(state["counts"]))
