"""The training loop's images/s against a bare loop of the same model, both on ready batches.

    python scripts/benchmark_loop.py -cfg=configs/vit_tiny_patch16_224.yaml -batch_size=32 -amp

The bare loop has what training needs and nothing else: forward, loss, backward, clipping, AdamW with the schedule. The
two run in turns, a few steps each, so that a machine's drift falls on both; the ratio of the medians is printed.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable
from itertools import cycle
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1]))

from configs.load import load
from configs.schema import Config
from datasets.loader import Batch
from engine.optimizer import build_optimizer, set_lr
from engine.step import EpochProgress, Learner, train_one_epoch
from engine.trainer import Geometry, build_learner
from utils.distributed import ProcessContext, single
from utils.errors import exit_status
from utils.logger import RunLogger
from utils.metrics import MetricSums

GROUPS, STEPS_PER_GROUP, WARMUP_STEPS = 12, 4, 3


def main(argv: list[str]) -> int:
    argv, json_path = split_json(argv)
    config = load(argv, "scripts/benchmark_loop.py").config
    context = single()
    geometry = Geometry(samples=10**6, batch_size=config.data.batch_size, accum_iter=1, seed=config.seed)
    ours = our_loop(build_learner(config, context, geometry, RunLogger(None, context)), ready_batches(config, context))
    bare = bare_loop(build_learner(config, context, geometry, RunLogger(None, context)), ready_batches(config, context))
    for loop in (ours, bare):
        loop(WARMUP_STEPS)
    seconds = {"ours": [], "bare": []}
    for group in range(GROUPS):
        turns = [("ours", ours), ("bare", bare)]
        for name, loop in turns if group % 2 else reversed(turns):
            seconds[name].append(timed(loop, context.device))
    images = STEPS_PER_GROUP * config.data.batch_size
    speeds = {name: images / statistics.median(values) for name, values in seconds.items()}
    ratios = [bare_s / our_s for our_s, bare_s in zip(seconds["ours"], seconds["bare"], strict=True)]
    result = speeds | {"ratio": statistics.median(ratios)}
    print("| loop | images/s |\n|---|---|")
    for name, speed in speeds.items():
        print(f"| {name} | {speed:.1f} |")
    print(f"ours / bare: {result['ratio']:.3f} (median of {GROUPS} pairs; {min(ratios):.3f} to {max(ratios):.3f})")
    if json_path:
        json_path.write_text(json.dumps(result, indent=2) + "\n")
    return 0


def split_json(argv: list[str]) -> tuple[list[str], Path | None]:
    """Takes `-json=FILE` out of the flags of the entry scripts."""
    files = [flag.partition("=")[2] for flag in argv if flag.startswith("-json=")]
    return [flag for flag in argv if not flag.startswith("-json=")], Path(files[-1]) if files else None


def ready_batches(config: Config, context: ProcessContext) -> list[Batch]:
    shape = (config.data.batch_size, config.data.image_channels, config.data.image_size, config.data.image_size)
    generator = torch.Generator().manual_seed(0)
    return [
        Batch(
            torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator).to(context.device),
            torch.randint(0, config.model.num_classes, shape[:1], generator=generator).to(context.device),
        )
        for _ in range(4)
    ]


def our_loop(learner: Learner, batches: list[Batch]) -> Callable[[int], None]:
    stream = cycle(batches)
    progress = EpochProgress(0, steps=10**6, batches=10**6, sums=MetricSums(learner.context.device))
    return lambda steps: train_one_epoch(learner, stream, progress, progress.done_steps + steps, lambda _: None)


def bare_loop(learner: Learner, batches: list[Batch]) -> Callable[[int], None]:
    """What one writes by hand, on float32 batches that are already normalized."""
    model, options, precision = learner.model, learner.config.train, learner.precision
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


def timed(loop: Callable[[int], None], device: torch.device) -> float:
    started = time.perf_counter()
    loop(STEPS_PER_GROUP)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - started


if __name__ == "__main__":
    sys.exit(exit_status(main, sys.argv[1:]))
