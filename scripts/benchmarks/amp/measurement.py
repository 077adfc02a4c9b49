"""One measurement of benchmark_amp.py: trains in one precision and returns seconds and peak memory."""

import math
from collections.abc import Iterator
from itertools import cycle
from typing import Any

from configs.schema import Config
from datasets.batch import Batch
from engine.training.state import TrainState
from scripts.benchmarks.training_parts import build_state, new_progress, ready_batches, training_loop
from utils.device import peak_memory_bytes, timed
from utils.distributed import ProcessContext, single_process
from utils.memory_shortage import find_shortage
from utils.metrics import to_metrics

WARMUP_ITERATIONS = 5
OUT_OF_MEMORY = "out of memory"


def measure_mode(config: Config, iterations: int) -> dict[str, Any]:
    """The figures of one measurement, or {'failed': OUT_OF_MEMORY}."""
    context = single_process()
    try:
        state, batches = build_state(config, context), cycle(ready_batches(config, context))
        train(state, context, batches, WARMUP_ITERATIONS)
        seconds, loss = train(state, context, batches, iterations)
    except (RuntimeError, MemoryError) as error:
        if not find_shortage(error):
            raise
        return {"failed": OUT_OF_MEMORY}
    memory = peak_memory_bytes(context.device)
    return {"seconds": seconds, "peak_memory_bytes": memory, "loss": loss if math.isfinite(loss) else None}


def train(state: TrainState, context: ProcessContext, batches: Iterator[Batch], iterations: int) -> tuple[float, float]:
    """Trains `iterations` micro-batches. Returns the seconds and the mean loss."""
    steps = math.ceil(iterations / state.layout.accum_iter)
    progress = new_progress(context, steps, iterations)
    loop = training_loop(state, batches, progress)
    seconds = timed(lambda: loop(steps), context.device)
    return seconds, to_metrics(progress.sums.totals()).loss
