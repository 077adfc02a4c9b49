"""Compares the training loop with a bare loop of the same model, and measures the cost of logging and saving.

    python scripts/benchmarks/benchmark_loop.py -cfg=configs/vit_tiny_patch16_224.yaml -batch_size=32 -amp

- `ours`: the training loop without log and checkpoints;
- `bare`: forward pass, loss, backward pass, clipping, AdamW and the learning rate schedule, nothing else;
- `guarded`: the training loop of a real run, which logs, handles signals, writes its tables and saves every
  SAVE_FREQ_STEPS steps (16 unless it is set: far more often than a real run).

All use ready batches. The loops alternate every few steps, so that changes of the machine's speed affect all equally.
The script prints the medians of the ratios.
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

from configs.reading.command_line import parse_command_line
from configs.schema import Config, Train
from datasets.batch import Batch
from datasets.transforms.device import build_eval_transform
from engine.progress import EpochProgress
from engine.training.optimization.optimizer import build_optimizer, set_lr
from engine.training.state import TrainState
from scripts.benchmarks.common import environment, environment_line, interleaved, median_and_range, write_json
from scripts.benchmarks.training_parts import build_state, new_progress, open_trainer, ready_batches, training_loop
from scripts.flags import flag_parser, split_flags
from utils.device import timed
from utils.distributed import ProcessContext, single_process
from utils.entry import run_and_report_errors
from utils.errors import UserError
from utils.tables import markdown_table

SCRIPT = "benchmarks/benchmark_loop.py"
GROUPS, STEPS_PER_GROUP, WARMUP_STEPS = 12, 4, 3
SAVE_FREQ_STEPS = 16


def main(argv: list[str]) -> int:
    flags, rest = split_flags(flag_parser(SCRIPT, "Compares the training loop with a bare loop."), argv)
    config = parse_command_line(rest).config
    if config.amp.enabled and config.amp.level != "O1":
        raise UserError(f"AMP.LEVEL {config.amp.level}: the bare loop supports O1 only; see benchmark_amp.py")
    context = single_process()
    seconds, after_step_seconds = measure(config, context)
    speeds = {
        name: STEPS_PER_GROUP * config.data.batch_size / statistics.median(values) for name, values in seconds.items()
    }
    ratios = {
        f"{one} / {other}": [slow / fast for fast, slow in zip(seconds[one], seconds[other], strict=True)]
        for one, other in (("ours", "bare"), ("guarded", "ours"))
    }
    guard_seconds = statistics.median(after_step_seconds)
    guard_share = guard_seconds * STEPS_PER_GROUP / statistics.median(seconds["guarded"])
    measured_on = environment(SCRIPT, argv, config)
    print(environment_line(measured_on), end="\n\n")
    print(markdown_table(["loop", "images/s"], [[name, f"{speed:.1f}"] for name, speed in speeds.items()]))
    for name, values in ratios.items():
        print(f"{name}: {median_and_range(values, '.3f')}, {GROUPS} pairs")
    print(
        f"logging and saving: {1000 * guard_seconds:.2f} ms per step (median), {guard_share:.2%} of the step; "
        f"{1000 * max(after_step_seconds):.0f} ms in a step that saves"
    )
    medians = {name: statistics.median(values) for name, values in ratios.items()}
    write_json(flags.json, speeds | medians | {"guard_share": guard_share, "environment": measured_on})
    return 0


def measure(config: Config, context: ProcessContext) -> tuple[dict[str, list[float]], list[float]]:
    """Seconds of each group of steps by loop, and seconds of each call after a step of the guarded loop."""
    state = build_state(config, context)
    loops = {
        "ours": training_loop(state, cycle(ready_batches(config, context)), new_progress(context)),
        "bare": bare_loop(build_state(config, context), config.train, ready_batches(config, context)),
    }
    save_freq_steps = config.save_freq_steps or SAVE_FREQ_STEPS
    with TemporaryDirectory() as folder:
        trainer = open_trainer(config.model_copy(update={"save_freq_steps": save_freq_steps}), context, Path(folder))
        trainer.run.reporter.start_epoch(trainer.progress)
        after_step = TimedCallback(trainer.after_step)
        batches = cycle(ready_batches(config, context))
        loops["guarded"] = training_loop(trainer.run.state, batches, trainer.progress, after_step)
        for loop in loops.values():
            loop(WARMUP_STEPS)
        seconds: dict[str, list[float]] = {name: [] for name in loops}
        for _, name in interleaved(list(loops), GROUPS):
            seconds[name].append(timed(lambda loop=loops[name]: loop(STEPS_PER_GROUP), context.device))
        trainer.wait_until_saved()
    return seconds, after_step.seconds


class TimedCallback:
    """A callback that records the seconds of each call."""

    def __init__(self, callback: Callable[[EpochProgress], None]) -> None:
        self.callback = callback
        self.seconds: list[float] = []

    def __call__(self, progress: EpochProgress) -> None:
        started = time.perf_counter()
        self.callback(progress)
        self.seconds.append(time.perf_counter() - started)


def bare_loop(state: TrainState, options: Train, batches: list[Batch]) -> Callable[[int], None]:
    """A plain training loop on float32 batches that are normalized in advance."""
    precision, model = state.precision, state.precision.weights.master
    optimizer = build_optimizer(model, options)
    scaler = torch.amp.GradScaler(precision.device.type, enabled=precision.dtype == torch.float16)
    normalize = build_eval_transform(state.config.data).to(precision.device)
    stream = cycle([(normalize(batch.images), batch.targets) for batch in batches])
    steps_done = 0

    def run(steps: int) -> None:
        nonlocal steps_done
        model.train()
        for _ in range(steps):
            images, targets = next(stream)
            set_lr(optimizer, state.schedule.lr_at(steps_done))
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
