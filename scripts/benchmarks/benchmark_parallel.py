"""Compares the strategies of PARALLEL on the GPUs of this host: step time and peak memory, measured and predicted.

    python scripts/benchmarks/benchmark_parallel.py -cfg=configs/vit_base_patch16_224.yaml -amp -json parallel.json

One process per visible GPU; `-ranks N` sets their number, also without a GPU. The variants:

- `one`: one device without an exchange (with one process only);
- `ddp`; `ddp_bf16`: gradients are exchanged in bfloat16; `ddp_5mb`, `ddp_100mb`: other sizes of the buckets;
- `ddp_exchange`: `ddp` with the exchange between the ranks that each step of a run has, for signals and slow ranks;
- `fsdp`; `fsdp_kept`: gathered parameters stay until the backward pass; `fsdp_checkpointing`.

With one process the strategies run, too, so that one GPU shows what wrapping, copies and hooks cost; a run of one
process uses none of them. Each variant trains on ready batches: `-warmup` untimed steps, `-steps` timed ones. The
planner (scripts/plan.py) is calibrated on the first variant at the first of the `-batch_sizes`, and predicts the
others. It predicts nothing for a device without datasheet figures. `-json` is rewritten after every variant.
"""

import argparse
import gc
import sys
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

from configs.reading.command_line import parse_command_line
from configs.schema import Config
from engine.checkpoint.save_trigger import SaveTrigger
from engine.parallel.build import build_strategy
from engine.parallel.fsdp import FSDP
from engine.parallel.strategy import Single, Strategy
from scripts.benchmarks.common import parse_batch_sizes, print_progress, write_json
from scripts.benchmarks.parallel_predictions import predictions
from scripts.benchmarks.parallel_report import HEADER, variant_rows
from scripts.benchmarks.training_parts import build_state, new_progress, ready_batches, training_loop
from scripts.flags import add_flag, flag_parser, positive, split_flags
from utils.device import device_name, peak_memory_bytes, timed, visible_gpus
from utils.distributed import ProcessContext, process_group
from utils.entry import run_and_report_errors
from utils.errors import UserError, did_you_mean
from utils.launch import launch_processes
from utils.launcher import detect_launcher
from utils.tables import markdown_table

SCRIPT = "benchmarks/benchmark_parallel.py"
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
    flags, rest = split_flags(_parser(), argv)
    names, batch_sizes = checked_variants(flags.variants), parse_batch_sizes(flags.batch_sizes)
    if detect_launcher() is None:
        return launch_processes(__file__, argv, flags.ranks or visible_gpus() or 1)
    with process_group() as context:
        result = measure_all(rest, names, batch_sizes, flags, context)
    if context.is_main:
        print(markdown_table(HEADER, variant_rows(result)))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = flag_parser(SCRIPT, "Compares the strategies of PARALLEL on the GPUs of this host.")
    add_flag(parser, "ranks", type=positive, metavar="N", help="processes (default: one per visible GPU)")
    add_flag(parser, "variants", metavar="A,B", help=f"of {', '.join(VARIANTS)} (default: all)")
    add_flag(parser, "batch_sizes", default="64,128", metavar="A,B", help="per device (default: 64,128)")
    add_flag(parser, "warmup", type=positive, default=5, metavar="N", help="first steps, not timed (default: 5)")
    add_flag(parser, "steps", type=positive, default=20, metavar="N", help="timed steps (default: 20)")
    return parser


def checked_variants(text: str | None) -> list[str]:
    """Raises UserError for an unknown name."""
    names = list(dict.fromkeys(text.split(","))) if text else list(VARIANTS)
    for name in names:
        if name not in VARIANTS:
            raise UserError(f"-variants: unknown {name}{did_you_mean(name, VARIANTS)} (known: {', '.join(VARIANTS)})")
    return names


def measure_all(
    rest: list[str], names: list[str], batch_sizes: list[int], flags: argparse.Namespace, context: ProcessContext
) -> dict[str, Any]:
    """Figures of each variant and batch size, with those that the planner predicts; a collective call."""
    if context.world_size > 1:
        names = [name for name in names if name != ONE]
    result: dict[str, Any] = {"device": device_name(context.device), "ranks": context.world_size, "variants": {}}
    configs: dict[str, Config] = {}
    for batch_size in batch_sizes:
        for name in names:
            key = f"{name}-{batch_size}"
            configs[key] = variant_config(rest, name, batch_size)
            result["variants"][key] = _measured(configs[key], name, flags, context)
            if context.is_main:
                print_progress(f"{key}: {result['variants'][key]}")
                write_json(flags.json, result)
    if context.is_main:
        for key, predicted in predictions(configs, result).items():
            result["variants"][key] |= predicted
        write_json(flags.json, result)
    return result


def variant_config(rest: list[str], name: str, batch_size: int) -> Config:
    return parse_command_line([*rest, f"-batch_size={batch_size}", *VARIANTS[name]]).config


def _measured(config: Config, name: str, flags: argparse.Namespace, context: ProcessContext) -> dict[str, Any]:
    try:
        return measure(config, name, flags.warmup, flags.steps, context)
    except (UserError, torch.OutOfMemoryError) as error:  # every rank raises it
        return {"failed": next(iter(str(error).splitlines()), type(error).__name__)}


def measure(config: Config, name: str, warmup: int, steps: int, context: ProcessContext) -> dict[str, Any]:
    """Seconds of a step and the peak memory of this rank."""
    _free_memory(context)
    with patch("engine.training.build.build_strategy", lambda *_: strategy_of(config, name, context)):
        state = build_state(config, context)
    # The exchange of a group of one process takes the host as long as that of more.
    trigger = SaveTrigger(replace(context, world_size=max(2, context.world_size)), config.timeout_seconds)
    after_step = (lambda progress: trigger.should_save(progress.step)) if name == EXCHANGE else (lambda _: None)
    loop = training_loop(state, cycle(ready_batches(config, context)), new_progress(context), after_step)
    loop(warmup)
    seconds = timed(lambda: loop(steps), context.device) / steps
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


def _free_memory(context: ProcessContext) -> None:
    """After the state of the variant before is gone."""
    gc.collect()
    if context.device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(context.device)


if __name__ == "__main__":
    sys.exit(run_and_report_errors(main, sys.argv[1:]))
