"""The position of a run inside an epoch."""

from dataclasses import dataclass

from utils.metrics import MetricSums


@dataclass
class EpochProgress:
    """Where an epoch stands: steps and batches of it that are done, sums so far, seconds spent waiting for data."""

    epoch: int
    steps: int
    batches: int
    sums: MetricSums
    done_steps: int = 0
    lr: float = 0.0
    data_wait_seconds: float = 0.0

    @property
    def step(self) -> int:
        """Steps done since the run began."""
        return self.epoch * self.steps + self.done_steps

    def window(self, accum_iter: int) -> int:
        """Micro-steps of the next step: fewer than `accum_iter` in an epoch's last, where its batches run out."""
        return min(accum_iter, self.batches - self.done_steps * accum_iter)
