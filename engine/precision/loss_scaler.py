"""Dynamic loss scaling with the rules of Paddle's Fleet, decided on the device."""

import math
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import torch

from configs.schema import Amp
from utils import torch_compat

_READ_DELAY = 2  # steps
_SAVED_KEYS = ("scale", "_growth_tracker")


class LossScaler(torch.amp.GradScaler):
    """A `GradScaler` with the rules of Paddle's Fleet and without host syncs.

    The scale shrinks after `backoff_after` consecutive overflows (an overflow is a step with a non-finite gradient) and
    grows after `growth_interval` consecutive steps without one; it stays in [`min_scale`, the largest fp32 value]. A
    constant scale of 1 protects fp32 and bf16 training: a step with a non-finite gradient does not change the weights.

    Averaged gradients are non-finite on all ranks or on none, so all ranks take the same decision.
    """

    def __init__(
        self,
        device: torch.device,
        options: Amp,
        scales: bool,
        total_norm: Callable[[Iterable[torch.Tensor]], torch.Tensor],
    ) -> None:
        """`scales`: whether to scale the loss as `options` say; else the scale is 1."""
        self.initial_scale = options.init_loss_scaling if scales else 1.0
        rules = options.incr_ratio, options.decr_ratio, options.incr_every_n_steps
        super().__init__(device.type, self.initial_scale, *rules)
        self.dynamic = scales and options.use_dynamic_loss_scaling
        self.backoff_after, self.min_scale = options.decr_every_n_nan_or_inf, options.min_loss_scaling
        self.total_norm = total_norm
        self.max_skipped = options.max_skipped_steps or None  # consecutive skipped steps; None: no limit
        if options.max_skipped_steps is None:  # the steps in which the scale falls to its minimum, plus 2
            shrinks = math.log(options.min_loss_scaling / options.init_loss_scaling, options.decr_ratio)
            self.max_skipped = math.ceil(shrinks - 1e-9) * options.decr_every_n_nan_or_inf + 2
        self.scale(torch.zeros((), device=device))  # creates the tensors of the base class
        self._counts = torch.zeros(2, device=device)  # skipped steps: in total, and consecutive
        self.last_skipped = torch.zeros((), dtype=torch.bool, device=device)  # whether the last step was skipped
        self._overflow = self.last_skipped.float()
        self._delayed_reads: deque[tuple[torch.Tensor, torch.cuda.Event]] = deque()

    @property
    def skipped(self) -> int:
        """Skipped steps in total. Waits for the device."""
        return int(self._counts[0])

    @property
    def consecutive_skipped(self) -> int:
        """Skipped steps since the last one that was applied. Waits for the device."""
        return int(self._counts[1])

    def backward(self, loss: torch.Tensor, samples: int) -> None:
        """The backward pass of `scale(loss / samples)`, with the same bits and without ops for that expression."""
        loss.backward(torch_compat.loss_scale(self) / samples)

    def step(  # type: ignore[override]  # no closure; the norm instead of the closure's loss
        self, optimizer: torch.optim.Optimizer, max_norm: float | None = None
    ) -> torch.Tensor:
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
            fused.grad_scale, fused.found_inf = divisor, self._overflow
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
        total_and_consecutive, consecutive = self._counts, self._counts[1]
        total_and_consecutive.add_(self._overflow)
        consecutive.mul_(self._overflow)
        if not self.dynamic:
            return
        scale, tracker, overflow = torch_compat.loss_scale(self), torch_compat.growth_tracker(self), self._overflow
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

    def state_dict(self) -> dict[str, Any]:
        state = super().state_dict() if self.dynamic else {}
        return {key: state[key] for key in _SAVED_KEYS if key in state} | {"counts": self._counts.tolist()}

    def load_state_dict(self, state: dict[str, Any], keeps_scale: bool = True) -> None:
        """Restores the scale and the counts. The rules, and a constant scale, come from this run's options.

        keeps_scale: False if this run's initial scale is another one: it then starts with it.
        """
        saved = {key: state[key] for key in _SAVED_KEYS if key in state and self.dynamic and keeps_scale}
        super().load_state_dict(super().state_dict() | saved)
        torch_compat.loss_scale(self).clamp_(min=self.min_scale)
        self._counts.copy_(torch.tensor(state["counts"]))
