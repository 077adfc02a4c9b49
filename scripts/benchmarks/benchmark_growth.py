"""Whether steps become slower, or the process larger, the longer a run lasts.

    python scripts/benchmarks/benchmark_growth.py -cfg=configs/vit_digits.yaml -amp -steps 10000

The training loop as a run has it, on ready batches: it logs, heeds signals, keeps its tables and saves when it is time.
A row for each tenth of the steps; what the first takes to warm up is not judged.
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
from engine.training.trainer import Trainer
from scripts.benchmarks.common import (
    add_flag,
    environment,
    environment_line,
    flag_parser,
    markdown_table,
    positive,
    ready_batches,
    split_flags,
    write_json,
)
from utils.device import keep_freed_memory
from utils.distributed import single_process
from utils.errors import run_and_report_errors
from utils.logger import RunLogger
from utils.status import RunStatus

SCRIPT = "benchmark_growth.py"
PARTS = 10


class Part(NamedTuple):
    """Of a tenth of the steps: their median time; and at its end the process's memory and Python's live objects."""

    seconds_per_step: float
    memory_bytes: int
    objects: int


def main(argv: list[str]) -> int:
    parser = flag_parser(SCRIPT, "Whether steps become slower, or the process larger, the longer a run lasts.")
    add_flag(parser, "steps", type=positive, default=10_000, metavar="N", help="in all (default: 10000)")
    flags, rest = split_flags(parser, argv)
    config = parse_command_line(rest).config
    context = single_process()
    with TemporaryDirectory() as folder:
        trainer = Trainer(config, context, Path(folder), RunLogger(None, context), None)
        trainer.open(RunStatus(Path(folder), context.world_size))
        batches = cycle(ready_batches(config, context))
        parts = [measured(trainer, batches, max(flags.steps // PARTS, 1)) for _ in range(PARTS)]
        trainer.reporter.close()
        trainer.wait_until_saved()
    found = environment(SCRIPT, argv, config)
    print(environment_line(found), end="\n\n")
    print(table(parts, flags.steps), end="\n\n")
    figures = growth(parts)
    print(", ".join(f"{name}: {value:.3f}" for name, value in figures.items()))
    write_json(flags.json, figures | {"parts": [part._asdict() for part in parts], "environment": found})
    return 0


def measured(trainer: Trainer, batches: cycle, steps: int) -> Part:
    seconds = []
    for _ in range(steps):
        began = time.perf_counter()
        trainer.train_steps(batches, 1)
        seconds.append(time.perf_counter() - began)
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return Part(statistics.median(seconds), pages * os.sysconf("SC_PAGESIZE"), len(gc.get_objects()))


def growth(parts: list[Part]) -> dict[str, float]:
    """The last tenth over the second."""
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
    return markdown_table(["steps", "ms a step", "memory (MB)", "live objects"], rows)


if __name__ == "__main__":
    keep_freed_memory()  # as a run does
    sys.exit(run_and_report_errors(main, sys.argv[1:]))
