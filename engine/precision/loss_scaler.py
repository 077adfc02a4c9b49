"""Dynamic loss scaling with the rules of Paddle's Fleet, decided on the device."""

from collections import deque
from collections.abc import Callable, Iterable

import torch
from torch import nn

from utils import torch_compat

_NEVER = 2**31 - 1
_READ_DELAY = 2  # steps
_SAVED_KEYS = ("scale", "_growth_tracker")


class LossScaler(torch.amp.GradScaler):
    """A `GradScaler` with the rules of Paddle's Fleet and without host syncs.

    The scale shrinks after `backoff_after` consecutive overflows (an overflow is a step with a non-finite gradient) and
    grows after `growth_interval` consecutive steps without one; it stays in [`min_scale`, the largest fp32 value]. With
    `dynamic=False` it is constant. A constant scale of 1 protects fp32 and bf16 training: a step with a non-finite
    gradient does not change the weights.

    Averaged gradients are non-finite on all ranks or on none, so all ranks take the same decision.
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
        total_norm: Callable[[Iterable[torch.Tensor]], torch.Tensor] = nn.utils.get_total_norm,
    ) -> None:
        super().__init__(device.type, init_scale, growth_factor, backoff_factor, growth_interval)
        self.dynamic, self.backoff_after, self.min_scale = dynamic, backoff_after, min_scale
        self.max_skipped, self.total_norm = max_skipped, total_norm
        self.initial_scale = init_scale
        if not dynamic:
            self.set_backoff_factor(1.0)
            self.set_growth_interval(_NEVER)
        # Skipped steps: in total, consecutive, and since the scale last shrank.
        self._counts = torch.zeros(3, device=device)
        self.last_skipped = torch.zeros((), device=device)  # 1 if the last step was skipped, else 0
        self._delayed_reads: deque[tuple[torch.Tensor, torch.cuda.Event]] = deque()

    @property
    def skipped(self) -> int:
        """Skipped steps in total. Waits for the device."""
        return int(self._counts[0])

    @property
    def consecutive_skipped(self) -> int:
        """Skipped steps since the last one that was applied. Waits for the device."""
        return int(self._counts[1])

    def step(self, optimizer: torch.optim.Optimizer, max_norm: float | None = None) -> torch.Tensor:
        """Unscales the gradients, clips their global norm to `max_norm`, and steps the optimizer.

        A step with a non-finite gradient norm is skipped. A fused optimizer unscales, clips and updates in one pass
        over the gradients.

        Returns:
            The global gradient norm (), unscaled, before clipping; on the device.
        """
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        if torch_compat.unscales_in_step(optimizer):
            scaled_norm = self.total_norm(gradients)
            norm = scaled_norm / torch_compat.loss_scale(self)
            # The fused kernel divides the gradients by `grad_scale`; the formula is that of clip_grad_norm_.
            clip = ((norm + 1e-6) / max_norm).clamp(min=1) if max_norm else 1
            optimizer.grad_scale = torch_compat.loss_scale(self) * clip
            torch_compat.mark_unscaled(self, optimizer, found_inf=(~scaled_norm.isfinite()).float())
        else:
            self.unscale_(optimizer)
            norm = self.total_norm(gradients)
            torch_compat.mark_unscaled(self, optimizer, found_inf=(~norm.isfinite()).float())
            if max_norm:
                nn.utils.clip_grads_with_norm_(parameters, max_norm, norm)
        super().step(optimizer)
        return norm

    def update(self, new_scale: float | torch.Tensor | None = None) -> None:
        """Counts the step and updates the scale."""
        found = torch_compat.found_infs(self)
        overflow = torch.stack([tensor.to(self._counts.device) for tensor in found]).amax().clamp(max=1)
        self.last_skipped = overflow
        self._counts += overflow
        self._counts[1:] *= overflow
        shrinks = (self._counts[2] >= self.backoff_after).float() * overflow
        self._counts[2] *= 1 - shrinks
        # The base class counts a step without shrinking as a good one: an overflow starts from -1, so it counts as 0.
        tracker = torch_compat.growth_tracker(self)
        tracker.copy_(tracker * (1 - overflow) - overflow)
        torch_compat.set_found_inf(self, shrinks)
        super().update(new_scale)
        torch_compat.loss_scale(self).clamp_(min=self.min_scale)

    def skipped_too_often(self) -> bool:
        """Whether at least the last `max_skipped` steps were skipped; equal on all ranks.

        On a GPU the count is read two steps late, so that the host does not wait, and then confirmed.
        """
        if self.max_skipped is None:
            return False
        if self._counts.device.type == "cuda":
            event = torch.cuda.Event()
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
        self._counts[1:] = 0

    def state_dict(self) -> dict:
        state = super().state_dict() if self.dynamic else {}
        return {key: state[key] for key in _SAVED_KEYS if key in state} | {"counts": self._counts.tolist()}

    def load_state_dict(self, state: dict) -> None:
        """Restores the scale and the counts. The rules, and a constant scale, are those of this run's options."""
        saved = {key: state[key] for key in _SAVED_KEYS if key in state and self.dynamic}
        super().load_state_dict(super().state_dict() | saved)
        self._counts.copy_(torch.tensor(state["counts"]))
