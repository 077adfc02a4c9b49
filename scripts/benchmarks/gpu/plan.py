"""The parts of benchmark_gpu.py, the most important first, with their commands and time limits."""

import argparse
import signal
import sys
from pathlib import Path
from typing import NamedTuple

from datasets.loading.workers import default_num_workers
from scripts.benchmarks.benchmark_train import NO_DROPOUT
from scripts.benchmarks.gpu.parts import Part
from scripts.benchmarks.programs import ENTRY, MODES, READY_OPTIONS, ready_flags
from utils.cpu_cores import own_share
from utils.device import visible_gpus

ROOT = Path(__file__).parents[3]
LIMITS = {"machine": 45, "profile": 45, "profile_compiled": 75, "tests": 80, "tests_compile": 120, "loaders": 90}
LIMITS |= {"paddlevit": 420, "caltech256": 240}  # seconds; of programs, by kind:
LIMITS |= {"eager": 30, "ranks": 45, "eager_fp32": 45, "cached": 50, "compiled": 75, "whole": 120}
TABLES = ("paddlevit", "caltech256")  # of benchmark_amp.py; `-parts tables` stands for them
TIMED_IMAGES = 16384  # per program; a quarter in fp32
INTERVAL, WARMUP_STEPS = 10, 20  # steps
PYTHON = (sys.executable, "-u")  # unbuffered: the last lines of a failed part have its error
COMPILE_TESTS = ROOT / "tests/engine/parallel/test_compile.py"  # slow: a part of their own


class Setting(NamedTuple):
    """The options of a training part.

    kind: a key of LIMITS. "cached": compiled as an earlier part has compiled it; "whole": the whole model is compiled.
    small: the small batch size.
    options: added to -opts. model: replaces the user's flags, for another model. variables: of its environment.
    """

    mode: str
    kind: str = "eager"
    small: bool = False
    programs: tuple[str, ...] = ("ready",)
    options: tuple[str, ...] = ()
    model: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()


O1, O2, FP16 = "O1-bf16", "O2-bf16", "O1-fp16"
DROPOUT = ("MODEL.DROPOUT=0.1", "MODEL.ATTENTION_DROPOUT=0.1")  # the shipped recipe's
NCHW = ("MODEL.CHANNELS_LAST=false",)
TINY = ("-cfg=configs/vit_tiny_patch16_224.yaml", *NO_DROPOUT)
BEFORE_TESTS = {
    "compiled": Setting(O1, "cached", programs=("ready", "bare")),
    "fp32_small": Setting("fp32", small=True),
    "fp16_small": Setting(FP16, small=True),
    "O1": Setting(O1),
    "O2": Setting(O2),
    "dropout": Setting(O1, options=DROPOUT),
    "flash": Setting(O1, variables=("TORCH_CUDNN_SDPA_DEPRIORITIZED=1",)),  # without it torch prefers cuDNN on an H100
}
AFTER_TESTS = {
    "jpeg": Setting(O1, "compiled", programs=("jpeg",)),
    "timm": Setting(O1, "whole", programs=("timm", "jpeg"), options=("TRAIN.COMPILE=model",)),
    "O2_compiled": Setting(O2, "compiled"),
    "dropout_compiled": Setting(O1, "compiled", options=DROPOUT),
    "fp32": Setting("fp32", "eager_fp32"),
    "tf32": Setting("tf32"),
    "droppath": Setting(O1, options=("MODEL.DROPPATH=0.2",)),
    "deterministic": Setting(O1, options=("DETERMINISTIC=true",)),
    "tiny": Setting(O1, small=True, model=TINY),
    "tiny_max": Setting(O1, "whole", small=True, options=("TRAIN.COMPILE=max",), model=TINY),
    "resnet50": Setting(O1, model=("-model=resnet50",)),
    "resnet50_nchw": Setting(O1, options=NCHW, model=("-model=resnet50",)),
    "O1_small": Setting(O1, small=True),
}
FSDP = ("PARALLEL.STRATEGY=fsdp",)
STRATEGIES = {  # with several GPUs
    "ddp": ("PARALLEL.STRATEGY=ddp",),
    "fsdp": FSDP,
    "ddp_bf16": ("PARALLEL.COMM_HOOK=bf16",),
    "ddp_5mb": ("PARALLEL.BUCKET_MB=5",),
    "ddp_100mb": ("PARALLEL.BUCKET_MB=100",),
    "fsdp_kept": (*FSDP, "PARALLEL.RESHARD_AFTER_FORWARD=false"),
    "fsdp_checkpointing": (*FSDP, "MODEL.GRAD_CHECKPOINTING=true"),
}
AFTER_TESTS |= {
    name: Setting(O1, "ranks", small=True, programs=("ranks",), options=options) for name, options in STRATEGIES.items()
}
TRAINING = BEFORE_TESTS | AFTER_TESTS


