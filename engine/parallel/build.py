"""PARALLEL.STRATEGY -> strategy, imported where it is used."""

from configs.schema import Parallel
from engine.parallel.strategy import Single, Strategy
from utils.distributed import ProcessContext


def build_strategy(options: Parallel, context: ProcessContext) -> Strategy:
    """Builds the strategy of the run; one process uses none.

    Raises:
        UserError: as `FSDP`.
    """
    if context.world_size == 1:
        return Single()
    if options.strategy == "ddp":
        from engine.parallel.ddp import DDP

        return DDP(context.device, options)
    from engine.parallel.fsdp import FSDP

    return FSDP(options, context)
