"""Measures a machine with a GPU in calls of nine minutes: python scripts/benchmarks/benchmark_gpu.py -output FOLDER

Each part is a command, the most important first. A part starts if its time limit fits into the time left of
`-minutes`, so one that fails or hangs stops no other. The next call with the same output folder runs the other parts;
`-parts` repeats parts. See docs/benchmarks.md, GPU.
"""

import argparse
import json
import re
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
from scripts.benchmarks.benchmark_train import NO_DROPOUT, check_supported
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
from utils.processes.entry import run_and_report_errors
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
PYTEST = ["-m", "gpu", "-v", "--tb=short", "--continue-on-collection-errors", "-p", "no:cacheprovider"]
Records = dict[str, dict[str, Any]]  # part -> outcome, seconds, result


class Part(NamedTuple):
    """A command, its time limit, and the signal at this limit."""

    command: list[str]
    limit_seconds: float
    stop_signal: signal.Signals = signal.SIGTERM


class Setting(NamedTuple):
    """The options of a training part.

    limit: seconds, about twice the time on an H200, so that a slow disk ends no part. compiles: with -compile.
    options: added to -opts. model: in place of the user's flags. interval: steps between two reports, which take the
    time of a step of a small model.
    """

    mode: str
    limit: int = 60
    compiles: bool = False
    programs: tuple[str, ...] = ("ready",)
    options: tuple[str, ...] = ()
    model: tuple[str, ...] = ()
    interval: int = 10


