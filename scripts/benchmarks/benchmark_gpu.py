"""Measures a machine with a GPU with one command, within nine minutes and without a network.

    python scripts/benchmarks/benchmark_gpu.py -output gpu_figures
    python scripts/benchmarks/benchmark_gpu.py -output gpu_figures -timm_train ~/pytorch-image-models/train.py

The parts: the speed of matrix products; training of ViT-B/16 without dropout at batch size 64 and 256 in bfloat16 (O1
and O2), float16, fp32 and TF32, compiled and not, with deterministic algorithms, and with cuDNN's attention, through
the entry script; the same model with the loader on JPEGs, in a bare loop and with timm's train.py; the tests that need
a GPU; the strategies of PARALLEL, with the planner's predictions, and the flight recorder (benchmark_parallel.py); the
loaders alone. timm compiles the whole model, and ours compiles block by block, so the comparison has ours both ways.

The most important parts run first. Each part has a time limit, so that a part that fails or hangs does not stop the
others. The script lists the parts for which `-minutes` left no time. After every turn of a program it rewrites
`figures.md` and `figures.json` in the output folder, which also has the output of each part. A part that is stopped
keeps the figures of its complete turns. All parts share one compile cache.

All other flags are those of main_single_gpu.py, for example `-cfg=configs/vit_tiny_patch16_224.yaml -batch_sizes=4,8`.
"""

import argparse
import signal
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

from datasets.loading.workers import default_num_workers
from engine.precision.policy import Precision
from engine.telemetry.flops import training_flops
from models.attention import fused_kernels
from models.build import build_model
from scripts.benchmarks.benchmark_images import make_images
from scripts.benchmarks.benchmark_train import NO_DROPOUT
from scripts.benchmarks.common import MODES, mode_config, parse_batch_sizes, print_progress, write_json
from scripts.benchmarks.device_speed import copy_bytes_per_second, matmul_flops_per_second
from scripts.benchmarks.gpu_parts import ROOT, Part, part_environment, run_part
from scripts.benchmarks.gpu_report import write_figures
from scripts.benchmarks.parallel_report import PARALLEL, RECORDER_OFF, RECORDER_ON
from scripts.benchmarks.training_parts import build_plain_model
from scripts.flags import add_flag, flag_parser, positive, split_flags
from utils.cpu_cores import own_share
from utils.distributed import single_process, visible_gpus
from utils.errors import UserError, run_and_report_errors

SCRIPT = "benchmarks/benchmark_gpu.py"
DEFAULTS = ["-cfg=configs/vit_base_patch16_224.yaml", *NO_DROPOUT]
GPU_MODES = ("O1-bf16", "O1-fp16", "O2-bf16"), ("fp32", "tf32")  # (half, full precision)
CPU_MODES = ("O1-bf16", "O2-bf16"), ("fp32",)
TIMED_IMAGES, FP32_TIMED_IMAGES = 16384, 4096  # per program
WARMUP_STEPS = 10
PYTHON = (sys.executable, "-u")  # unbuffered: the last line of a failed part is its error
VARIANTS = {"deterministic": ("DETERMINISTIC=true",), "cudnn": ("MODEL.ATTENTION=cudnn",)}
JPEGS = 512  # different ones
COMPILE_TESTS = ROOT / "tests/engine/parallel/test_compile.py"  # slow: a part of their own
TEST_SECONDS, MACHINE_SECONDS, LOADER_SECONDS = 150.0, 60.0, 120.0
PARALLEL_SECONDS, RECORDER_SECONDS = 150.0, 45.0
PROGRAM_SECONDS = {False: 60.0, True: 150.0}  # by whether it is compiled


def main(argv: list[str]) -> int:
    flags, rest = split_flags(_parser(), argv)
    rest = [*DEFAULTS, *rest]
    if flags.worker:
        measure_machine(rest, flags.json)
        return 0
    deadline = time.monotonic() + 60 * flags.minutes
    batch_sizes = parse_batch_sizes(flags.batch_sizes)
    mode_config(rest, "O1-bf16")  # reports wrong options before the measurements
    flags.output = flags.output.resolve()  # the parts run in another folder
    flags.output.mkdir(parents=True, exist_ok=True)
    parts: list[Part] = []

    def write() -> None:
        write_json(flags.json, write_figures(flags.output, parts, SCRIPT, argv))

    with TemporaryDirectory() as folder:
        images, environment = Path(folder) / "images", part_environment(Path(folder) / "compile_cache")
        make_images(images, (500, 375), JPEGS, mean_bytes=106_000)
        parts += plan_parts(flags, rest, batch_sizes, images)
        for part in parts:
            try:
                run_part(part, flags.output, deadline - time.monotonic(), environment, write)
            finally:
                write()
            print_progress(f"{part.name}: {part.outcome}")
    print((flags.output / "figures.md").read_text())
    return 0 if all(part.outcome == "done" for part in parts) else 1


