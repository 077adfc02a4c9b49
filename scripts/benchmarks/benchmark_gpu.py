"""Measures a machine with a GPU in calls of nine minutes: python scripts/benchmarks/benchmark_gpu.py -output FOLDER

Each part is a command, the most important first. A part starts if its time limit fits into the time left of
`-minutes`, so one that fails or hangs stops no other. The next call with the same output folder runs the other parts;
`-parts` repeats parts. See docs/benchmarks.md, GPU.
"""

import argparse
import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[2]))

from configs.command_line import parse_command_line
from datasets.loading.workers import default_num_workers
from scripts.benchmarks.benchmark_train import NO_DROPOUT, check_supported
from scripts.benchmarks.programs import ENTRY, MODES, READY_OPTIONS, failure_reason, parse_names, ready_flags
from scripts.benchmarks.timm_command import add_timm_flag
from scripts.benchmarks.turns import SPEED, Figures, figures_table, memory, speed, write_json
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
# Seconds: about twice the time on an H200, so that a slow disk ends no part; of `tests` beside other work.
LIMITS = {"machine": 100, "profile": 60, "profile_compiled": 100, "tests": 300, "tests_compile": 300, "loaders": 90}
LIMITS |= {"paddlevit": 420, "caltech256": 240}  # of programs, by kind:
LIMITS |= {"eager": 60, "ranks": 90, "eager_fp32": 90, "cached": 70, "compiled": 80, "whole": 120}
TABLES = ("paddlevit", "caltech256")  # of benchmark_amp.py; `-parts tables` stands for them
TIMED_IMAGES = 16384  # per program; a quarter in fp32
INTERVAL, WARMUP_STEPS = 10, 20  # steps
PYTHON = (sys.executable, "-u")  # unbuffered: the last lines of a failed part have its error
COMPILE_TESTS = ROOT / "tests/engine/parallel/test_compile.py"  # slow: a part of their own
AUTOTUNED_TEST = "tests/engine/training/test_step_overhead.py::test_the_host_does_not_wait_in_a_step_on_a_gpu[options4]"
GPU_TEST = re.compile(r"mark\.gpu|any_device|group_of_one")  # collecting all tests takes 23 s
Records = dict[str, dict[str, Any]]  # part -> outcome, seconds, result


class Part(NamedTuple):
    """A command, its time limit, and the signal at this limit."""

    command: list[str]
    limit_seconds: float
    stop_signal: signal.Signals = signal.SIGTERM


class Setting(NamedTuple):
    """The options of a training part.

    kind: a key of LIMITS. "cached": compiled as an earlier part has compiled it; "whole": the whole model is compiled.
    small: the small batch size.
    options: added to -opts. model: replaces the user's flags, for another model. variables: of its environment.
    interval: steps between two reports, which take the time of a step of a small model.
    """

    mode: str
    kind: str = "eager"
    small: bool = False
    programs: tuple[str, ...] = ("ready",)
    options: tuple[str, ...] = ()
    model: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    interval: int = INTERVAL

    def work(self) -> "Setting":
        """Equal for parts whose steps compute the same: compilation and deterministic algorithms do not change it."""
        options = tuple(one for one in self.options if not one.startswith(("TRAIN.COMPILE", "DETERMINISTIC")))
        return Setting(self.mode, small=self.small, options=options, model=self.model)


