"""All figures of a machine with a GPU with one command, within nine minutes and without a network.

    python scripts/benchmarks/benchmark_gpu.py -output gpu_figures
    python scripts/benchmarks/benchmark_gpu.py -output gpu_figures -timm_train ~/pytorch-image-models/train.py

ViT-B/16 at batch 64 and 256 in bfloat16, float16, strict fp32 and TF32, compiled and not, through the entry point; its
loader on JPEGs, a bare loop and timm's train.py compiled alike; before them the tests that need a GPU, after them the
loaders by themselves. Without dropout, which timm's train.py has none of. The folder gets `figures.md`,
`figures.json` and what each part said, after each part anew. What matters most comes first; each part has a time limit,
so that one that fails or hangs leaves the others, and what `-minutes` leaves no time for is named.

Other flags are main_single_gpu.py's: `-cfg=configs/vit_tiny_patch16_224.yaml -batch_sizes=4,8` is a small one.
"""

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

from engine.precision.policy import Precision
from engine.telemetry.flops import matmul_flops_per_second, training_flops
from models.build import build_model
from scripts.benchmarks.benchmark_images import make_images
from scripts.benchmarks.benchmark_train import NO_DROPOUT
from scripts.benchmarks.common import (
    MODES,
    add_flag,
    flag_parser,
    last_error,
    markdown_table,
    mode_config,
    positive,
    split_flags,
    tell,
    write_json,
)
from utils.distributed import single_process, visible_gpus
from utils.errors import UserError, run_and_report_errors

SCRIPT = "benchmark_gpu.py"
ROOT = Path(__file__).parents[2]
DEFAULTS = ["-cfg=configs/vit_base_patch16_224.yaml", *NO_DROPOUT]
GPU_MODES, CPU_MODES = (("O1-bf16", "O1-fp16"), ("fp32", "tf32")), (("O1-bf16",), ("fp32",))  # half, full
TIMED_IMAGES, FP32_TIMED_IMAGES = 16384, 4096  # of a program
TRAINING_HEADER = (
    *("mode", "batch size", "compiled", "program", "images/s"),
    *("TFLOP/s", "of the measured peak", "data wait", "memory (GB)"),
)
WARMUP_STEPS = 10
JPEGS = 512  # different ones
LEAST_SECONDS = 15.0  # that make it worth to start a part
SECONDS_TO_END = 10.0  # that a part has for it
TEST_SECONDS, MACHINE_SECONDS, LOADER_SECONDS = 75.0, 60.0, 120.0
PROGRAM_SECONDS = {False: 60.0, True: 150.0}  # compiled


@dataclass
class Part:
    """A command with the most seconds it may take, and what came of it; it may write `<name>.json`."""

    name: str
    command: list[str]
    limit_seconds: float
    about: dict[str, Any] = field(default_factory=dict)
    outcome: str = "not run: no time was left"
    seconds: float = 0.0
    result: dict[str, Any] | None = None


def main(argv: list[str]) -> int:
    flags, rest = split_flags(_parser(), argv)
    rest = [*DEFAULTS, *rest]
    if flags.worker:
        write_json(flags.json, machine_figures(rest))
        return 0
    ends = time.monotonic() + 60 * flags.minutes
    batch_sizes = batch_sizes_of(flags.batch_sizes)
    mode_config(rest, "O1-bf16")  # a mistake in the options shows now
    flags.output = flags.output.resolve()  # parts are run in the project's folder
    flags.output.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as images:
        make_images(Path(images), (500, 375), JPEGS, mean_bytes=106_000)
        parts = list(planned(flags, rest, batch_sizes, Path(images)))
        for part in parts:
            run_part(part, flags.output, ends - time.monotonic())
            tell(f"{part.name}: {part.outcome}")
            figures = write_figures(flags.output, parts, argv)
    write_json(flags.json, figures)
    print((flags.output / "figures.md").read_text())
    return 0 if all(part.outcome == "done" for part in parts) else 1


