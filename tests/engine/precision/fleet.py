"""Fleet's loss-scale rules in plain Python: PaddlePaddle's `update_loss_scaling` operator, with a minimum scale."""

from dataclasses import dataclass


@dataclass
class FleetScale:
    scale: float
    dynamic: bool
    incr_ratio: float
    incr_every_n_steps: int
    decr_ratio: float
    decr_every_n_nan_or_inf: int
    min_scale: float
    good_steps: int = 0
    bad_steps: int = 0

    def update(self, overflow: bool) -> float:
        """Returns the scale for the next step."""
        if not self.dynamic:
            return self.scale
        if overflow:
            self.good_steps = 0
            self.bad_steps += 1
            if self.bad_steps == self.decr_every_n_nan_or_inf:
                self.scale *= self.decr_ratio
                self.bad_steps = 0
        else:
            self.bad_steps = 0
            self.good_steps += 1
            if self.good_steps == self.incr_every_n_steps:
                self.scale *= self.incr_ratio
                self.good_steps = 0
        self.scale = max(self.scale, self.min_scale)
        return self.scale