O1, O2, FP16 = "O1-bf16", "O2-bf16", "O1-fp16"
DROPOUT = ("MODEL.DROPOUT=0.1", "MODEL.ATTENTION_DROPOUT=0.1")  # the shipped recipe's
STREAM = ("AMP.PRESET=bf16_stream",)
WHOLE, FSDP = ("TRAIN.COMPILE=model",), ("PARALLEL.STRATEGY=fsdp",)
NO_GEMM_TUNING = ("TORCHINDUCTOR_MAX_AUTOTUNE_GEMM_BACKENDS=ATEN",)  # it takes minutes
TINY = Setting(O1, small=True, model=("-cfg=configs/vit_tiny_patch16_224.yaml", *NO_DROPOUT), interval=50)
TRAINING = {  # the profiles are after the second part, the tests before jpeg
    "O1": Setting(O1),
    "O2": Setting(O2),
    "compiled": Setting(O1, "cached", programs=("ready", "bare")),
    "O2_compiled": Setting(O2, "compiled"),
    "stream": Setting(O1, options=STREAM),
    "flash": Setting(O1, variables=("TORCH_CUDNN_SDPA_DEPRIORITIZED=1",)),  # without it torch prefers cuDNN on an H100
    "dropout": Setting(O1, options=DROPOUT),
    "fp16_small": Setting(FP16, small=True),
    "fp32_small": Setting("fp32", small=True),
    "jpeg": Setting(O1, "compiled", programs=("jpeg",)),
    "timm": Setting(O1, "whole", programs=("timm",), options=WHOLE),
    "jpeg_whole": Setting(O1, "whole", programs=("jpeg",), options=WHOLE),
    "tiny": TINY,
    "tiny_max": TINY._replace(kind="whole", options=("TRAIN.COMPILE=max",), variables=NO_GEMM_TUNING),
    "stream_compiled": Setting(O1, "compiled", options=STREAM),
    "dropout_compiled": Setting(O1, "compiled", options=DROPOUT),
    "droppath": Setting(O1, options=("MODEL.DROPPATH=0.2",)),
    "resnet50": Setting(O1, model=("-model=resnet50",)),
    "resnet50_nchw": Setting(O1, options=("MODEL.CHANNELS_LAST=false",), model=("-model=resnet50",)),
    "fp32": Setting("fp32", "eager_fp32"),
    "tf32": Setting("tf32"),
    "deterministic": Setting(O1, options=("DETERMINISTIC=true",)),
    "O1_small": Setting(O1, small=True),
}
STRATEGIES = {  # with several GPUs
    "ddp": ("PARALLEL.STRATEGY=ddp",),
    "fsdp": FSDP,
    "ddp_bf16": ("PARALLEL.COMM_HOOK=bf16",),
    "ddp_5mb": ("PARALLEL.BUCKET_MB=5",),
    "ddp_100mb": ("PARALLEL.BUCKET_MB=100",),
    "fsdp_kept": (*FSDP, "PARALLEL.RESHARD_AFTER_FORWARD=false"),
    "fsdp_checkpointing": (*FSDP, "MODEL.GRAD_CHECKPOINTING=true"),
}
TRAINING |= {
    name: Setting(O1, "ranks", small=True, programs=("ranks",), options=options) for name, options in STRATEGIES.items()
}
WORKS: dict[Setting, str] = {}  # work -> the first part that has it
for _name, _setting in TRAINING.items():
    if _setting.kind != "ranks":
        WORKS.setdefault(_setting.work(), _name)


def main(argv: list[str]) -> int:
    flags, rest = split_flags(_parser(), argv)
    deadline = time.monotonic() + 60 * flags.minutes - RESERVED_SECONDS
    check_supported(parse_command_line([*DEFAULTS, *rest]).config.train)  # before the measurements
    parts = build_parts(flags, [*DEFAULTS, *rest])
    file = flags.output / "figures.json"
    records: Records = read_json(file)
    names = flags.parts and flags.parts.replace("tables", ",".join(TABLES))
    selected = parse_names("parts", names, parts) if names else [name for name in parts if name not in records]
    if not visible_gpus():
        print("warning: no GPU is visible; the parts run on the CPU", file=sys.stderr)
    flags.output.mkdir(parents=True, exist_ok=True)
    has_failed, command = False, f"python scripts/{SCRIPT} {shlex.join(argv)}"
    for name in selected:
        if parts[name].limit_seconds <= deadline - time.monotonic():
            records[name] = run_part(name, parts[name], flags.output)
            for path in (file, flags.json):
                write_json(path, records)
            atomic_write(flags.output / "figures.md", page(records, command))
            print(f"{name}: {records[name]['outcome']}", file=sys.stderr, flush=True)
            has_failed |= not records[name]["outcome"].startswith("done")
    print(page(records, command))
    shutil.make_archive(str(flags.output), "gztar", flags.output)
    if left := [name for name in parts if name not in records]:
        print(f"Not run yet: {', '.join(left)}. The same command without -parts runs them.")
    return int(has_failed)


