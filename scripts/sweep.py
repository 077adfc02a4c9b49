"""Trains one run per combination of options, as many side by side as there are GPUs; the same command continues.

    python scripts/sweep.py -cfg configs/vit_digits.yaml -set DATA.FOLD=0..4 -set SEED=0..2 -opts DATA.FOLDS=5
    python scripts/sweep.py -cfg configs/vit_digits.yaml -set TRAIN.BASE_LR=1e-3,2e-3 -set SEED=0..2 -gpus 4

The runs are in `output/NAME-sweep-CHECKSUM`, in folders that are named by their options. Finished runs are skipped,
others are resumed. A run that fails stops no other one; it is named at the end, and the exit status is 1. Ctrl-C stops
all runs, which save. At the end the runs are compared as `scripts/report.py` does. `null` leaves a key that cannot be
null as the recipe has it: `-set LOSS.NAME=null,bce`.
"""

import itertools
import json
import math
import os
import re
import subprocess
import sys
import time
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from configs.command_line import parse_command_line
from configs.compare import non_default_options
from configs.flags import add_flag, positive
from configs.help import all_keys
from configs.load import RUN_OPTIONS
from configs.schema.section import MAX_NAME_CHARS, without
from configs.yaml_io import shorten
from engine.checkpoint.run_folder import check_writable, decided_run, lock_run_folder
from scripts import report
from scripts.flags import script_parser, split_flags
from utils.device import visible_gpus
from utils.errors import Unavailable, UserError
from utils.files import atomic_write, own_file, read_json, unshared
from utils.notes import STATUS, SWEEP, run_name
from utils.processes.entry import run_script
from utils.processes.launch import end_with_parent, stop_processes
from utils.system import own_share

ENTRY = Path(__file__).parents[1] / "main_single_gpu.py"
MAX_RUNS = 1000
_UNCHECKED = ("SAVE", "DATA.NUM_WORKERS")  # may change while a sweep is running
_SAME_SPEED = ("SEED", "DATA.FOLD", "TRAIN.", "LOSS.")  # begin the keys of runs that have the epochs of the first one


def main(argv: list[str]) -> int:
    usage = "-cfg FILE -set KEY=VALUES [-set ...] [-gpus N] [-jobs N] [flags of main_single_gpu.py]"
    parser = script_parser("sweep.py", usage, "Trains one run per combination of options; the same command continues.")
    values = "a key and its values: DATA.FOLD=0..4, TRAIN.BASE_LR=1e-3,2e-3"
    add_flag(parser, "set", action="append", required=True, metavar="KEY=VALUES", help=values)
    add_flag(parser, "gpus", type=positive, metavar="N", help="use the first N visible GPUs (default: all)")
    add_flag(parser, "jobs", type=positive, metavar="N", help="runs side by side (default: one per GPU; CPU: one)")
    flags, others = split_flags(parser, argv)
    environments = _environments(flags.gpus, flags.jobs)
    root, runs, speeds = read_grid(flags.set, others)
    check_writable(root)
    root.mkdir(parents=True, exist_ok=True)
    with lock_run_folder(root):
        found = newest_runs(root)
        done = {name for name, (_, state) in found.items() if state in ("finished", "stopped")}
        left = without(runs, done)
        print(f"{len(runs)} runs in {root}, {len(runs) - len(left)} done, {len(environments)} at a time", flush=True)
        atomic_write(root / SWEEP, json.dumps(read_json(root / SWEEP) | speeds))
        failures = _train(root, left, found, environments)
    if len(failures) < len(runs):
        report.main([str(root)])
    for failure in failures:
        print(f"failed: {failure}", file=sys.stderr)
    return 1 if failures else 0


