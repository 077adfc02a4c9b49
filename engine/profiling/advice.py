"""Advice from a profile: the parts of a step that take long, each with its measured share, and the option to change."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch

from engine.parallel.strategy import Communication
from engine.profiling.step_times import StepTimes
from engine.run.facts import Model
from engine.run.timing.phases import (
    BACKWARD,
    COMMUNICATION,
    COPY,
    DATA_WAIT,
    FORWARD,
    LOGGING,
    OPTIMIZER,
    OTHER,
    TRANSFORM,
)

# Ops that read and write memory more than they compute. torch.compile fuses them.
ELEMENTWISE_OPS = frozenset(
    f"aten::{name}"
    for name in (
        "add", "add_", "sub", "mul", "mul_", "div", "div_", "gelu", "gelu_backward", "silu", "silu_backward", "relu",
        "relu_", "clamp_min", "clamp_min_", "threshold_backward", "sigmoid", "sigmoid_backward", "_softmax",
        "_softmax_backward_data", "native_layer_norm", "native_layer_norm_backward", "cudnn_batch_norm",
        "cudnn_batch_norm_backward", "native_batch_norm", "native_batch_norm_backward", "native_dropout",
        "native_dropout_backward",
    )
)  # fmt: skip
_DROPOUT_MASK_OPS = ("random_mask", "aten::random_", "bernoulli")  # parts of names


class Op(NamedTuple):
    """An op, without the time of the ops that it calls."""

    name: str
    seconds: float  # per step
    calls: float  # per step


@dataclass(frozen=True)
class Profile:
    """Measurements of a run. images_per_second: over all devices, without the profiler, which slows steps down.

    title: world size, device and precision. has_fast_half: see `has_fast_half_precision`. ops: the slowest first.
    communication: None with one process.
    """

    title: str
    model_name: str
    batch_size: int
    device_type: str
    is_half_precision: bool
    has_fast_half: bool
    is_compiled: bool
    has_fused_optimizer: bool
    times: StepTimes
    ops: list[Op]
    images_per_second: float
    model: Model
    peak_memory_bytes: int
    communication: Communication | None = None


class Rule(NamedTuple):
    """Gives its advice if the share of a part in the step exceeds the threshold, and the rule applies to the profile.

    gain: expected saving, as a fraction of the share. Advice is sorted by share x gain.
    """

    part: str
    share: Callable[[Profile], float]
    threshold: float
    advice: str
    gain: float = 1.0
    applies: Callable[[Profile], bool] = lambda profile: True


def _phases(*phases: str) -> Callable[[Profile], float]:
    return lambda profile: profile.times.share(*phases)


def _ops(is_meant: Callable[[str], bool]) -> Callable[[Profile], float]:
    return lambda profile: sum(op.seconds for op in profile.ops if is_meant(op.name)) / profile.times.seconds


def _launch_wait(profile: Profile) -> float:
    return profile.times.idle_share(TRANSFORM, FORWARD, BACKWARD, COMMUNICATION, OPTIMIZER, OTHER)


def _exchanges_float32(profile: Profile) -> bool:
    return profile.communication is not None and "float32" in profile.communication.dtype


def _on_gpu(profile: Profile) -> bool:
    return profile.device_type == "cuda"


# No rule advises to compile on a CPU: there ViT-Tiny gained 1%.
RULES = (
    Rule(
        "waiting for data",
        _phases(DATA_WAIT),
        0.05,
        "raise -num_workers, or pack the images into one file (scripts/pack_dataset.py, -dataset=packed)",
    ),
    Rule(
        "copying batches to the GPU while it has nothing to compute",
        _phases(COPY),
        0.05,
        "raise -num_workers, so that the next batch is ready earlier",
    ),
    Rule(
        "an idle GPU that waits for the host to launch kernels",
        _launch_wait,
        0.10,
        "compile the model (-compile) or raise -batch_size",
        applies=lambda profile: not profile.is_compiled,
    ),
    Rule(
        "an idle GPU that waits for the host to launch kernels",
        _launch_wait,
        0.10,
        "raise -batch_size, or try -opts TRAIN.COMPILE=max, which can use CUDA graphs",
        applies=lambda profile: profile.is_compiled,
    ),
    Rule(
        "the forward and backward pass in float32, on a device with fast 16-bit matrix products",
        _phases(FORWARD, BACKWARD),
        0.5,
        "train in mixed precision (-amp)",
        0.5,
        lambda profile: profile.has_fast_half and not profile.is_half_precision,
    ),
    Rule(
        "elementwise ops, norms and softmax, which torch.compile fuses",
        _ops(lambda name: name in ELEMENTWISE_OPS),
        0.15,
        "compile the model (-compile); compiling takes about a minute",
        0.5,
        lambda profile: _on_gpu(profile) and not profile.is_compiled,
    ),
    Rule(
        "drawing dropout masks, on one core",
        _ops(lambda name: any(part in name for part in _DROPOUT_MASK_OPS)),
        0.05,
        "set MODEL.DROPOUT and MODEL.ATTENTION_DROPOUT to 0; MODEL.DROPPATH regularizes at a lower cost",
        applies=lambda profile: not _on_gpu(profile),
    ),
    Rule(
        "an optimizer that is not fused",
        _phases(OPTIMIZER),
        0.10,
        "use a fused one (TRAIN.OPTIMIZER.NAME AdamW or SGD)",
        0.5,
        lambda profile: not profile.has_fused_optimizer,
    ),
    Rule(
        "the optimizer",
        _phases(OPTIMIZER),
        0.10,
        "take fewer steps per epoch: a larger -batch_size or -accum_iter",
        0.5,
        lambda profile: profile.has_fused_optimizer,
    ),
    Rule(
        "communication between GPUs that computation does not hide",
        _phases(COMMUNICATION),
        0.10,
        "communicate less often: a larger -batch_size or -accum_iter",
        0.5,
        lambda profile: not _exchanges_float32(profile),
    ),
    Rule(
        "communication between GPUs that computation does not hide",
        _phases(COMMUNICATION),
        0.10,
        "exchange gradients in 16 bits (-opts PARALLEL.COMM_HOOK=bf16), or less often: a larger -batch_size or "
        "-accum_iter",
        0.5,
        _exchanges_float32,
    ),
    Rule(
        "augmentation on the device",
        _phases(TRANSFORM),
        0.10,
        "turn off the augmentations that you need least: DATA.AFFINE_*, TRAIN.MIXUP_ALPHA, TRAIN.CUTMIX_ALPHA",
        0.5,
    ),
    Rule("logging", _phases(LOGGING), 0.05, "log less often: raise REPORT_FREQ"),
)


def bottlenecks(profile: Profile) -> list[str]:
    """A sentence for each rule that applies, the largest expected saving first."""
    findings = [(rule.share(profile), rule) for rule in RULES if rule.applies(profile)]
    findings = [(share, rule) for share, rule in findings if share > rule.threshold]
    findings.sort(key=lambda finding: -finding[0] * finding[1].gain)
    return [f"{share:.0%} of a step is {rule.part}: {rule.advice}." for share, rule in findings]


def has_fast_half_precision(device: torch.device) -> bool:
    """Returns whether the device multiplies 16-bit matrices faster than float32 ones.

    True for GPUs with tensor cores (Volta and later), and for CPUs with AMX, AVX512-BF16 or Arm's BF16.
    """
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (7, 0)
    cpuinfo = Path("/proc/cpuinfo")
    words = cpuinfo.read_text().split() if cpuinfo.exists() else []
    return not {"amx_bf16", "avx512_bf16", "bf16"}.isdisjoint(words)
