"""How the samples of an epoch are divided into steps, and the position of a resumed run."""

from dataclasses import dataclass
from typing import Any

from configs.reading.yaml_io import format_value
from utils.errors import UserError

# The values without which the order of samples inside an epoch is another one, and their names in an error
_SAME_IN_AN_EPOCH = {
    "samples": "the number of samples in DATA.DATA_PATH",
    "seed": "SEED",
    "repeats": "DATA.REPEATED_AUGMENTATION",
    "shuffle_shards": "DATA.SHUFFLE_SHARDS",
    "shards_crc": "the shards of DATA.DATA_PATH in the order with checksum",
    "balanced": "DATA.BALANCED_SAMPLING",
}


@dataclass(frozen=True)
class EpochLayout:
    """The values that determine the order of samples. A bit-exact resume needs equal values.

    Without `whole_steps`, the last step of an epoch may have fewer micro-batches. With it (DATA.GLOBAL_BATCH_SIZE) the
    samples of every step are a function of (samples, global batch size, seed, epoch, repeats) alone.
    """

    samples: int
    batch_size: int  # of one micro-step, over all ranks
    accum_iter: int
    seed: int
    repeats: int = 1  # crops of a sample in an epoch (DATA.REPEATED_AUGMENTATION)
    whole_steps: bool = False
    shuffle_shards: int = 0  # DATA.SHUFFLE_SHARDS of samples in shards; 0: no shards
    shards_crc: int = 0  # `ShardWindows.crc`: how the samples are divided into shards
    balanced: bool = False  # DATA.BALANCED_SAMPLING

    @property
    def global_batch_size(self) -> int:
        return self.batch_size * self.accum_iter

    @property
    def batches_per_epoch(self) -> int:
        batches = self.samples // self.batch_size
        return batches - batches % self.accum_iter if self.whole_steps else batches

    @property
    def steps_per_epoch(self) -> int:
        return -(-self.batches_per_epoch // self.accum_iter)

    def describe(self, world_size: int) -> str:
        """'256 = batch size 32 x 2 ranks x 4 accumulation steps'."""
        factors = f"batch size {self.batch_size // world_size} x {world_size} rank(s) x {self.accum_iter} accumulation"
        return f"{self.global_batch_size} = {factors} step(s)"

    def changed_global_batch(self, checkpoint: dict[str, Any]) -> str | None:
        """A line for the log if the checkpoint has another global batch size: the learning rate may no longer fit."""
        before = EpochLayout(**checkpoint["geometry"]).global_batch_size
        if before == self.global_batch_size:
            return None
        keep = f"DATA.GLOBAL_BATCH_SIZE={before} keeps it"
        return f"the global batch size is {self.global_batch_size}, before {before}; {keep} on any number of ranks"

    def steps_done(self, checkpoint: dict[str, Any]) -> int:
        """The number of steps of this layout that use the same samples as the checkpoint's steps.

        Raises:
            UserError: no whole number of steps does.
        """
        saved, done = EpochLayout(**checkpoint["geometry"]), checkpoint["done_steps"]
        if done == 0 or saved == self:
            return done
        alternative = "or resume from a checkpoint at the end of an epoch (epoch-*.pth)"
        for field, name in _SAME_IN_AN_EPOCH.items():
            before, now = getattr(saved, field), getattr(self, field)
            if before != now:
                raise UserError(
                    f"-resume: the checkpoint is inside an epoch with {name} {format_value(before)}, but this run has "
                    f"{format_value(now)}; set it as before, {alternative}"
                )
        if done == saved.steps_per_epoch:
            return self.steps_per_epoch
        used = done * saved.global_batch_size
        if used % self.global_batch_size:
            raise UserError(
                f"-resume: the checkpoint has used {used} samples of its epoch, which is not a multiple of this run's "
                f"global batch size {self.global_batch_size}; choose devices, -batch_size and -accum_iter whose "
                f"product divides {used} (before: batch size {saved.batch_size} over all devices, -accum_iter "
                f"{saved.accum_iter}; DATA.GLOBAL_BATCH_SIZE={saved.global_batch_size} keeps that global batch size), "
                f"{alternative}"
            )
        return min(used // self.global_batch_size, self.steps_per_epoch)
