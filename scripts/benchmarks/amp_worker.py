"""One measurement of benchmark_amp.py: trains in one precision and returns seconds and peak memory."""

import argparse
import math
import resource
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from configs.schema import Config
from datasets.batch import Batch
from engine.precision.policy import Precision
from engine.run.mfu.flops import forward_flops
from engine.training.state import TrainState
from scripts.benchmarks.device_speed import matmul_flops_per_second
from scripts.benchmarks.training_parts import (
    build_plain_model,
    build_state,
    new_progress,
    ready_batches,
    training_loop,
)
from utils.device import peak_memory_bytes, timed
from utils.distributed import ProcessContext, single_process
from utils.memory_shortage import find_shortage
from utils.metrics import to_metrics

WARMUP_ITERATIONS = 5
PROBE_STEPS = 2  # the optimizer allocates its state in the first step
# PaddlePaddle's AMP tutorial: 5 epochs of 50 batches, SGD, MSE loss.
LINEAR_WIDTH, LINEAR_BATCH, LINEAR_LR, LINEAR_ACCUMULATION = 4096, 512, 1e-4, 10
OUT_OF_MEMORY = "out of memory"


def measure_mode(config: Config, flags: argparse.Namespace) -> dict[str, Any]:
    """The figures of one measurement, or {'failed': OUT_OF_MEMORY}."""
    context = single_process()
    if flags.memory_gb:
        limit_memory(flags.memory_gb, context.device)
    try:
        if flags.max_batch:
            probe_batch_size(config, context)
            return {}
        if flags.workload == "linear":
            return linear_figures(config, context, flags.iterations)
        return training_figures(config, context, flags.iterations)
    except (RuntimeError, MemoryError) as error:
        is_onednn = flags.memory_gb and "could not create a" in str(error)  # how oneDNN reports a failed allocation
        if not (find_shortage(error) or is_onednn):
            raise
        return {"failed": OUT_OF_MEMORY}


def limit_memory(gigabytes: float, device: torch.device) -> None:
    """Limits the memory that this process can allocate in addition to its present memory."""
    if device.type == "cuda":
        total = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, gigabytes * 1e9 / total), device)
        return
    torch.ones(512, 512) @ torch.ones(512, 512)  # starts torch's threads: their stacks must not count
    limit = kilobytes_in("/proc/self/status", "VmData") * 1024 + int(gigabytes * 1e9)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def kilobytes_in(file: str, key: str) -> int:
    """The value of a line such as 'MemAvailable: 1024 kB' in a file of /proc."""
    lines = Path(file).read_text().splitlines()
    (kilobytes,) = (int(line.split()[1]) for line in lines if line.startswith(f"{key}:"))
    return kilobytes


def probe_batch_size(config: Config, context: ProcessContext) -> None:
    """Trains a few steps. Raises RuntimeError or MemoryError if the batch size does not fit."""
    batches = cycle(ready_batches(config, context))
    state = build_state(config, context)
    train(state, context, batches, PROBE_STEPS * state.layout.accum_iter)


def training_figures(config: Config, context: ProcessContext, iterations: int) -> dict[str, Any]:
    state, batches = build_state(config, context), cycle(ready_batches(config, context))
    train(state, context, batches, WARMUP_ITERATIONS)
    seconds, loss = train(state, context, batches, iterations)
    memory = peak_memory_bytes(context.device)
    del state, batches  # frees memory for the matrix products
    return {
        "seconds": seconds,
        "peak_memory_bytes": memory,
        "loss": loss if math.isfinite(loss) else None,
        "forward_flops": forward_flops(build_plain_model(config), config.data),
        "matmul_flops_per_second": matmul_flops_per_second(Precision(config.amp, context.device)),
    }


def train(state: TrainState, context: ProcessContext, batches: Iterator[Batch], iterations: int) -> tuple[float, float]:
    """Trains `iterations` micro-batches. Returns the seconds and the mean loss."""
    steps = math.ceil(iterations / state.layout.accum_iter)
    progress = new_progress(context, steps, iterations)
    loop = training_loop(state, batches, progress)
    seconds = timed(lambda: loop(steps), context.device)
    return seconds, to_metrics(progress.sums.totals()).loss


def linear_figures(config: Config, context: ProcessContext, iterations: int) -> dict[str, float]:
    def seconds(accumulation: int) -> float:
        return _linear_seconds(Precision(config.amp, context.device), iterations, accumulation)

    return {"seconds": seconds(1), "accumulating_seconds": seconds(LINEAR_ACCUMULATION)}


def _linear_seconds(precision: Precision, iterations: int, accumulation: int) -> float:
    torch.manual_seed(0)
    layers = [nn.Linear(LINEAR_WIDTH, LINEAR_WIDTH) for _ in range(3)]
    model = nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2]).to(precision.device)
    precision.apply_op_lists(model)
    compute_model = precision.attach(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=LINEAR_LR, fused=True)
    inputs, targets = torch.randn(2, LINEAR_BATCH, LINEAR_WIDTH, device=precision.device)

    def run(batches: int) -> None:
        for batch in range(1, batches + 1):
            with precision.autocast():
                outputs = compute_model(inputs)
            loss = F.mse_loss(outputs.float(), targets)
            precision.scaler.scale(loss / accumulation).backward()
            if batch % accumulation == 0 or batch == batches:
                precision.step(optimizer, max_norm=None, seed=batch)

    run(WARMUP_ITERATIONS)
    return timed(lambda: run(iterations), precision.device)
