"""Table PARALLEL.STRATEGY -> strategy."""

from configs.schema import Parallel
from engine.parallel.ddp import DDP
from engine.parallel.fsdp import FSDP
from engine.parallel.strategy import Single, Strategy
from utils.distributed import ProcessContext


def build_strategy(options: Parallel, context: ProcessContext) -> Strategy:
    """One process uses none of them.

    Raises:
        UserError: as `FSDP`.
    """
    if context.world_size == 1:
        return Single()
    return DDP(context.device, options) if options.strategy == "ddp" else FSDP(options, context)
