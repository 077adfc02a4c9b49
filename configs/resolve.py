"""The global batch: batch size x gradient accumulation steps x world size."""

from configs.schema import Config
from utils.errors import UserError


def accumulation_steps(config: Config, world_size: int) -> int:
    """The micro-steps of an optimizer step: as many as DATA.GLOBAL_BATCH_SIZE needs, else TRAIN.ACCUM_ITER.

    The only place that derives them. The options keep what the user gave, so that a resumed run derives them again.

    Raises:
        UserError: the global batch is not a multiple of the batch size over all ranks.
    """
    total = config.data.global_batch_size
    if total is None:
        return config.train.accum_iter
    batch_size = config.data.batch_size
    steps, rest = divmod(total, batch_size * world_size)
    if rest:
        raise UserError(
            f"DATA.GLOBAL_BATCH_SIZE {total}: is not a multiple of {batch_size * world_size} (batch size {batch_size} "
            f"x {world_size} rank(s)); {_fix(total, batch_size, world_size)}"
        )
    return steps


def _fix(total: int, batch_size: int, world_size: int) -> str:
    """The largest batch size that fits; if there is none, numbers of ranks and a global batch that do."""
    share, rest = divmod(total, world_size)
    if not rest:
        return f"use -batch_size={_largest_divisor(share, batch_size)}"
    below = next(ranks for ranks in range(world_size, 0, -1) if total % ranks == 0)
    above = next((ranks for ranks in range(world_size, 8 * world_size) if total % ranks == 0), None)
    ranks = f"{below} or {above} ranks" if above else f"{below} rank{'s' * (below > 1)}"
    micro_batch = batch_size * world_size
    nearest = max(1, round(total / micro_batch)) * micro_batch
    return f"no batch size divides it on {world_size} ranks: use {ranks}, or DATA.GLOBAL_BATCH_SIZE={nearest}"


def _largest_divisor(number: int, limit: int) -> int:
    return next(size for size in range(min(number, limit), 0, -1) if number % size == 0)