def _parser() -> argparse.ArgumentParser:
    parser = flag_parser(SCRIPT, "Measures a machine with a GPU within a given time.")
    add_flag(parser, "output", type=Path, default="gpu_figures", metavar="FOLDER", help="default: gpu_figures")
    add_flag(parser, "minutes", type=float, default=9.0, metavar="N", help="total time (default: 9)")
    add_flag(parser, "batch_sizes", default="64,256", metavar="A,B", help="default: 64,256")
    add_flag(parser, "timed_images", type=positive, metavar="N", help=f"per program (default: {TIMED_IMAGES})")
    add_flag(parser, "timm_train", type=existing_file, metavar="PATH", help="train.py of a checkout of timm")
    add_flag(parser, "worker", action="store_true", help=argparse.SUPPRESS)  # measure the machine in this process
    return parser


def existing_file(text: str) -> Path:
    """argparse type: the absolute path of a file."""
    if not Path(text).is_file():
        raise argparse.ArgumentTypeError(f"{text} is not a file; name the train.py of a checkout of timm")
    return Path(text).resolve()


def plan_parts(flags: argparse.Namespace, rest: list[str], batch_sizes: list[int], images: Path) -> Iterator[Part]:
    """All parts, the most important first."""
    half, full = GPU_MODES if visible_gpus() else CPU_MODES
    *smaller, largest = batch_sizes
    machine = [*PYTHON, __file__, "-worker", f"-json={flags.output / 'machine.json'}", *rest]
    yield Part("machine", machine, MACHINE_SECONDS)

    def training(mode: str, batch_size: int, compiled: bool, *programs: str, variant: str = "") -> Part:
        return training_part(flags, rest, images, Setting(mode, batch_size, compiled, programs or ("ready",), variant))

    timm = ["timm"] if flags.timm_train else []
    yield training(half[0], largest, True, "jpeg", "ready", "bare", *timm, "jpeg_whole")
    yield pytest_part("tests", str(ROOT / "tests"), f"--ignore={COMPILE_TESTS}")
    for mode in full:
        yield training(mode, largest, False)
    for mode in half[1:]:
        yield training(mode, largest, True)
    for mode in half:
        yield training(mode, largest, False)
    for variant in VARIANTS if visible_gpus() else ("deterministic",):
        yield training(half[0], largest, False, variant=variant)
    for batch_size in smaller:
        for compiled in (True, False):
            for mode in half:
                yield training(mode, batch_size, compiled)
    yield from parallel_parts(flags, rest, batch_sizes)
    yield pytest_part("tests-compile", str(COMPILE_TESTS))
    loaders = [*PYTHON, str(ROOT / "scripts/benchmarks/benchmark_input.py"), "-rounds=2", f"-data={images}"]
    loaders += [f"-json={flags.output / 'loaders.json'}", *rest]
    loaders += [f"-num_workers={_num_workers()}", f"-batch_size={batch_sizes[0]}"]
    yield Part("loaders", loaders, LOADER_SECONDS)


def parallel_parts(flags: argparse.Namespace, rest: list[str], batch_sizes: list[int]) -> Iterator[Part]:
    """Runs of benchmark_parallel.py: all strategies, then one with and without torch's flight recorder."""
    mode = (GPU_MODES if visible_gpus() else CPU_MODES)[0][0]
    for name, sizes, variants, events in (
        (PARALLEL, batch_sizes, None, None),
        (RECORDER_ON, batch_sizes[:1], "ddp", 2000),
        (RECORDER_OFF, batch_sizes[:1], "ddp", 0),
    ):
        command = [] if events is None else ["env", f"TORCH_FR_BUFFER_SIZE={events}"]
        command += [*PYTHON, str(ROOT / "scripts/benchmarks/benchmark_parallel.py")]
        command += [f"-batch_sizes={','.join(map(str, sizes))}", f"-json={flags.output / name}.json"]
        command += [f"-variants={variants}"] if variants else []
        limit = PARALLEL_SECONDS if variants is None else RECORDER_SECONDS
        yield Part(name, [*command, *rest, "-opts", *MODES[mode]], limit)