def _parser() -> argparse.ArgumentParser:
    parser = flag_parser(SCRIPT, "All figures of a machine with a GPU, within a given time.")
    add_flag(parser, "output", type=Path, default="gpu_figures", metavar="FOLDER", help="default: gpu_figures")
    add_flag(parser, "minutes", type=float, default=9.0, metavar="N", help="for all together (default: 9)")
    add_flag(parser, "batch_sizes", default="64,256", metavar="A,B", help="default: 64,256")
    add_flag(parser, "timed_images", type=positive, metavar="N", help=f"of a program (default: {TIMED_IMAGES})")
    add_flag(parser, "timm_train", type=existing, metavar="PATH", help="train.py of a checkout of timm")
    add_flag(parser, "worker", action="store_true", help=argparse.SUPPRESS)  # measure the machine, in this process
    return parser


def batch_sizes_of(text: str) -> list[int]:
    """Raises UserError for what is no list of sizes."""
    sizes = text.split(",")
    if not all(size.isdecimal() and int(size) for size in sizes):
        raise UserError(f"-batch_sizes {text}: must be whole numbers from 1 up, with commas between them")
    return sorted(set(map(int, sizes)))


def existing(text: str) -> Path:
    """An argparse type: the file's whole path."""
    if not Path(text).is_file():
        raise argparse.ArgumentTypeError(f"{text} is no file; name the train.py of a checkout of timm")
    return Path(text).resolve()


# What is run


def planned(flags: argparse.Namespace, rest: list[str], batch_sizes: list[int], images: Path) -> Iterator[Part]:
    """What matters most comes first."""
    half, full = GPU_MODES if visible_gpus() else CPU_MODES
    *smaller, largest = batch_sizes
    tests = [sys.executable, "-m", "pytest", str(ROOT / "tests"), "-k", "gpu", "-p", "no:cacheprovider"]
    yield Part("tests", tests, TEST_SECONDS)
    machine = [sys.executable, __file__, "-worker", f"-json={flags.output / 'machine.json'}", *rest]
    yield Part("machine", machine, MACHINE_SECONDS)

    def training(mode: str, batch_size: int, compiled: bool, *programs: str) -> Part:
        return training_part(flags, rest, images, mode, batch_size, compiled, programs)

    yield training(half[0], largest, True, "jpeg", "ready", "bare", *(["timm"] if flags.timm_train else []))
    for mode in full:
        yield training(mode, largest, False, "ready")
    for mode in half[1:]:
        yield training(mode, largest, True, "ready")
    for mode in half:
        yield training(mode, largest, False, "ready")
    for batch_size in smaller:
        for compiled in (True, False):
            for mode in half:
                yield training(mode, batch_size, compiled, "ready")
    workers = [f"-num_workers={_num_workers()}", f"-batch_size={batch_sizes[0]}"]
    loaders = ["-rounds=2", f"-data={images}", f"-json={flags.output / 'loaders.json'}", *rest, *workers]
    yield Part(
        "loaders", [sys.executable, str(ROOT / "scripts/benchmarks/benchmark_input.py"), *loaders], LOADER_SECONDS
    )


def _num_workers() -> int:
    return min(16, len(os.sched_getaffinity(0)))


