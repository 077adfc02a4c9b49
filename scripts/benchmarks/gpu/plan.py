"""The parts of benchmark_gpu.py, the most important first, with their commands and time limits."""

import argparse
import signal
import sys
from pathlib import Path
from typing import NamedTuple

from datasets.loading.workers import default_num_workers
from scripts.benchmarks.benchmark_train import NO_DROPOUT, READY_OPTIONS, data_flags
from scripts.benchmarks.common import ENTRY, MODES
from scripts.benchmarks.gpu.parts import ROOT, Part
from utils.cpu_cores import own_share
from utils.device import visible_gpus

LIMITS = {"machine": 45, "profile": 45, "profile_compiled": 75, "tests": 80, "tests_compile": 120, "loaders": 90}
LIMITS |= {"parallel": 120, "parallel_recorder": 45, "parallel_no_recorder": 45}  # seconds
LIMITS |= {"eager": 30, "eager_fp32": 45, "cached": 50, "compiled": 75, "whole": 120}  # of each program of this kind
TIMED_IMAGES, FP32_TIMED_IMAGES = 16384, 4096  # per program
WARMUP_STEPS = 10
PYTHON = (sys.executable, "-u")  # unbuffered: the last lines of a failed part have its error
COMPILE_TESTS = ROOT / "tests/engine/parallel/test_compile.py"  # slow: a part of their own


class Setting(NamedTuple):
    """The options of a training part.

    kind: a key of LIMITS. "cached": compiled as an earlier part has compiled it; "whole": the whole model.
    size: the smallest or the largest batch size.
    options: added to -opts. model: replaces the user's flags, for another model.
    traffic: a key of gpu/report.TRAFFIC; "" if its traffic was not counted. variables: of its environment.
    """

    mode: str
    kind: str = "eager"
    size: str = "large"
    programs: tuple[str, ...] = ("ready",)
    options: tuple[str, ...] = ()
    model: tuple[str, ...] = ()
    traffic: str = "O1"
    variables: tuple[str, ...] = ()


O1, O2, FP16 = "O1-bf16", "O2-bf16", "O1-fp16"
DROPOUT = ("MODEL.DROPOUT=0.1", "MODEL.ATTENTION_DROPOUT=0.1")  # the shipped recipe's
NCHW = ("MODEL.CHANNELS_LAST=false",)
GRAPH = ("TRAIN.COMPILE=max",)  # records a CUDA graph in step 12 or 13
TINY = ("-cfg=configs/vit_tiny_patch16_224.yaml", *NO_DROPOUT)
BEFORE_TESTS = {
    "compiled": Setting(O1, "cached", programs=("ready", "bare")),
    "fp32_small": Setting("fp32", size="small", traffic="fp32"),
    "fp16_small": Setting(FP16, size="small"),
    "O1": Setting(O1),
    "O2": Setting(O2, traffic="O2"),
    "dropout": Setting(O1, options=DROPOUT, traffic="dropout"),
    "flash": Setting(O1, variables=("TORCH_CUDNN_SDPA_DEPRIORITIZED=1",)),  # without it torch prefers cuDNN on an H100
}
AFTER_TESTS = {
    "jpeg": Setting(O1, "cached", programs=("jpeg",)),
    "timm": Setting(O1, "whole", programs=("timm", "jpeg_whole")),
    "O2_compiled": Setting(O2, "compiled", traffic="O2"),
    "fp16_compiled": Setting(FP16, "compiled"),
    "dropout_compiled": Setting(O1, "compiled", options=DROPOUT, traffic="dropout"),
    "fp32": Setting("fp32", "eager_fp32", traffic="fp32"),
    "tf32": Setting("tf32", traffic="fp32"),
    "fp16": Setting(FP16),
    "droppath": Setting(O1, options=("MODEL.DROPPATH=0.2",), traffic="droppath"),
    "cudnn": Setting(O1, options=("MODEL.ATTENTION=cudnn",)),
    "deterministic": Setting(O1, options=("DETERMINISTIC=true",), traffic=""),
    "tiny": Setting(O1, size="small", model=TINY, traffic=""),
    "tiny_compiled": Setting(O1, "compiled", "small", model=TINY, traffic=""),
    "tiny_max": Setting(O1, "whole", "small", options=GRAPH, model=TINY, traffic=""),
    "resnet50": Setting(O1, model=("-model=resnet50",), traffic=""),
    "convnext": Setting(O1, model=("-model=convnext_tiny",), traffic=""),
    "resnet50_nchw": Setting(O1, options=NCHW, model=("-model=resnet50",), traffic=""),
    "convnext_nchw": Setting(O1, options=NCHW, model=("-model=convnext_tiny",), traffic=""),
    "O1_small": Setting(O1, size="small"),
    "O1_small_compiled": Setting(O1, "compiled", "small"),
}
TRAINING = BEFORE_TESTS | AFTER_TESTS
PROFILES = ("profile", "profile_compiled")
RECORDER_EVENTS = {"parallel_recorder": 2000, "parallel_no_recorder": 0}
NAMES = (
    *("machine", *PROFILES, *BEFORE_TESTS, "tests", *AFTER_TESTS),
    *("parallel", *RECORDER_EVENTS, "tests_compile", "loaders"),
)