def pytest_part(name: str, *paths: str) -> Part:
    """SIGINT makes pytest print the failures so far."""
    command = [*PYTHON, "-m", "pytest", *paths, "-m", "gpu", "-v", "--tb=short", "-p", "no:cacheprovider"]
    return Part(name, command, TEST_SECONDS, stop_signal=signal.SIGINT)


def _num_workers() -> int:
    return default_num_workers(own_share(), on_gpu=visible_gpus() > 0)


class Setting(NamedTuple):
    """What a training part trains; `variant` is a key of VARIANTS or ''."""

    mode: str
    batch_size: int
    compiled: bool
    programs: tuple[str, ...]
    variant: str

    @property
    def name(self) -> str:
        words = (self.mode, str(self.batch_size), "compiled" if self.compiled else "", self.variant)
        return "-".join(filter(None, words))


def training_part(flags: argparse.Namespace, rest: list[str], images: Path, setting: Setting) -> Part:
    """A run of benchmark_train.py."""
    timed_images = flags.timed_images or (FP32_TIMED_IMAGES if setting.mode == "fp32" else TIMED_IMAGES)
    steps = WARMUP_STEPS * max(1, round(timed_images / setting.batch_size / WARMUP_STEPS))
    limit = PROGRAM_SECONDS[setting.compiled]
    command = [*PYTHON, str(ROOT / "scripts/benchmarks/benchmark_train.py"), f"-programs={','.join(setting.programs)}"]
    command += ["-rounds=1", f"-interval={WARMUP_STEPS}", f"-warmup={WARMUP_STEPS}", f"-steps={steps}"]
    command += [f"-limit={limit:.0f}", f"-data={images}", f"-json={flags.output / setting.name}.json"]
    command += [f"-timm_train={flags.timm_train}"] if "timm" in setting.programs else []
    command += [*rest, f"-batch_size={setting.batch_size}", f"-num_workers={_num_workers()}"]
    command += ["-compile"] if setting.compiled else []
    command += ["-opts", *MODES[setting.mode], *VARIANTS.get(setting.variant, ())]
    return Part(setting.name, command, limit * len(setting.programs), setting._asdict())


def measure_machine(rest: list[str], file: Path) -> None:
    """Writes the device, its speed by mode, and the FLOPs of a training step per image, after each measurement.

    Raises:
        UserError: measurements failed; the file has the others.
    """
    context = single_process()
    modes = [mode for modes in (GPU_MODES if visible_gpus() else CPU_MODES) for mode in modes]
    config = mode_config(rest, modes[0])
    device = torch.cuda.get_device_name() if visible_gpus() else "a CPU"
    peaks: dict[str, float] = {}
    figures = {"device": device, "torch": torch.__version__, "model": config.model.name, "peak_flops_per_second": peaks}

    def count_flops() -> int:
        return training_flops(build_plain_model(config), config.data)

    def attention() -> str:
        model, _ = build_model(config.model, config.data, context.device)
        images = torch.zeros(2, config.data.image_channels, *[config.data.image_size] * 2, device=context.device)
        with Precision(config.amp, context.device).autocast():
            return ", ".join(fused_kernels(model, images)) or "explicit"

    def matmul_peak(mode: str) -> float:
        return matmul_flops_per_second(Precision(mode_config(rest, mode).amp, context.device))

    measurements: list[tuple[dict, str, Callable[[], float | str]]] = [
        (figures, "attention", attention),
        (figures, "training_flops_per_image", count_flops),
        *((peaks, mode, partial(matmul_peak, mode)) for mode in modes),
        (figures, "copy_bytes_per_second", partial(copy_bytes_per_second, context.device)),
    ]
    failures = []
    for target, name, measure in measurements:
        try:
            target[name] = measure()
        except Exception as error:  # of many types; the other measurements continue
            failures.append(f"{name}: {type(error).__name__}: {error}")
        write_json(file, figures)
    if failures:
        raise UserError(f"not measured: {'; '.join(failures)}")


if __name__ == "__main__":
    sys.exit(run_and_report_errors(main, sys.argv[1:]))