O1, O2, FP16 = "O1-bf16", "O2-bf16", "O1-fp16"
STREAM = ("AMP.PRESET=bf16_stream",)
DROPPATH = ("MODEL.DROPPATH=0.2",)
WHOLE = {"limit": 120, "compiles": True, "options": ("TRAIN.COMPILE=model",)}
LARGE = ("-cfg=configs/vit_large_patch16_224.yaml", *NO_DROPOUT, "MODEL.GRAD_CHECKPOINTING=true")
TRAINING = {
    "O1": Setting(O1),
    "O2": Setting(O2),
    "torch_ops": Setting(O1, options=("MODEL.FUSED_BLOCKS=false",)),
    "float32_sums": Setting(O1, options=("AMP.CUSTOM_BLACK_LIST=[add]",)),
    "compiled": Setting(O1, 80, compiles=True, programs=("ready", "bare")),
    "O2_compiled": Setting(O2, 80, compiles=True),
    "stream_compiled": Setting(O1, 80, compiles=True, options=STREAM),
    "jpeg_eager": Setting(O1, programs=("jpeg",)),
    "timm_eager": Setting(O1, programs=("timm",)),
    "jpeg": Setting(O1, 80, compiles=True, programs=("jpeg",)),
    "timm": Setting(O1, programs=("timm",), **WHOLE),
    "jpeg_whole": Setting(O1, programs=("jpeg",), **WHOLE),
    "droppath": Setting(O1, options=DROPPATH),
    "droppath_compiled": Setting(O1, 80, compiles=True, options=DROPPATH),
    "muon": Setting(O1, options=("TRAIN.OPTIMIZER.NAME=muon",)),
    "dropout": Setting(O1, options=("MODEL.DROPOUT=0.1", "MODEL.ATTENTION_DROPOUT=0.1")),  # the shipped recipe's
    "vit_small": Setting(O1, model=("-cfg=configs/vit_small_patch16_224.yaml", *NO_DROPOUT), interval=50),
    "vit_large": Setting(O1, 90, model=LARGE),
    "fp16": Setting(FP16),
    "fp32": Setting("fp32"),
    "tf32": Setting("tf32"),
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
            has_failed |= not records[name]["outcome"].startswith("done")
    print(page(records, command))
    if left := [name for name in parts if name not in records]:
        print(f"Not run yet: {', '.join(left)}. The same command without -parts runs them.")
    return int(has_failed)


def _parser() -> argparse.ArgumentParser:
    parser = flag_parser(SCRIPT, "Measures a machine with a GPU within a given time.")
    add_flag(parser, "output", type=Path, default="gpu_figures", metavar="FOLDER", help="default: gpu_figures")
    parts = f"of {', '.join(TRAINING)}, profile, ..., tests (default: all that have not run)"
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
    images = [f"-data={flags.data}"] if flags.data else []
    timm_train = [f"-timm_train={flags.timm_train}"] if flags.timm_train else []

    def script(name: str, part: str) -> list[str]:
        return [*PYTHON, str(ROOT / f"scripts/benchmarks/{name}.py"), f"-json={flags.output / part}.json"]

    def training(name: str, setting: Setting) -> Part:
        timed_images = flags.timed_images // (4 if setting.mode == "fp32" else 1)
        steps = setting.interval * max(1, round(timed_images / flags.large_batch / setting.interval))
        command = [*script("benchmark_train", name), f"-programs={','.join(setting.programs)}", "-rounds=1"]
        command += [f"-interval={setting.interval}", f"-warmup={WARMUP_STEPS}", f"-steps={steps}"]
        command += [f"-limit={setting.limit}", *images, *(timm_train if "timm" in setting.programs else [])]
        command += [*(setting.model or rest), *large, *["-compile"] * setting.compiles]
        command += ["-opts", *MODES[setting.mode], *setting.options]
        return Part(command, setting.limit * len(setting.programs))

    def profile(name: str, limit_seconds: float, *compile_flags: str) -> Part:
        command = [*PYTHON, str(ENTRY), *rest, *large, *ready_flags(), "-profile", f"-output={flags.output / name}"]
        return Part([*command, *compile_flags, "-opts", *MODES[O1], *READY_OPTIONS], limit_seconds)

    trainings = {name: one for name, one in TRAINING.items() if flags.timm_train or "timm" not in one.programs}
    minutes = [*PYTHON, str(ENTRY), f"-data_path={flags.data}", "-minutes=1", f"-output={flags.output / 'minutes'}"]
    return {
        **{name: training(name, one) for name, one in trainings.items()},
        **({"minutes": Part([*minutes, "-amp"], 90)} if flags.data else {}),
        "profile": profile("profile", 60),
        "profile_compiled": profile("profile_compiled", 100, "-compile"),
        "loaders": Part([*script("benchmark_input", "loaders"), "-rounds=2", *images, *timm_train, *rest, *large], 120),
        # SIGINT makes pytest print the failures so far.
        "tests": Part([*PYTHON, "-m", "pytest", str(ROOT / "tests"), *PYTEST], 300, signal.SIGINT),
    }


def run_part(name: str, part: Part, folder: Path) -> dict[str, Any]:
    """Runs the part; its output is in `<name>.txt`.

    Returns:
        outcome: begins with "done" if nothing failed. seconds. result: the content of `<name>.json`, which the command
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
        stop_processes([process], part.stop_signal, TERMINATION_SECONDS)
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
        summary = re.fullmatch(r"=+ (.* in [\d.]+s.*?) =+", lines[-1]) if lines else None  # by pytest
        outcome = f"done: {summary[1]}" if summary else "done"
    return {"outcome": outcome, "seconds": seconds, "result": result}


def page(records: Records, command: str) -> str:
    """The figures of the training parts, and the outcome of each part."""
    figures: Figures = {}
    for name, setting in TRAINING.items():
        result = (records.get(name) or {}).get("result") or {}
        found = {program: one for program, one in result.get("figures", {}).items() if one}  # others: not ended
        figures |= {f"{name}: {setting.mode}, {program}": one for program, one in found.items()}
    outcomes = [[name, one["outcome"].replace("|", "\\|"), f"{one['seconds']:.0f}"] for name, one in records.items()]
    columns: Columns = {"images/s": speed, "peak memory (GB)": memory}
    columns |= {"CPU cores": partial(speed, figure=CORES), "first line after (s)": partial(speed, figure=FIRST_LINE)}
    texts = ["# GPU figures", f"`{command}`", figures_table(figures, columns)]
    texts += [markdown_table(["part", "outcome", "seconds"], outcomes), "The output of each part is in its .txt file."]
    return "\n\n".join(texts) + "\n"


if __name__ == "__main__":
    sys.exit(run_and_report_errors(main, sys.argv[1:]))
