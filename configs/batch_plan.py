"""The images of an optimizer step, the steps of an epoch, and the position of a resumed run. Without torch."""

from dataclasses import asdict, dataclass

from configs.schema import Config
from configs.yaml_io import Values, format_value
from utils.errors import UserError

_WHOLE_EPOCH = 10**9  # micro-steps: more than any epoch has
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
class BatchPlan:
    """The images of an optimizer step: `micro_batch` x `ranks` x `accumulation`.

    micro_batch: images of a forward pass on one rank (DATA.BATCH_SIZE). accumulation: micro-steps of a step. ranks: 1
    in a plan that is read from a checkpoint, with the micro-batch of all ranks. whole_steps: an epoch has no incomplete
    step (DATA.GLOBAL_BATCH_SIZE).
    """

    micro_batch: int
    accumulation: int = 1
    ranks: int = 1
    whole_steps: bool = False

    @property
    def micro_step_size(self) -> int:
        """Images of a micro-step over all ranks."""
        return self.micro_batch * self.ranks

    @property
    def global_size(self) -> int:
        return self.micro_step_size * self.accumulation

    def __str__(self) -> str:
        factors = f"batch size {self.micro_batch} x {self.ranks} rank(s) x {self.accumulation} accumulation step(s)"
        return f"{self.global_size} = {factors}"


def plan_batches(options: Config, ranks: int) -> BatchPlan:
    """Returns the plan: as many micro-steps as DATA.GLOBAL_BATCH_SIZE needs, else TRAIN.ACCUM_ITER.

    The epoch of a probe is one step. With DATA.BATCH_SIZE auto, the micro-batch is 1: it becomes a divisor of a rank's
    share.
    Raises UserError: the global batch is not a multiple of the batch size over all ranks.
    """
    if options.model.solves_head:
        return BatchPlan(1, _WHOLE_EPOCH, ranks)
    total = options.data.global_batch_size
    batch_size = options.data.micro_batch
    if total is None:
        return BatchPlan(batch_size, options.train.accum_iter, ranks)
    micro_step = batch_size * ranks
    if total % micro_step:
        nearest = max(1, round(total / micro_step)) * micro_step
        factors = f"batch size {batch_size} x {ranks} rank(s)"
        problem = f"DATA.GLOBAL_BATCH_SIZE {total}: is not a multiple of {micro_step} ({factors})"
        raise UserError(f"{problem}; use DATA.GLOBAL_BATCH_SIZE={nearest}, or another -batch_size")
    return BatchPlan(batch_size, total // micro_step, ranks, whole_steps=True)


@dataclass(frozen=True)
class EpochLayout:
    """The values that determine the order of samples. A bit-exact resume needs an equal `geometry`.

    Without whole steps, the last step of an epoch may have fewer micro-batches. With them the samples of every step are
    a function of (samples, global batch size, seed, epoch, repeats) alone.
    """

    samples: int
    batch: BatchPlan
    seed: int
    repeats: int = 1  # crops of a sample in an epoch (DATA.REPEATED_AUGMENTATION)
    shuffle_shards: int = 0  # DATA.SHUFFLE_SHARDS of samples in shards; 0: no shards
    shards_crc: int = 0  # `ShardWindows.crc`: how the samples are divided into shards
    balanced: bool = False  # DATA.BALANCED_SAMPLING
    max_steps: int | None = None  # TRAIN.EPOCH_STEPS

    @classmethod
    def of_geometry(cls, geometry: Values) -> "EpochLayout":
        """The layout with the entry `geometry` of a checkpoint, whose number of ranks is not known.

        Raises KeyError, TypeError: the entry is invalid.
        """
        values = dict(geometry)
        size = values.pop("batch_size")
        accumulation = values.pop("accum_iter")
        batch = BatchPlan(size, accumulation, whole_steps=values.pop("whole_steps", False))
        return cls(batch=batch, **values)

    @property
    def geometry(self) -> Values:
        """The entry of a checkpoint."""
        batch = self.batch
        values = asdict(self) | {"batch_size": batch.micro_step_size, "accum_iter": batch.accumulation}
        del values["batch"]
        return values | {"whole_steps": batch.whole_steps}

    @property
    def batches_per_epoch(self) -> int:
        batches = self.samples // self.batch.micro_step_size
        if self.batch.whole_steps:
            batches -= batches % self.batch.accumulation
        if self.max_steps:
            batches = min(batches, self.max_steps * self.batch.accumulation)
        return batches

    @property
    def left_out(self) -> int:
        """The samples of an epoch that do not fill its batches."""
        if self.repeats > 1 or self.max_steps or self.batch.accumulation == _WHOLE_EPOCH:
            return 0
        return self.samples - self.batches_per_epoch * self.batch.micro_step_size

    @property
    def steps_per_epoch(self) -> int:
        return -(-self.batches_per_epoch // self.batch.accumulation)

    def changed_global_batch(self, checkpoint: Values) -> str | None:
        """A line for the log if the checkpoint has another global batch size: the learning rate may no longer fit."""
        before = EpochLayout.of_geometry(checkpoint["geometry"]).batch.global_size
        now = self.batch.global_size
        if before == now:
            return None
        return f"the global batch size is {now}, before {before}{self._way_to(before)}"

    def _way_to(self, global_size: int) -> str:
        """The option for this global batch size, if the batch size of this run divides it."""
        if global_size % self.batch.micro_step_size:
            return ""
        return f"; DATA.GLOBAL_BATCH_SIZE={global_size} keeps it"

    def steps_done(self, checkpoint: Values) -> int:
        """The number of steps of this layout that use the same samples as the checkpoint's steps.

        Raises UserError: no whole number of steps does.
        """
        saved = EpochLayout.of_geometry(checkpoint["geometry"])
        done: int = checkpoint["done_steps"]
        if done == 0 or saved.geometry == self.geometry:
            return done
        alternative = "or resume from a checkpoint at the end of an epoch (best.pth, epoch-*.pth)"
        for field, name in _SAME_IN_AN_EPOCH.items():
            before = getattr(saved, field)
            now = getattr(self, field)
            if before != now:
                problem = f"-resume: the checkpoint is inside an epoch with {name} {format_value(before)}"
                raise UserError(f"{problem}, but this run has {format_value(now)}; set it as before, {alternative}")
        if done == saved.steps_per_epoch:
            return self.steps_per_epoch
        before_size = saved.batch.global_size
        size = self.batch.global_size
        used = done * before_size
        if used % size:
            raise UserError(
                f"-resume: the checkpoint has used {used} samples of its epoch, which is not a multiple of this run's "
                f"global batch size {size}; choose devices, -batch_size and -accum_iter whose "
                f"product divides {used} (before: batch size {saved.batch.micro_step_size} over all devices, "
                f"-accum_iter {saved.batch.accumulation}{self._way_to(before_size)}), {alternative}"
            )
        return min(used // size, self.steps_per_epoch)