def training_part(
    flags: argparse.Namespace,
    rest: list[str],
    images: Path,
    mode: str,
    batch_size: int,
    compiled: bool,
    programs: tuple[str, ...],
) -> Part:
    timed_images = flags.timed_images or (FP32_TIMED_IMAGES if mode == "fp32" else TIMED_IMAGES)
    steps = WARMUP_STEPS * max(1, round(timed_images / batch_size / WARMUP_STEPS))
    limit = PROGRAM_SECONDS[compiled]
    name = f"{mode}-{batch_size}{'-compiled' if compiled else ''}"
    command = [
        *[
            sys.executable,
            str(ROOT / "scripts/benchmarks/benchmark_train.py"),
            f"-programs={','.join(programs)}",
            "-rounds=1",
        ],
        *[
            f"-interval={WARMUP_STEPS}",
            f"-warmup={WARMUP_STEPS}",
            f"-steps={steps}",
            f"-limit={limit:.0f}",
            f"-data={images}",
        ],
        f"-json={flags.output / name}.json",
        *([f"-timm_train={flags.timm_train}"] if "timm" in programs else []),
        *[*rest, f"-batch_size={batch_size}", f"-num_workers={_num_workers()}"],
        *(["-compile"] if compiled else []),
        *["-opts", *MODES[mode]],
    ]
    about = {"mode": mode, "batch_size": batch_size, "compiled": compiled}
    return Part(name, command, limit * len(programs), about)


