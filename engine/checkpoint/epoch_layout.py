"""How the samples of an epoch fall into steps, and where in it a resumed run stands."""

from dataclasses import dataclass
from typing import Any

from utils.errors import UserError


@dataclass(frozen=True)
class EpochLayout:
    """What must be equal for the order of samples, and so a resumed run, to be the same."""

    samples: int
    batch_size: int  # over all ranks, in one micro-step
    accum_iter: int
    seed: int

    @property
    def batches_per_epoch(self) -> int:
        return self.samples // self.batch_size

    @property
    def steps_per_epoch(self) -> int:
        return -(-self.batches_per_epoch // self.accum_iter)

    def steps_done(self, checkpoint: dict[str, Any]) -> int:
        """Steps of the epoch, of this geometry, that go through the samples the checkpoint has seen of it.

        Raises:
            UserError: there is no such number.
        """
        then, done = EpochLayout(**checkpoint["geometry"]), checkpoint["done_steps"]
        if done == 0 or then == self:
            return done
        go_on = "or go on from a checkpoint of an epoch's end (epoch-*.pth)"
        if (then.samples, then.seed) != (self.samples, self.seed):
            raise UserError(
                f"-resume: the checkpoint lies inside an epoch of {then.samples} samples in the order of SEED "
                f"{then.seed}, and this run has {self.samples} in that of SEED {self.seed}; set them alike, {go_on}"
            )
        if done == then.steps_per_epoch:
            return self.steps_per_epoch
        seen, per_step = done * then.accum_iter * then.batch_size, self.accum_iter * self.batch_size
        if seen % per_step:
            raise UserError(
                f"-resume: the checkpoint has seen {seen} samples of its epoch, which is no whole number of this run's "
                f"steps of {per_step}; choose devices, -batch_size and -accum_iter whose product divides {seen} (then: "
                f"{then.batch_size} on all devices together, -accum_iter {then.accum_iter}), {go_on}"
            )
        return min(seen // per_step, self.steps_per_epoch)