def _parser() -> argparse.ArgumentParser:
    parser = flag_parser(SCRIPT, "Measures a machine with a GPU within a given time.")
    add_flag(parser, "output", type=Path, default="gpu_figures", metavar="FOLDER", help="default: gpu_figures")
    parts = f"of {', '.join(('machine', *TRAINING))}, ..., tables (default: all that have not run)"
    add_flag(parser, "parts", metavar="A,B", help=parts)
    add_flag(parser, "minutes", type=float, default=9.0, metavar="N", help="total time (default: 9)")
    add_flag(parser, "small_batch", type=positive, default=64, metavar="N", help="of `_small` parts (default: 64)")
    add_flag(parser, "large_batch", type=positive, default=256, metavar="N", help="of the other parts (default: 256)")
    images = f"images per timed turn of a program (default: {TIMED_IMAGES}; a quarter in fp32)"
    add_flag(parser, "timed_images", type=positive, default=TIMED_IMAGES, metavar="N", help=images)
    add_timm_flag(parser)
    return parser


def build_parts(flags: argparse.Namespace, rest: list[str]) -> dict[str, Part]:
    """The parts that can run here: with `-timm_train` timm's, with several GPUs the strategies of PARALLEL.

    rest: flags of main_single_gpu.py.
    """
    workers = f"-num_workers={default_num_workers(own_share(), on_gpu=visible_gpus() > 0)}"
    small, large = ([f"-batch_size={size}", workers] for size in (flags.small_batch, flags.large_batch))

    def script(name: str, part: str) -> list[str]:
        return [*PYTHON, str(ROOT / f"scripts/benchmarks/{name}.py"), f"-json={flags.output / part}.json"]

    def profile(name: str, *compile_flags: str) -> Part:
        command = [*PYTHON, str(ENTRY), *rest, *large, *ready_flags(), "-profile", f"-output={flags.output / name}"]
        return Part([*command, *compile_flags, "-opts", *MODES[O1], *READY_OPTIONS], LIMITS[name])

    def training(name: str) -> Part:
        setting = TRAINING[name]
        batch_size, limit = flags.small_batch if setting.small else flags.large_batch, LIMITS[setting.kind]
        timed_images = flags.timed_images // (4 if setting.mode == "fp32" else 1)
        steps = setting.interval * max(1, round(timed_images / batch_size / setting.interval))
        command = ["env", *setting.variables] if setting.variables else []
        command += [*script("benchmark_train", name), f"-programs={','.join(setting.programs)}", "-rounds=1"]
        command += [f"-interval={setting.interval}", f"-warmup={WARMUP_STEPS}", f"-steps={steps}", f"-limit={limit}"]
        command += [f"-timm_train={flags.timm_train}"] if "timm" in setting.programs else []
        command += [*(setting.model or rest), *(small if setting.small else large)]
        command += [] if setting.kind.startswith(("eager", "ranks")) else ["-compile"]
        command += ["-opts", *MODES[setting.mode], *setting.options]
        return Part(command, limit * len(setting.programs))

    def tests(name: str, *paths: str) -> Part:
        options = ["-m", "gpu", "-v", "--tb=short", "--continue-on-collection-errors", "-p", "no:cacheprovider"]
        # SIGINT makes pytest print the failures so far.
        return Part([*PYTHON, "-m", "pytest", *paths, *options], LIMITS[name], signal.SIGINT)

    files = (path for path in sorted((ROOT / "tests").rglob("test_*.py")) if path != COMPILE_TESTS)
    gpu_tests = [str(path) for path in files if GPU_TEST.search(path.read_text())]
    batch_sizes = [f"-small_batch={flags.small_batch}", f"-large_batch={flags.large_batch}"]
    left_out = () if flags.timm_train else ("timm",)
    left_out += () if visible_gpus() > 1 else tuple(STRATEGIES)
    first, second, *others = [name for name in TRAINING if name not in left_out]
    number = others.index("jpeg")
    return {
        "machine": Part([*script("machine", "machine"), *batch_sizes, *rest], LIMITS["machine"]),
        **{name: training(name) for name in (first, second)},
        "profile": profile("profile"),
        "profile_compiled": profile("profile_compiled", "-compile"),
        **{name: training(name) for name in others[:number]},
        "tests": tests("tests", *gpu_tests, f"--deselect={AUTOTUNED_TEST}"),
        **{name: training(name) for name in others[number:]},
        "tests_compile": tests("tests_compile", str(COMPILE_TESTS), str(ROOT / AUTOTUNED_TEST)),
        "loaders": Part([*script("benchmark_input", "loaders"), "-rounds=2", *rest, *small], LIMITS["loaders"]),
        **{name: Part([*script("benchmark_amp", name), f"-table={name}"], LIMITS[name]) for name in TABLES},
    }


