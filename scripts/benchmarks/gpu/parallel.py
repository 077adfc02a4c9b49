"""The part `parallel` of benchmark_gpu.py: throughput and peak memory with the strategies of PARALLEL.

One process per visible GPU. The variants:

- `ddp`; `ddp_bf16`: gradients are exchanged in bfloat16; `ddp_5mb`, `ddp_100mb`: other sizes of the buckets;
- `fsdp`; `fsdp_kept`: gathered parameters stay until the backward pass; `fsdp_checkpointing`.

With one process the strategies run, too, so that one GPU shows the cost of wrapping, copies and hooks; a run of one
process uses none of them (part `O1_small`). Each variant trains on ready batches. `-json` is rewritten after each.
"""

import gc
import sys
from itertools import cycle
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

sys.path.insert(0, str(Path(__file__).parents[3]))

from configs.reading.command_line import parse_command_line
from configs.schema import Config
from engine.parallel.ddp import DDP
from engine.parallel.fsdp import FSDP
from engine.parallel.strategy import Strategy
from engine.training.trial import build_state, ready_batches, training_loop
from scripts.benchmarks.common import write_json
from scripts.benchmarks.turns import Figures
from scripts.flags import flag_parser, split_flags
from utils.device import peak_memory_bytes, timed, visible_gpus
from utils.distributed import ProcessContext, process_group
from utils.errors import UserError
from utils.processes.entry import run_and_report_errors
from utils.processes.launch import launch_processes
from utils.processes.launcher import detect_launcher

WARMUP_STEPS, STEPS = 5, 20
VARIANTS: dict[str, tuple[str, ...]] = {  # options
    "ddp": ("PARALLEL.STRATEGY=ddp",),
    "fsdp": ("PARALLEL.STRATEGY=fsdp",),
    "ddp_bf16": ("PARALLEL.COMM_HOOK=bf16",),
    "ddp_5mb": ("PARALLEL.BUCKET_MB=5",),
    "ddp_100mb": ("PARALLEL.BUCKET_MB=100",),
    "fsdp_kept": ("PARALLEL.STRATEGY=fsdp", "PARALLEL.RESHARD_AFTER_FORWARD=false"),
    "fsdp_checkpointing": ("PARALLEL.STRATEGY=fsdp", "MODEL.GRAD_CHECKPOINTING=true"),
}


def main(argv: list[str]) -> int:
    parser = flag_parser("benchmarks/gpu/parallel.py", "Compares the strategies of PARALLEL on the GPUs of this host.")
    flags, rest = split_flags(parser, argv)
    if detect_launcher() is None:
        return launch_processes(__file__, argv, visible_gpus() or 1)
    with process_group() as context:
        measure_all(rest, flags.json, context)
    return 0


def measure_all(rest: list[str], file: Path | None, context: ProcessContext) -> dict[str, Any]:
    """Figures of each variant; a collective call."""
    figures: Figures = {}
    result = {"ranks": context.world_size, "figures": figures}
    for name, options in VARIANTS.items():
        config = parse_command_line([*rest, "-opts", *options]).config
        try:
            figures[name] = measure(config, context)
        except (UserError, torch.OutOfMemoryError) as error:  # every rank raises it
            figures[name] = {"failed": next(iter(str(error).splitlines()), type(error).__name__)}
        if context.is_main:
            print(f"{name}: {figures[name]}", file=sys.stderr, flush=True)
            write_json(file, result)
    return result


def measure(config: Config, context: ProcessContext) -> dict[str, list[float]]:
    """Images/s of all ranks and the peak memory of this rank."""
    gc.collect()  # the state of the variant before
    if context.device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(context.device)
    with patch("engine.training.build.build_strategy", lambda *_: strategy_of(config, context)):
        state = build_state(config, context)
    loop = training_loop(state, cycle(ready_batches(config, context)), context)
    loop(WARMUP_STEPS)
    seconds = timed(lambda: loop(STEPS), context.device)
    images = STEPS * config.data.batch_size * state.layout.accum_iter * context.world_size
    return {"images_per_second": [images / seconds], "peak_memory_bytes": [peak_memory_bytes(context.device)]}


def strategy_of(config: Config, context: ProcessContext) -> Strategy:
    """The strategy of a variant, also in a run of one process, which would use none."""
    options = config.parallel
    return DDP(context.device, options) if options.strategy == "ddp" else FSDP(options, context)


if __name__ == "__main__":
    sys.exit(run_and_report_errors(main, sys.argv[1:]))