def build_parts(flags: argparse.Namespace, rest: list[str]) -> dict[str, Part]:
    """The parts that can run here: with `-timm_train` timm's, with several GPUs the strategies of PARALLEL.

    rest: flags of main_single_gpu.py.
    """
    workers = f"-num_workers={default_num_workers(own_share(), on_gpu=visible_gpus() > 0)}"
    small, large = ([f"-batch_size={size}", workers] for size in (flags.small_batch, flags.large_batch))

    def script(name: str, part: str) -> list[str]:
        return [*PYTHON, str(ROOT / f"scripts/benchmarks/{name}.py"), f"-json={flags.output / part}.json"]

    def profile(name: str, *compile_flags: str) -> list[str]:
        command = [*PYTHON, str(ENTRY), *rest, *large, *ready_flags(), "-profile", f"-output={flags.output / name}"]
        return [*command, *compile_flags, "-opts", *MODES[O1], *READY_OPTIONS]

    def training(name: str, setting: Setting) -> Part:
        batch_size, limit = flags.small_batch if setting.small else flags.large_batch, LIMITS[setting.kind]
        timed_images = flags.timed_images // (4 if setting.mode == "fp32" else 1)
        steps = INTERVAL * max(1, round(timed_images / batch_size / INTERVAL))
        command = ["env", *setting.variables] if setting.variables else []
        command += [*script("benchmark_train", name), f"-programs={','.join(setting.programs)}", "-rounds=1"]
        command += [f"-interval={INTERVAL}", f"-warmup={WARMUP_STEPS}", f"-steps={steps}", f"-limit={limit}"]
        command += [f"-timm_train={flags.timm_train}"] if "timm" in setting.programs else []
        command += [*(setting.model or rest), *(small if setting.small else large)]
        command += [] if setting.kind.startswith(("eager", "ranks")) else ["-compile"]
        command += ["-opts", *MODES[setting.mode], *setting.options]
        return Part(command, limit * len(setting.programs))

    left_out = () if flags.timm_train else ("timm",)
    left_out += () if visible_gpus() > 1 else tuple(STRATEGIES)
    return {
        "machine": Part([*script("gpu/machine", "machine"), *rest], LIMITS["machine"]),
        "profile": Part(profile("profile"), LIMITS["profile"]),
        "profile_compiled": Part(profile("profile_compiled", "-compile"), LIMITS["profile_compiled"]),
        **{name: training(name, setting) for name, setting in BEFORE_TESTS.items()},
        "tests": _pytest_part("tests", str(ROOT / "tests"), f"--ignore={COMPILE_TESTS}"),
        **{name: training(name, one) for name, one in AFTER_TESTS.items() if name not in left_out},
        "tests_compile": _pytest_part("tests_compile", str(COMPILE_TESTS)),
        "loaders": Part([*script("benchmark_input", "loaders"), "-rounds=2", *rest, *small], LIMITS["loaders"]),
        **{name: Part([*script("benchmark_amp", name), f"-table={name}"], LIMITS[name]) for name in TABLES},
    }


def _pytest_part(name: str, *paths: str) -> Part:
    """SIGINT makes pytest print the failures so far."""
    options = ["-m", "gpu", "-v", "--tb=short", "--continue-on-collection-errors", "-p", "no:cacheprovider"]
    return Part([*PYTHON, "-m", "pytest", *paths, *options], LIMITS[name], signal.SIGINT)