def run_part(part: Part, folder: Path, seconds_left: float) -> None:
    """Runs it within its limit and what is left, and keeps what it said in `<name>.txt`."""
    limit = min(part.limit_seconds, seconds_left - SECONDS_TO_END)
    if limit < LEAST_SECONDS:
        return
    file = folder / f"{part.name}.json"
    file.unlink(missing_ok=True)
    started = time.monotonic()
    process = subprocess.Popen(part.command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    output, is_late = _output(process, limit)
    part.seconds = time.monotonic() - started
    (folder / f"{part.name}.txt").write_text(f"$ {shlex.join(part.command)}\n\n{output[0]}\n{output[1]}")
    part.result = json.loads(file.read_text()) if file.exists() else None
    if is_late:
        part.outcome = f"stopped after {limit:.0f} s"
    elif process.returncode:
        part.outcome = f"failed: {last_error(subprocess.CompletedProcess(part.command, process.returncode, *output))}"
    else:
        part.outcome = "done"


def _output(process: subprocess.Popen[str], limit_seconds: float) -> tuple[tuple[str, str], bool]:
    """What it says on both streams, and whether it took too long and was ended."""
    try:
        return process.communicate(timeout=limit_seconds), False
    except subprocess.TimeoutExpired:
        return _ended(process), True
    except BaseException:
        _ended(process)
        raise


def _ended(process: subprocess.Popen[str]) -> tuple[str, str]:
    """What it says when it is asked to end, so that it ends what it has started; then it is made to."""
    process.terminate()
    try:
        return process.communicate(timeout=SECONDS_TO_END)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.communicate()


def machine_figures(rest: list[str]) -> dict[str, Any]:
    """The device, and by mode the FLOP/s of its matrix products; the model's FLOPs of a training step, per image."""
    context = single_process()
    modes = [mode for modes in (GPU_MODES if visible_gpus() else CPU_MODES) for mode in modes]
    peaks = {}
    for mode in modes:
        peaks[mode] = matmul_flops_per_second(Precision(mode_config(rest, mode).amp, context.device))
    config = mode_config(rest, modes[0])
    model, _ = build_model(config.with_model(pretrained=None).model, config.data, torch.device("cpu"))
    return {
        "device": torch.cuda.get_device_name() if visible_gpus() else "a CPU",
        "torch": torch.__version__,
        "model": config.model.name,
        "peak_flops_per_second": peaks,
        "training_flops_per_image": training_flops(model, config),
    }


# What is told


def write_figures(folder: Path, parts: list[Part], argv: list[str]) -> dict[str, Any]:
    """Writes `figures.md` and `figures.json`; returns what the latter holds."""
    found = {part.name: part for part in parts}
    machine = found["machine"].result or {}
    trained = [part for part in parts if part.about and part.result]
    rows = [row for part in trained for row in training_rows(part, machine)]
    aims = aims_reached(trained)
    texts = [f"# GPU figures\n\n`python scripts/{SCRIPT} {shlex.join(argv)}`"]
    if machine:
        texts.append(f"{machine['device']}, torch {machine['torch']}, {machine['model']}. " + _peaks(machine))
    texts.append(markdown_table(TRAINING_HEADER, rows))
    texts.append(markdown_table(["aim, for ViT-B/16 on an H200", "aim", "here"], aims))
    outcomes = [[part.name, part.outcome, f"{part.seconds:.0f}"] for part in parts]
    texts.append(markdown_table(["part", "outcome", "seconds"], outcomes))
    texts.append("What a part said is in the file of its name; `loaders.txt` has the tables of the loaders.")
    (folder / "figures.md").write_text("\n\n".join(texts) + "\n")
    kept = [
        {"name": part.name, "outcome": part.outcome, "seconds": part.seconds} | part.about | {"result": part.result}
        for part in parts
    ]
    figures = {"argv": argv, "parts": kept}
    write_json(folder / "figures.json", figures)
    return figures


def _peaks(machine: dict[str, Any]) -> str:
    peaks = ", ".join(f"{mode} {peak / 1e12:.4g}" for mode, peak in machine["peak_flops_per_second"].items())
    gigaflops = machine["training_flops_per_image"] / 1e9
    return f"Matrix products, TFLOP/s: {peaks}. A training step takes {gigaflops:.4g} GFLOP per image."


def training_rows(part: Part, machine: dict[str, Any]) -> list[list[str]]:
    mode, rows = part.about["mode"], []
    for name, one in part.result["programs"].items():
        head = [mode, str(part.about["batch_size"]), "yes" if part.about["compiled"] else "no", name]
        if "failed" in one:
            rows.append([*head, f"failed: {one['failed']}", "", "", "", ""])
            continue
        speed, memory = _median(one["images_per_second"]), one["peak_memory_bytes"]
        wait = "" if name == "bare" else f"{_median(one['data_wait_share']):.1%}"
        memory_cell = f"{memory / 1e9:.2f}" if memory else ""
        rows.append([*head, f"{speed:.1f}", *_flops_cells(speed, mode, machine), wait, memory_cell])
    return rows


def _flops_cells(images_per_second: float, mode: str, machine: dict[str, Any]) -> list[str]:
    """TFLOP/s and their share of the peak; empty where the machine could not be measured."""
    if not machine:
        return ["", ""]
    flops = images_per_second * machine["training_flops_per_image"]
    return [f"{flops / 1e12:.4g}", f"{flops / machine['peak_flops_per_second'][mode]:.1%}"]


def aims_reached(trained: list[Part]) -> list[list[str]]:
    """Each aim beside what was found, as far as it was."""
    found = [
        (part.about["mode"], name, one)
        for part in trained
        for name, one in part.result["programs"].items()
        if name in ("jpeg", "ready") and "failed" not in one
    ]
    half = max((_median(one["images_per_second"]) for mode, _, one in found if mode.startswith("O")), default=None)
    fp32 = max((_median(one["images_per_second"]) for mode, _, one in found if mode == "fp32"), default=None)
    wait = max((_median(one["data_wait_share"]) for _, name, one in found if name == "jpeg"), default=None)
    over_timm = [part.result["ratios"]["jpeg / timm"] for part in trained if "jpeg / timm" in part.result["ratios"]]
    return [
        ["images/s in half precision (40% of the dense peak)", "3,750 or more", f"{half:,.0f}" if half else ""],
        ["`jpeg / timm`, compiled alike", "1.25 or more", f"{_median(over_timm[0]):.2f}" if over_timm else ""],
        ["half precision / strict fp32", "7 or more", f"{half / fp32:.2f}" if half and fp32 else ""],
        ["data wait of `jpeg`", "5% or less", "" if wait is None else f"{wait:.1%}"],
    ]


def _median(values: list[float]) -> float:
    return statistics.median(values)


if __name__ == "__main__":
    sys.exit(run_and_report_errors(main, sys.argv[1:]))
