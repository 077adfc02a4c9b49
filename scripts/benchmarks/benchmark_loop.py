"""The training loop's images/s against a bare loop of the same model, and what guarding a run costs it.

    python scripts/benchmarks/benchmark_loop.py -cfg=configs/vit_tiny_patch16_224.yaml -batch_size=32 -amp

The bare loop has what training needs and nothing else: forward, loss, backward, clipping, AdamW with the schedule. The
guarded loop is the training loop as a run has it: it logs, heeds signals, keeps its tables and saves (every
SAVE_FREQ_STEPS, here 16 unless set: far more often than a run would). All are on ready batches and run in turns, a few
steps each, so that a machine's drift falls on all; the medians of the ratios are printed.
"""

import statistics
import sys
import time
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import torch.nn.functional as F
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[2]))

from configs.command_line import parse_command_line
from configs.schema import Config
from datasets.batch import Batch
from engine.checkpoint.epoch_layout import EpochLayout
from engine.progress import EpochProgress
from engine.training.optimizer import build_optimizer, set_lr
from engine.training.step import TrainState, train_one_epoch
from engine.training.trainer import Trainer, build_train_state
from scripts.benchmarks.common import (
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
from utils.distributed import ProcessContext, single_process
from utils.errors import UserError, run_and_report_errors
from utils.logger import RunLogger
from utils.metrics import MetricSums
from utils.status import RunStatus

SCRIPT = "benchmark_loop.py"
GROUPS, STEPS_PER_GROUP, WARMUP_STEPS = 12, 4, 3
SAVE_FREQ_STEPS = 16


def main(argv: list[str]) -> int:
    flags, rest = split_flags(flag_parser(SCRIPT, "The training loop's speed against a bare loop's."), argv)
    config = parse_command_line(rest).config
    if config.amp.enabled and config.amp.level != "O1":
        raise UserError(
            f"AMP.LEVEL {config.amp.level}: the bare loop has autocast only; see benchmark_amp.py for levels"
        )
    context = single_process()
    geometry = EpochLayout(samples=10**6, batch_size=config.data.batch_size, accum_iter=1, seed=config.seed)
    ours = our_loop(
        build_train_state(config, context, geometry, RunLogger(None, context)), ready_batches(config, context)
    )
    bare = bare_loop(
        build_train_state(config, context, geometry, RunLogger(None, context)), ready_batches(config, context)
    )
    with TemporaryDirectory() as folder:
        trainer = guarded_trainer(config, context, Path(folder))
        after_step = Timed(trainer.after_step)
        guarded = our_loop(trainer.learner, ready_batches(config, context), trainer.progress, after_step)
        seconds = measured({"ours": ours, "bare": bare, "guarded": guarded}, context)
        trainer.wait_until_saved()
    images = STEPS_PER_GROUP * config.data.batch_size
    speeds = {name: images / statistics.median(values) for name, values in seconds.items()}
    ratios = {"ours / bare": speed_ratios(seconds, "ours", "bare")}
    ratios["guarded / ours"] = speed_ratios(seconds, "guarded", "ours")
    found = environment(SCRIPT, argv, config)
    print(environment_line(found), end="\n\n")
    print(markdown_table(["loop", "images/s"], [[name, f"{speed:.1f}"] for name, speed in speeds.items()]))
    for name, values in ratios.items():
        middle = f"{statistics.median(values):.3f} (median of {GROUPS} pairs; {min(values):.3f} to {max(values):.3f})"
        print(f"{name}: {middle}")
    share = statistics.median(after_step.seconds) * STEPS_PER_GROUP / statistics.median(seconds["guarded"])
    print(
        f"guarding a step: {1000 * statistics.median(after_step.seconds):.2f} ms, {share:.2%} of it (median; one that "
        f"takes the copy to save: {1000 * max(after_step.seconds):.0f} ms)"
    )
    medians = {name: statistics.median(values) for name, values in ratios.items()}
    write_json(flags.json, speeds | medians | {"guard_share": share, "environment": found})
    return 0


def measured(loops: dict[str, Callable[[int], None]], context: ProcessContext) -> dict[str, list[float]]:
    """Seconds of each group of steps, by loop."""
    for loop in loops.values():
        loop(WARMUP_STEPS)
    seconds: dict[str, list[float]] = {name: [] for name in loops}
    for _, name in interleaved(list(loops), GROUPS):
        seconds[name].append(timed(lambda loop=loops[name]: loop(STEPS_PER_GROUP), context.device))
    return seconds


def speed_ratios(seconds: dict[str, list[float]], one: str, other: str) -> list[float]:
    return [theirs / ours for ours, theirs in zip(seconds[one], seconds[other], strict=True)]


def our_loop(
    learner: TrainState,
    batches: list[Batch],
    progress: EpochProgress | None = None,
    after_step: Callable[[EpochProgress], None] = lambda _: None,
) -> Callable[[int], None]:
    stream = cycle(batches)
    progress = progress or EpochProgress(0, 10**6, batches=10**6, sums=MetricSums(learner.context.device))
    return lambda steps: train_one_epoch(learner, stream, progress, progress.done_steps + steps, after_step)


class Timed:
    """A callback and the seconds that each of its calls took."""

    def __init__(self, callback: Callable[[EpochProgress], None]) -> None:
        self.callback = callback
        self.seconds: list[float] = []

    def __call__(self, progress: EpochProgress) -> None:
        started = time.perf_counter()
        self.callback(progress)
        self.seconds.append(time.perf_counter() - started)


def guarded_trainer(config: Config, context: ProcessContext, folder: Path) -> Trainer:
    options = {"save_freq_steps": config.save_freq_steps or SAVE_FREQ_STEPS}
    trainer = Trainer(config.model_copy(update=options), context, folder, RunLogger(None, context), None)
    trainer.open(RunStatus(folder, context.world_size))
    trainer.reporter.start_epoch(trainer.progress)
    return trainer


def bare_loop(learner: TrainState, batches: list[Batch]) -> Callable[[int], None]:
    """What one writes by hand, on float32 batches that are already normalized."""
    model, options, precision = learner.weights.full, learner.config.train, learner.precision
    optimizer = build_optimizer(model, options)
    scaler = torch.amp.GradScaler(precision.device.type, enabled=precision.dtype == torch.float16)
    stream = cycle([(learner.eval_transform(batch.images), batch.targets) for batch in batches])
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
    sys.exit(run_and_report_errors(main, sys.argv[1:]))
