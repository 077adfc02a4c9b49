"""Measures whether the step time or the process's memory grows during a long run.

    python scripts/benchmarks/benchmark_growth.py -cfg=configs/vit_digits.yaml -amp -steps 10000

Runs the training loop of a real run on ready batches: it logs, handles signals, writes its tables and saves. Prints a
row for each tenth of the steps. Growth is the last tenth over the second tenth; the first tenth is warm-up.
"""

import gc
import os
import statistics
import sys
import time
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[2]))

from configs.command_line import parse_command_line
from engine.profiling.measured_training import MeasuredTraining
from scripts.benchmarks.common import environment, environment_line, write_json
from scripts.benchmarks.training_parts import build_new_run, ready_batches
from scripts.flags import add_flag, flag_parser, positive, split_flags
from utils.device import keep_freed_memory
from utils.distributed import single_process
from utils.errors import run_and_report_errors
from utils.tables import markdown_table

SCRIPT = "benchmarks/benchmark_growth.py"
PARTS = 10


class Part(NamedTuple):
    """A tenth of the steps: median step time; resident memory and live Python objects at its end."""

    seconds_per_step: float
    memory_bytes: int
    objects: int


def main(argv: list[str]) -> int:
    parser = flag_parser(SCRIPT, "Measures whether the step time or the memory grows during a long run.")
    add_flag(parser, "steps", type=positive, default=10_000, metavar="N", help="total steps (default: 10000)")
    flags, rest = split_flags(parser, argv)
    config = parse_command_line(rest).config
    context = single_process()
    with TemporaryDirectory() as folder:
        run = build_new_run(config, context, Path(folder))
        training = MeasuredTraining(run, cycle(ready_batches(config, context)))
        parts = [measure_part(training, max(flags.steps // PARTS, 1)) for _ in range(PARTS)]
        run.reporter.close()
    measured_on = environment(SCRIPT, argv, config)
    figures = growth(parts)
    print(environment_line(measured_on), table(parts, flags.steps), sep="\n\n", end="\n\n")
    print(", ".join(f"{name}: {value:.3f}" for name, value in figures.items()))
    write_json(flags.json, figures | {"parts": [part._asdict() for part in parts], "environment": measured_on})
    return 0


def measure_part(training: MeasuredTraining, steps: int) -> Part:
    seconds = []
    for _ in range(steps):
        started = time.perf_counter()
        training.train(steps=1)
        seconds.append(time.perf_counter() - started)
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return Part(statistics.median(seconds), pages * os.sysconf("SC_PAGESIZE"), len(gc.get_objects()))


def growth(parts: list[Part]) -> dict[str, float]:
    """The last part over the second."""
    early, late = parts[1], parts[-1]
    return {f"growth of {name}": getattr(late, name) / getattr(early, name) for name in Part._fields}


def table(parts: list[Part], steps: int) -> str:
    rows = [
        [
            str(number * steps // len(parts)),
            f"{1000 * part.seconds_per_step:.2f}",
            f"{part.memory_bytes / 1e6:.1f}",
            str(part.objects),
        ]
        for number, part in enumerate(parts, 1)
    ]
    return markdown_table(["steps", "ms per step", "memory (MB)", "live objects"], rows)


if __name__ == "__main__":
    keep_freed_memory()  # as the entry scripts do
    sys.exit(run_and_report_errors(main, sys.argv[1:]))
