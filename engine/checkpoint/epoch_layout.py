"""How the samples of an epoch are divided into steps, and the position of a resumed run."""

from dataclasses import dataclass
from typing import Any

from utils.errors import UserError


@dataclass(frozen=True)
class EpochLayout:
    """The values that determine the order of samples; they must be equal for a bit-exact resume."""

    samples: int
    batch_size: int  # of one micro-step, over all ranks
    accum_iter: int
    seed: int
    repeats: int = 1  # crops of a sample in an epoch (DATA.REPEATED_AUGMENTATION); checkpoints of earlier versions: 1

    @property
    def global_batch_size(self) -> int:
        return self.batch_size * self.accum_iter

    @property
    def batches_per_epoch(self) -> int:
        return self.samples // self.batch_size

    @property
    def steps_per_epoch(self) -> int:
        return -(-self.batches_per_epoch // self.accum_iter)

    def steps_done(self, checkpoint: dict[str, Any]) -> int:
        """The number of steps of this layout that use the same samples as the checkpoint's steps.

        Raises:
            UserError: no whole number of steps does.
        """
        saved, done = EpochLayout(**checkpoint["geometry"]), checkpoint["done_steps"]
        if done == 0 or saved == self:
            return done
        alternative = "or resume from a checkpoint at the end of an epoch (epoch-*.pth)"
        if (saved.samples, saved.seed) != (self.samples, self.seed):
            raise UserError(
                f"-resume: the checkpoint is inside an epoch of {saved.samples} samples with SEED {saved.seed}, but "
                f"this run has {self.samples} samples and SEED {self.seed}; set both as before, {alternative}"
            )
        if saved.repeats != self.repeats:
            raise UserError(
                f"-resume: the checkpoint is inside an epoch with DATA.REPEATED_AUGMENTATION {saved.repeats}, but this "
                f"run has {self.repeats}; set it as before, {alternative}"
            )
        if done == saved.steps_per_epoch:
            return self.steps_per_epoch
        used = done * saved.global_batch_size
        if used % self.global_batch_size:
            raise UserError(
                f"-resume: the checkpoint has used {used} samples of its epoch, which is not a multiple of this run's "
                f"global batch size {self.global_batch_size}; choose devices, -batch_size and -accum_iter whose "
                f"product divides {used} (before: batch size {saved.batch_size} over all devices, -accum_iter "
                f"{saved.accum_iter}), {alternative}"
            )
        return min(used // self.global_batch_size, self.steps_per_epoch)
