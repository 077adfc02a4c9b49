"""The training loop's images/s against a bare loop of the same model, both on ready batches.

    python scripts/benchmark_loop.py -cfg=configs/vit_tiny_patch16_224.yaml -batch_size=32 -amp

The bare loop has what training needs and nothing else: forward, loss, backward, clipping, AdamW with the schedule. The
two run in turns, a few steps each, so that a machine's drift falls on both; the ratio of the medians is printed.
"""

import statistics
import sys
from collections.abc import Callable
from itertools import cycle
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1]))

from configs.load import load
from datasets.loader import Batch
from engine.geometry import Geometry
from engine.optimizer import build_optimizer, set_lr
from engine.step import EpochProgress, Learner, train_one_epoch
from engine.trainer import build_learner
from scripts.benchmarking import (
    environment,
    environment_line,
    flag_parser,
    interleaved,
    markdown_table,
    ready_batches,
    split_flags,
    timed,
    write_json,
)
from utils.distributed import single
from utils.errors import UserError, exit_status
from utils.logger import RunLogger
from utils.metrics import MetricSums

SCRIPT = "benchmark_loop.py"
GROUPS, STEPS_PER_GROUP, WARMUP_STEPS = 12, 4, 3


def main(argv: list[str]) -> int:
    flags, rest = split_flags(flag_parser(SCRIPT, "The training loop's speed against a bare loop's."), argv)
    config = load(rest).config
    if config.amp.enabled and config.amp.level != "O1":
        raise UserError(
            f"AMP.LEVEL {config.amp.level}: the bare loop has autocast only; see benchmark_amp.py for levels"
        )
    context = single()
    geometry = Geometry(samples=10**6, batch_size=config.data.batch_size, accum_iter=1, seed=config.seed)
    ours = our_loop(build_learner(config, context, geometry, RunLogger(None, context)), ready_batches(config, context))
    bare = bare_loop(build_learner(config, context, geometry, RunLogger(None, context)), ready_batches(config, context))
    loops = {"ours": ours, "bare": bare}
    for loop in loops.values():
        loop(WARMUP_STEPS)
    seconds = {name: [] for name in loops}
    for _, name in interleaved(list(loops), GROUPS):
        seconds[name].append(timed(lambda loop=loops[name]: loop(STEPS_PER_GROUP), context.device))
    images = STEPS_PER_GROUP * config.data.batch_size
    speeds = {name: images / statistics.median(values) for name, values in seconds.items()}
    ratios = [bare_s / our_s for our_s, bare_s in zip(seconds["ours"], seconds["bare"], strict=True)]
    found = environment(SCRIPT, argv, config)
    result = speeds | {"ratio": statistics.median(ratios), "environment": found}
    print(environment_line(found), end="\n\n")
    print(markdown_table(["loop", "images/s"], [[name, f"{speed:.1f}"] for name, speed in speeds.items()]))
    print(f"ours / bare: {result['ratio']:.3f} (median of {GROUPS} pairs; {min(ratios):.3f} to {max(ratios):.3f})")
    write_json(flags.json, result)
    return 0


def our_loop(learner: Learner, batches: list[Batch]) -> Callable[[int], None]:
    stream = cycle(batches)
    progress = EpochProgress(0, steps=10**6, batches=10**6, sums=MetricSums(learner.context.device))
    return lambda steps: train_one_epoch(learner, stream, progress, progress.done_steps + steps, lambda _: None)


def bare_loop(learner: Learner, batches: list[Batch]) -> Callable[[int], None]:
    """What one writes by hand, on float32 batches that are already normalized."""
    model, options, precision = learner.weights.full, learner.config.train, learner.precision
    optimizer = build_optimizer(model, options)
    scaler = torch.amp.GradScaler(precision.device.type, enabled=precision.dtype == torch.float16)
    stream = cycle([(learner.transform(batch.images), batch.targets) for batch in batches])
    steps_done = 0

    def run(steps: int) -> None:
        nonlocal steps_done
        model.train()
        for _ in range(steps):
            images, targets = next(stream)
            set_lr(optimizer, learner.schedule.lr_at(steps_done))
            with precision.autocast():
                loss = F.cross_entropy(model(images), targets, label_smoothing=options.smoothing)
            scaler.scale(loss).backward()
            if options.grad_clip:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), options.grad_clip)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=True)
            steps_done += 1

    return run


if __name__ == "__main__":
    sys.exit(exit_status(main, sys.argv[1:]))