def default_names(flags: argparse.Namespace) -> list[str]:
    """All parts; timm's train.py only if `-timm_train` names it."""
    return [name for name in NAMES if name != "timm" or flags.timm_train]


class Plan:
    """Builds the parts.

    rest: flags of main_single_gpu.py. images: folder of JPEGs, made for the parts that name it.
    """

    def __init__(self, flags: argparse.Namespace, rest: list[str], batch_sizes: list[int], images: Path) -> None:
        self.flags, self.rest, self.images = flags, rest, images
        self.batch_sizes = {"small": batch_sizes[0], "large": batch_sizes[-1]}
        self.num_workers = default_num_workers(own_share(), on_gpu=visible_gpus() > 0)

    def parts(self) -> list[Part]:
        """All parts, the most important first."""
        return [self._part(name) for name in NAMES]

    def _part(self, name: str) -> Part:
        if name in TRAINING:
            return self._training(name, TRAINING[name])
        if name in PROFILES:
            return self._profile(name)
        if name.startswith("parallel"):
            return self._parallel(name)
        if name == "tests":
            return _pytest_part(name, "tests", f"--ignore={COMPILE_TESTS}")
        if name == "tests_compile":
            return _pytest_part(name, str(COMPILE_TESTS))
        if name == "machine":
            return Part(name, [*_script("gpu/machine"), self._json(name), *self.rest], LIMITS[name])
        command = [*_script("benchmark_input"), "-rounds=2", f"-data={self.images}", self._json(name), *self.rest]
        return Part(name, [*command, *self._sizes("small")], LIMITS[name], images=self.images)

    def _training(self, name: str, setting: Setting) -> Part:
        """A run of benchmark_train.py."""
        batch_size, limit = self.batch_sizes[setting.size], LIMITS[setting.kind]
        timed_images = self.flags.timed_images or (FP32_TIMED_IMAGES if setting.mode == "fp32" else TIMED_IMAGES)
        steps = WARMUP_STEPS * max(1, round(timed_images / batch_size / WARMUP_STEPS))
        is_compiled = not setting.kind.startswith("eager")
        images = None if set(setting.programs) <= {"ready", "bare"} else self.images
        command = ["env", *setting.variables] if setting.variables else []
        command += [*_script("benchmark_train"), f"-programs={','.join(setting.programs)}", self._json(name)]
        warmup = 2 * WARMUP_STEPS if setting.options == GRAPH else WARMUP_STEPS
        command += ["-rounds=1", f"-interval={WARMUP_STEPS}", f"-warmup={warmup}", f"-steps={steps}"]
        command += [f"-limit={limit}", *([f"-data={images}"] if images else [])]
        command += [f"-timm_train={self.flags.timm_train}"] if name == "timm" and self.flags.timm_train else []
        command += [*(setting.model or self.rest), *self._sizes(setting.size), *(["-compile"] if is_compiled else [])]
        command += ["-opts", *MODES[setting.mode], *setting.options]
        settings = setting._asdict() | {"batch_size": batch_size, "is_compiled": is_compiled}
        return Part(name, command, limit * len(setting.programs), settings, images=images)

    def _profile(self, name: str) -> Part:
        """`-profile` in O1; its page and its trace are in a folder with the name of the part."""
        command = [*PYTHON, str(ENTRY), *self.rest, *self._sizes("large"), *data_flags("ready", self.images)]
        command += ["-profile", f"-output={self.flags.output / name}"]
        command += ["-compile"] if name != PROFILES[0] else []
        return Part(name, [*command, "-opts", *MODES[O1], *READY_OPTIONS], LIMITS[name])

    def _parallel(self, name: str) -> Part:
        """All strategies, or DDP with or without torch's flight recorder."""
        events = RECORDER_EVENTS.get(name)
        command = _script("gpu/parallel")
        if events is not None:
            command = ["env", f"TORCH_FR_BUFFER_SIZE={events}", *command, "-variants=ddp"]
        sizes = self.batch_sizes.values() if events is None else [self.batch_sizes["small"]]
        command += [f"-batch_sizes={','.join(map(str, sizes))}", self._json(name), *self.rest]
        return Part(name, [*command, "-opts", *MODES[O1]], LIMITS[name])

    def _json(self, name: str) -> str:
        return f"-json={self.flags.output / name}.json"

    def _sizes(self, size: str) -> list[str]:
        return [f"-batch_size={self.batch_sizes[size]}", f"-num_workers={self.num_workers}"]


def _script(name: str) -> list[str]:
    return [*PYTHON, str(ROOT / f"scripts/benchmarks/{name}.py")]


def _pytest_part(name: str, *paths: str) -> Part:
    """SIGINT makes pytest print the failures so far."""
    options = ["-m", "gpu", "-v", "--tb=short", "--continue-on-collection-errors", "-p", "no:cacheprovider"]
    return Part(name, [*PYTHON, "-m", "pytest", *paths, *options], LIMITS[name], stop_signal=signal.SIGINT)