def run_part(name: str, part: Part, folder: Path) -> dict[str, Any]:
    """Runs the part; its output is in `<name>.txt`.

    Returns:
        outcome: begins with "done" if nothing failed. seconds. result: the content of `<name>.json`, which the command
        may have written, also if it was stopped.
    """
    file, output = folder / f"{name}.json", folder / f"{name}.txt"
    file.unlink(missing_ok=True)
    started, is_late = time.monotonic(), False
    with open(output, "w") as stream:
        print("$", shlex.join(part.command), file=stream, flush=True)
        process = subprocess.Popen(part.command, stdout=stream, stderr=subprocess.STDOUT, process_group=0)
    try:
        process.wait(part.limit_seconds)
    except subprocess.TimeoutExpired:
        is_late = True
    finally:  # the signal first, so that the process can end its own programs; then SIGKILL to its process group
        stop_processes([process], part.stop_signal, TERMINATION_SECONDS)
    seconds, result = time.monotonic() - started, json.loads(file.read_text()) if file.exists() else None
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


INVALID = ": invalid, the device was busy when the floor was measured"


def page(records: Records, command: str) -> str:
    """The device, the figures of the training parts, and the outcome of each part."""
    machine = (records.get("machine") or {}).get("result") or {}
    texts = ["# GPU figures", f"`{command}`"]
    if machine:
        floors = machine["floors"].items()
        speeds = (f"{name} {one['flops'] / one['kernel_seconds'] / 1e12:.4g}" for name, one in floors)
        texts.append(
            f"{machine['device']}, torch {machine['torch']}. Copies within its memory, read and written: "
            f"{machine['copy_bytes_per_second'] / 1e12:.3g} TB/s. Matrix products and attention, TFLOP/s: "
            f"{', '.join(speeds)}."
        )
    columns = {"images/s": speed, "share of the eager floor": lambda one: one["share"], "peak memory (GB)": memory}
    texts.append(figures_table(training_figures(records, machine), columns))
    outcomes = [[name, one["outcome"].replace("|", "\\|"), f"{one['seconds']:.0f}"] for name, one in records.items()]
    texts.append(markdown_table(["part", "outcome", "seconds"], outcomes))
    texts.append("The output of each part is in its .txt file; `loaders.txt` and the parts of `tables` have tables.")
    return "\n\n".join(texts) + "\n"


def training_figures(records: Records, machine: dict[str, Any]) -> Figures:
    """The programs of the training parts. share: of the speed that the floor of the step allows, run eagerly."""
    figures: Figures = {}
    for name, setting in TRAINING.items():
        result = (records.get(name) or {}).get("result") or {}
        floor = machine.get("floors", {}).get(WORKS.get(setting.work()))
        for program, one in result.get("figures", {}).items():
            share = ""
            if floor and SPEED in one and program != "ranks":
                seconds = floor["kernel_seconds"] + floor["other_bytes"] / machine["copy_bytes_per_second"]
                ratio = one[SPEED][0] * seconds / floor["batch_size"]
                share = f"{ratio:.1%}{INVALID if ratio > 1 and setting.kind.startswith('eager') else ''}"
            if one:  # else its turn has not ended
                figures[f"{name}: {setting.mode}, {program}"] = one | {"share": share}
    return figures


if __name__ == "__main__":
    sys.exit(run_and_report_errors(main, sys.argv[1:]))
