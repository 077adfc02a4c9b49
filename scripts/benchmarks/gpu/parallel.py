"""The part `parallel` of benchmark_gpu.py: step time and peak memory with the strategies of PARALLEL.

One process per visible GPU. The variants:

- `one`: one device without an exchange (with one process only);
- `ddp`; `ddp_bf16`: gradients are exchanged in bfloat16; `ddp_5mb`, `ddp_100mb`: other sizes of the buckets;
- `ddp_exchange`: `ddp` with the exchange between the ranks that each step of a run has, for signals and slow ranks;
- `fsdp`; `fsdp_kept`: gathered parameters stay until the backward pass; `fsdp_checkpointing`.

With one process the strategies run, too, so that one GPU shows the cost of wrapping, copies and hooks; a run of one
process uses none of them. Each variant trains on ready batches. `-json` is rewritten after every variant.
"""

import gc
import sys
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

sys.path.insert(0, str(Path(__file__).parents[3]))

from configs.reading.command_line import parse_command_line
from configs.schema import Config
from engine.checkpoint.save_trigger import SaveTrigger
from engine.parallel.fsdp import FSDP
from engine.parallel.strategy import Single, Strategy, build_strategy
from scripts.benchmarks.common import parse_batch_sizes, parse_names, print_progress, write_json
from scripts.benchmarks.training_parts import build_state, new_progress, ready_batches, training_loop
from scripts.flags import add_flag, flag_parser, split_flags
from utils.device import device_name, peak_memory_bytes, timed, visible_gpus
from utils.distributed import ProcessContext, process_group
from utils.errors import UserError
from utils.processes.entry import run_and_report_errors
from utils.processes.launch import launch_processes
from utils.processes.launcher import detect_launcher

WARMUP_STEPS, STEPS = 5, 20
ONE, EXCHANGE = "one", "ddp_exchange"
VARIANTS: dict[str, tuple[str, ...]] = {  # flags
    ONE: (),
    "ddp": (),
    "fsdp": ("-opts", "PARALLEL.STRATEGY=fsdp"),
    "ddp_bf16": ("-opts", "PARALLEL.COMM_HOOK=bf16"),
    "ddp_5mb": ("-opts", "PARALLEL.BUCKET_MB=5"),
    "ddp_100mb": ("-opts", "PARALLEL.BUCKET_MB=100"),
    EXCHANGE: (),
    "fsdp_kept": ("-opts", "PARALLEL.STRATEGY=fsdp", "PARALLEL.RESHARD_AFTER_FORWARD=false"),
    "fsdp_checkpointing": ("-opts", "PARALLEL.STRATEGY=fsdp", "MODEL.GRAD_CHECKPOINTING=true"),
}


def main(argv: list[str]) -> int:
    parser = flag_parser("benchmarks/gpu/parallel.py", "Compares the strategies of PARALLEL on the GPUs of this host.")
    add_flag(parser, "variants", default=",".join(VARIANTS), metavar="A,B", help="default: all")
    add_flag(parser, "batch_sizes", default="64,128", metavar="A,B", help="per device (default: 64,128)")
    flags, rest = split_flags(parser, argv)
    names, batch_sizes = parse_names("variants", flags.variants, VARIANTS), parse_batch_sizes(flags.batch_sizes)
    if detect_launcher() is None:
        return launch_processes(__file__, argv, visible_gpus() or 1)
    with process_group() as context:
        measure_all(rest, names, batch_sizes, flags.json, context)
    return 0


def measure_all(
    rest: list[str], names: list[str], batch_sizes: list[int], file: Path | None, context: ProcessContext
) -> dict[str, Any]:
    """Figures of each variant and batch size; a collective call."""
    if context.world_size > 1:
        names = [name for name in names if name != ONE]
    result: dict[str, Any] = {"device": device_name(context.device), "ranks": context.world_size, "variants": {}}
    for batch_size in batch_sizes:
        for name in names:
            config = parse_command_line([*rest, f"-batch_size={batch_size}", *VARIANTS[name]]).config
            figures = _measured(config, name, context)
            result["variants"][f"{name}-{batch_size}"] = figures
            if context.is_main:
                print_progress(f"{name}-{batch_size}: {figures}")
                write_json(file, result)
    return result


def _measured(config: Config, name: str, context: ProcessContext) -> dict[str, Any]:
    try:
        return measure(config, name, context)
    except (UserError, torch.OutOfMemoryError) as error:  # every rank raises it
        return {"failed": next(iter(str(error).splitlines()), type(error).__name__)}


def measure(config: Config, name: str, context: ProcessContext) -> dict[str, Any]:
    """Seconds of a step and the peak memory of this rank."""
    gc.collect()  # the state of the variant before
    if context.device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(context.device)
    with patch("engine.training.build.build_strategy", lambda *_: strategy_of(config, name, context)):
        state = build_state(config, context)
    # The host takes as long for the exchange of one process as of several.
    trigger = SaveTrigger(replace(context, world_size=max(2, context.world_size)), config.timeout_seconds)
    after_step = (lambda progress: trigger.should_save(progress.step)) if name == EXCHANGE else (lambda _: None)
    loop = training_loop(state, cycle(ready_batches(config, context)), new_progress(context), after_step)
    loop(WARMUP_STEPS)
    seconds = timed(lambda: loop(STEPS), context.device) / STEPS
    images = config.data.batch_size * state.layout.accum_iter * context.world_size
    return {
        "step_seconds": seconds,
        "images_per_second": images / seconds,
        "peak_memory_bytes": peak_memory_bytes(context.device),
    }


def strategy_of(config: Config, name: str, context: ProcessContext) -> Strategy:
    """The strategy of a variant, also in a run of one process, which would use none."""
    if name == ONE:
        return Single()
    if config.parallel.strategy == "ddp":
        return build_strategy(config.parallel, replace(context, world_size=max(2, context.world_size)))
    return FSDP(config.parallel, context)


if __name__ == "__main__":
    sys.exit(run_and_report_errors(main, sys.argv[1:]))