def _environments(gpus: int | None, jobs: int | None) -> list[dict[str, str]]:
    """The environment variables of each of the runs that are side by side."""
    visible = visible_gpus()
    if gpus and gpus > visible:
        raise Unavailable(f"-gpus {gpus}: only {visible} GPU(s) are visible; see CUDA_VISIBLE_DEVICES")
    if not visible:
        number = jobs or 1
        threads = max(1, own_share().cores // number)
        return [{"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(threads))}] * number
    named = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(visible)))
    devices = named.split(",")[: gpus or visible]
    return [{"CUDA_VISIBLE_DEVICES": devices[index % len(devices)]} for index in range(jobs or len(devices))]


def read_grid(sets: Sequence[str], others: list[str]) -> tuple[Path, dict[str, list[str]], dict[str, str]]:
    """The folder of the sweep, and the command line of each run by its name; all options are checked. By name, too, the
    options that may change the speed of a run with TRAIN.MINUTES: runs of one speed have the same epochs.

    The name of the folder has a checksum of the options that are not swept: other options are another sweep.
    """
    grid = _swept_values(sets)
    runs = {}
    speeds = {}
    root = Path()
    required = {key.name for key in all_keys() if "null" not in key.type.split(" | ")}
    for combination in itertools.product(*grid.values()):
        pairs = list(zip(grid, combination, strict=True))
        name = ",".join(f"{key.rpartition('.')[2]}={Path(str(value)).name}" for key, value in pairs)
        if name in runs or len(name) > MAX_NAME_CHARS:
            raise UserError(f"-set: the name {name} is taken or too long; give each value once, and fewer keys")
        given = [f"{key}={value}" for key, value in pairs if value != "null" or key not in required]
        command = parse_command_line(others, set_options=given)
        if command.name not in ("train", "probe") or command.config.model.resume:
            raise UserError("a sweep trains, and resumes its runs itself; remove -resume, -eval, -predict and the like")
        if not runs:
            options = non_default_options(command.config)
            kept = sorted((key, value) for key, value in options.items() if key not in (*grid, *_UNCHECKED))
            root = Path(command.config.save) / f"{command.run_name}-sweep-{zlib.crc32(repr(kept).encode()):08x}"
        runs[name] = [*others, f"-output={root}", f"-name={name}"]
        if given:
            runs[name] += ["-opts", *given]
        if minutes := command.config.train.minutes:
            changes = (f"{key}={value}" for key, value in pairs if not key.startswith(_SAME_SPEED))
            speeds[name] = ",".join([f"{minutes:g} minutes", *changes])
    return root, runs, speeds


def _swept_values(sets: Sequence[str]) -> dict[str, Sequence[Any]]:
    """The values of each key. Raises UserError: another form, or too many combinations."""
    grid = {}
    for text in sets:
        key, equals, values = text.partition("=")
        if not equals or key in grid:
            raise UserError(f"-set {shorten(text)}: expected KEY=VALUES, each key once, such as SEED=0..2")
        grid[key] = read_values(values)
    number = math.prod(map(len, grid.values()))
    if not 0 < number <= MAX_RUNS:
        raise UserError(f"-set: {number:,} combinations; a sweep has 1 to {MAX_RUNS:,} runs")
    return grid


def read_values(text: str) -> Sequence[Any]:
    """'0..4' -> 0 to 4; '1e-3,[1,2]' -> '1e-3' and '[1,2]'."""
    if bounds := re.fullmatch(r"(-?\d{1,9})\.\.(-?\d{1,9})", text):
        return range(int(bounds[1]), int(bounds[2]) + 1)
    return re.split(r",(?![^\[{]*[\]}])", text)


def newest_runs(folder: Path) -> dict[str, tuple[Path, str]]:
    """By the names of the runs in a folder, the newest one with a checkpoint, and its state."""
    runs = {}
    for path in sorted(folder.glob("*")):
        status = read_json(path / STATUS)
        if status.get("checkpoint"):
            runs[run_name(path)] = (path, status.get("state", ""))
    return runs


def _train(
    root: Path,
    runs: dict[str, list[str]],
    found: dict[str, tuple[Path, str]],
    environments: list[dict[str, str]],
) -> list[str]:
    """Trains the runs; returns a line for each one that failed. On a signal, all runs save and end.

    found: of `newest_runs`, before.

    A run waits while another one of its speed decides their epochs.
    """
    speeds = read_json(root / SWEEP)
    waiting = list(runs)
    free = environments[::-1]
    failures = []
    running = {}

    def may_start(name: str) -> bool:
        deciding = [speeds[other] for other in running if other in speeds]
        return speeds.get(name) not in deciding or decided_run(root, name) is not None

    try:
        while waiting or running:
            while free and (name := next(filter(may_start, waiting), "")):
                waiting.remove(name)
                environment = free.pop()
                run = found.get(name)
                verb = "started"
                resumed = []
                if run:
                    verb = "resumed"
                    resumed = [f"-cfg={run[0] / RUN_OPTIONS}", f"-resume={run[0]}"]  # with the epochs it has
                print(f"{name}: {verb}", flush=True)
                with open(unshared(root / f"{name}.log"), "ab", opener=own_file) as log:
                    process = subprocess.Popen(
                        [sys.executable, str(ENTRY), *runs[name], *resumed],
                        env=os.environ | environment,
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        process_group=0,  # the Ctrl-C of a terminal reaches the sweep alone
                        preexec_fn=end_with_parent,
                    )
                running[name] = process, environment
            for name in [name for name, (process, _) in running.items() if process.poll() is not None]:
                process, environment = running.pop(name)
                free.append(environment)
                verb = "done"
                if process.returncode:
                    verb = "failed"
                    lines = (root / f"{name}.log").read_text(errors="replace").splitlines() or ["no output"]
                    failures.append(f"{name}: status {process.returncode}: {lines[-1]}")
                print(f"{name}: {verb}", flush=True)
            time.sleep(0.2)
    finally:
        stop_processes([process for process, _ in running.values()])
    return failures


if __name__ == "__main__":
    run_script(main)
