"""The images of an optimizer step. Without torch."""

from dataclasses import dataclass

from configs.schema import Config
from utils.errors import UserError

_WHOLE_EPOCH = 10**9  # micro-steps: more than any epoch has


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

    Raises:
        UserError: the global batch is not a multiple of the batch size over all ranks.
    """
    if options.model.tuned == "probe":
        return BatchPlan(1, _WHOLE_EPOCH, ranks)
    total, batch_size = options.data.global_batch_size, options.data.batch_size or 1
    if total is None:
        return BatchPlan(batch_size, options.train.accum_iter, ranks)
    steps, rest = divmod(total, batch_size * ranks)
    if rest:
        raise UserError(
            f"DATA.GLOBAL_BATCH_SIZE {total}: is not a multiple of {batch_size * ranks} (batch size {batch_size} "
            f"x {ranks} rank(s)); {_fix(total, batch_size, ranks)}"
        )
    return BatchPlan(batch_size, steps, ranks, whole_steps=True)


def _fix(total: int, batch_size: int, ranks: int) -> str:
    """Returns the largest batch size that fits; if there is none, the nearest global batch that does."""
    share, rest = divmod(total, ranks)
    if not rest:
        largest = next(size for size in range(min(share, batch_size), 0, -1) if share % size == 0)
        return f"use -batch_size={largest}"
    micro_step = batch_size * ranks
    nearest = max(1, round(total / micro_step)) * micro_step
    return f"no batch size divides it on {ranks} ranks: use DATA.GLOBAL_BATCH_SIZE={nearest}"
