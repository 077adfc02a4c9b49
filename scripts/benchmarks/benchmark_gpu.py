"""Measures a machine with a GPU in calls of nine minutes: python scripts/benchmarks/benchmark_gpu.py -output FOLDER

Each part is a command, the most important first. A part starts if its time limit fits into the time left of
`-minutes`, so one that fails or hangs stops no other. The next call with the same output folder runs the other parts;
`-parts` repeats parts. See docs/benchmarks.md, GPU.
"""

import argparse
import json
import shlex
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[2]))

from configs.command_line import parse_command_line
from datasets.loading.workers import default_num_workers
from scripts.benchmarks.benchmark_train import NO_DROPOUT, benchmark_parser, check_supported
from scripts.benchmarks.programs import (
    ENTRY,
    MODES,
    READY_OPTIONS,
    add_timm_flag,
    failure_reason,
    parse_names,
    ready_flags,
)
from scripts.benchmarks.turns import CORES, FIRST_LINE, Columns, Figures, figures_table, memory, speed, write_json
from scripts.flags import add_flag, flag_parser, positive, split_flags
from utils.device import visible_gpus
from utils.files import atomic_write, read_json
from utils.processes.entry import run_script
from utils.processes.launch import stop_processes
from utils.system import own_share
from utils.tables import markdown_table

SCRIPT = "benchmarks/benchmark_gpu.py"
DEFAULTS = ["-cfg=configs/vit_base_patch16_224.yaml", *NO_DROPOUT]
RESERVED_SECONDS = 15  # to stop the last part
TERMINATION_SECONDS = 10.0  # between the stop signal and SIGKILL
ROOT = Path(__file__).parents[2]
TIMED_IMAGES = 16384  # per program; a quarter in fp32
WARMUP_STEPS = 20
PYTHON = (sys.executable, "-u")  # unbuffered: the last lines of a failed part have its error
Records = dict[str, dict[str, Any]]  # part -> outcome, seconds, result


class Part(NamedTuple):
    """A command and its time limit."""

    command: list[str]
    limit_seconds: float


O1, O2 = "O1-bf16", "O2-bf16"
LARGE = " ".join(["-cfg=configs/vit_large_patch16_224.yaml", *NO_DROPOUT, "MODEL.GRAD_CHECKPOINTING=true"])
SMALL = " ".join(["-cfg=configs/vit_small_patch16_224.yaml", *NO_DROPOUT])
# The precision, and further flags of benchmark_train.py; with -cfg, in place of the user's. The limits are about twice
# the times on an H200, so that a slow disk ends no part. A report takes the time of a step of a small model.
TRAINING = {
    "O1": (O1, ""),
    "O2": (O2, ""),
    "torch_ops": (O1, "-opts MODEL.FUSED_BLOCKS=false"),
    "float32_sums": (O1, "-opts AMP.CUSTOM_BLACK_LIST=[add]"),
    "compiled": (O1, "-programs=ready,bare -limit=80 -compile"),
    "O2_compiled": (O2, "-limit=80 -compile"),
    "stream_compiled": (O1, "-limit=80 -compile -opts AMP.PRESET=bf16_stream"),
    "jpeg_eager": (O1, "-programs=jpeg"),
    "timm_eager": (O1, "-programs=timm"),
    "jpeg": (O1, "-programs=jpeg -limit=80 -compile"),
    "timm": (O1, "-programs=timm -limit=120 -compile -opts TRAIN.COMPILE=model"),
    "jpeg_whole": (O1, "-programs=jpeg -limit=120 -compile -opts TRAIN.COMPILE=model"),
    "droppath": (O1, "-opts MODEL.DROPPATH=0.2"),
    "droppath_compiled": (O1, "-limit=80 -compile -opts MODEL.DROPPATH=0.2"),
    "muon": (O1, "-opts TRAIN.OPTIMIZER.NAME=muon"),
    "dropout": (O1, "-opts MODEL.DROPOUT=0.1 MODEL.ATTENTION_DROPOUT=0.1"),  # the shipped recipe's
    "vit_small": (O1, f"-interval=50 {SMALL}"),
    "vit_large": (O1, f"-limit=90 {LARGE}"),
    "fp16": ("O1-fp16", ""),
    "fp32": ("fp32", ""),
    "tf32": ("tf32", ""),
}


def main(argv: list[str]) -> int:
    flags, rest = split_flags(_parser(), argv)
    deadline = time.monotonic() + 60 * flags.minutes - RESERVED_SECONDS
    check_supported(parse_command_line([*DEFAULTS, *rest]).config.train)  # before the measurements
    parts = build_parts(flags, [*DEFAULTS, *rest])
    file = flags.output / "figures.json"
    records: Records = read_json(file)
    left = [name for name in parts if name not in records]
    selected = parse_names("parts", flags.parts, parts) if flags.parts else left
    if not visible_gpus():
        print("warning: no GPU is visible; the parts run on the CPU", file=sys.stderr)
    flags.output.mkdir(parents=True, exist_ok=True)
    has_failed = False
    command = f"python scripts/{SCRIPT} {shlex.join(argv)}"
    for name in selected:
        if parts[name].limit_seconds <= deadline - time.monotonic():
            records[name] = run_part(name, parts[name], flags.output)
            for path in (file, flags.json):
                write_json(path, records)
            atomic_write(flags.output / "figures.md", page(records, command))
            print(f"{name}: {records[name]['outcome']}", file=sys.stderr, flush=True)
            has_failed |= records[name]["outcome"] != "done"
    print(page(records, command))
    if left := [name for name in parts if name not in records]:
        print(f"Not run yet: {', '.join(left)}. The same command without -parts runs them.")
    return int(has_failed)


def _parser() -> argparse.ArgumentParser:
    parser = flag_parser(SCRIPT, "Measures a machine with a GPU within a given time.")
    add_flag(parser, "output", type=Path, default="gpu_figures", metavar="FOLDER", help="default: gpu_figures")
    parts = f"of {', '.join(TRAINING)}, profile, profile_compiled, loaders (default: all that have not run)"
    add_flag(parser, "parts", metavar="A,B", help=parts)
    add_flag(parser, "minutes", type=float, default=9.0, metavar="N", help="total time (default: 9)")
    add_flag(parser, "large_batch", type=positive, default=256, metavar="N", help="of the parts (default: 256)")
    images = f"images per timed turn of a program (default: {TIMED_IMAGES}; a quarter in fp32)"
    add_flag(parser, "timed_images", type=positive, default=TIMED_IMAGES, metavar="N", help=images)
    photographs = "class folders of JPEGs for the parts that read images (default: made by the script)"
    add_flag(parser, "data", type=Path, metavar="FOLDER", help=photographs)
    add_timm_flag(parser)
    return parser


def build_parts(flags: argparse.Namespace, rest: list[str]) -> dict[str, Part]:
    """The parts that can run here: with `-timm_train` timm's. rest: flags of main_single_gpu.py."""
    workers = f"-num_workers={default_num_workers(own_share(), on_gpu=visible_gpus() > 0)}"
    large = [f"-batch_size={flags.large_batch}", workers]
    files = [f"-data={flags.data}"] if flags.data else []
    if flags.timm_train:
        files.append(f"-timm_train={flags.timm_train}")

    def script(name: str, part: str) -> list[str]:
        return [*PYTHON, str(ROOT / f"scripts/benchmarks/{name}.py"), f"-json={flags.output / part}.json", *files]

    def profile(name: str, *further: str) -> list[str]:
        command = [*PYTHON, str(ENTRY), *rest, *large, *ready_flags(), "-profile", f"-output={flags.output / name}"]
        return [*command, *further, "-opts", *MODES[O1], *READY_OPTIONS]

    parts = {}
    for name, (mode, text) in TRAINING.items():
        words = ["-programs=ready", "-limit=60", "-interval=10", *shlex.split(text)]
        own, _ = split_flags(benchmark_parser(), words)
        if "timm" in own.programs and not flags.timm_train:
            continue
        timed_images = flags.timed_images // (4 if mode == "fp32" else 1)
        steps = own.interval * max(1, round(timed_images / flags.large_batch / own.interval))
        turn = ["-rounds=1", f"-warmup={WARMUP_STEPS}", f"-steps={steps}"]
        model = [] if "-cfg" in text else rest
        command = [*script("benchmark_train", name), *turn, *model, *large, *words, "-opts", *MODES[mode]]
        parts[name] = Part(command, own.limit * len(own.programs.split(",")))
    parts["profile"] = Part(profile("profile"), 60)
    parts["profile_compiled"] = Part(profile("profile_compiled", "-compile"), 100)
    parts["loaders"] = Part([*script("benchmark_input", "loaders"), "-rounds=2", *rest, *large], 120)
    return parts


def run_part(name: str, part: Part, folder: Path) -> dict[str, Any]:
    """Runs the part; its output is in `<name>.txt`.

    Returns:
        outcome: "done" if nothing failed. seconds. result: the content of `<name>.json`, which the command
        may have written, also if it was stopped.
    """
    file, output = folder / f"{name}.json", folder / f"{name}.txt"
    file.unlink(missing_ok=True)
    started = time.monotonic()
    is_late = False
    with open(output, "w") as stream:
        print("$", shlex.join(part.command), file=stream, flush=True)
        process = subprocess.Popen(part.command, stdout=stream, stderr=subprocess.STDOUT, process_group=0)
    try:
        process.wait(part.limit_seconds)
    except subprocess.TimeoutExpired:
        is_late = True
    finally:  # the signal first, so that the process can end its own programs; then SIGKILL to its process group
        stop_processes([process], signal.SIGTERM, TERMINATION_SECONDS)
    seconds = time.monotonic() - started
    result = json.loads(file.read_text()) if file.exists() else None
    lines = output.read_text(errors="replace").splitlines()[1:]
    failed = [f"{key}: {one['failed']}" for key, one in (result or {}).get("figures", {}).items() if "failed" in one]
    if is_late:
        shown = [line for line in lines if line and not line.startswith(("|", "interrupted by SIG"))]
        outcome = f"stopped after {part.limit_seconds:.0f} s; last line: {''.join(shown[-1:])}"
    elif process.returncode or failed:  # a part with a program that failed has failed
        outcome = f"failed: {failure_reason(process.returncode, lines) if process.returncode else failed[0]}"
    else:
        outcome = "done"
    return {"outcome": outcome, "seconds": seconds, "result": result}


def page(records: Records, command: str) -> str:
    """The figures of the training parts, and the outcome of each part."""
    figures: Figures = {}
    for name, (mode, _) in TRAINING.items():
        result = records.get(name, {}).get("result") or {}
        for program, one in result.get("figures", {}).items():
            if one:  # others have not ended
                figures[f"{name}: {mode}, {program}"] = one
    outcomes = [[name, one["outcome"].replace("|", "\\|"), f"{one['seconds']:.0f}"] for name, one in records.items()]
    columns: Columns = {"images/s": speed, "peak memory (GB)": memory}
    columns |= {"CPU cores": partial(speed, figure=CORES), "first line after (s)": partial(speed, figure=FIRST_LINE)}
    texts = ["# GPU figures", f"`{command}`", figures_table(figures, columns)]
    texts += [markdown_table(["part", "outcome", "seconds"], outcomes), "The output of each part is in its .txt file."]
    return "\n\n".join(texts) + "\n"


if __name__ == "__main__":
    run_script(main)
