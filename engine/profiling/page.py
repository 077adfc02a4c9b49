"""The page of a profile: speed, advice, time by phase, slowest ops.

Advice is about the parts of a step that take long, each with its measured share, and the option to change.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from engine.parallel.strategy import Communication
from engine.run.facts import Model
from engine.run.step_timer import Phase
from utils.tables import markdown_table, three_digits

# Ops that read and write memory more than they compute. torch.compile fuses them.
_ELEMENTWISE = re.compile(
    "aten::(native_|cudnn_)?"
    "(add|sub|mul|div|gelu|silu|relu|clamp_min|threshold|sigmoid|_softmax|layer_norm|batch_norm|dropout)"
    "(_|_backward|_backward_data)?"
)
_DROPOUT_MASK = re.compile("random_mask|aten::random_|bernoulli")


@dataclass(frozen=True)
class StepTimes:
    """Seconds per step by phase, mean over the profiled steps. All values together are the time of a step.

    busy: on a GPU, the time of the work that the host launched in the phase; on a CPU, the time of the phase.
    idle: on a GPU, the time without GPU work while the host was in the phase; empty on a CPU.
    """

    busy: dict[str, float]
    idle: dict[str, float]

    @property
    def seconds(self) -> float:
        return sum(self.busy.values()) + sum(self.idle.values())

    def share(self, *phases: str) -> float:
        """Share of these phases in a step, 0 to 1, busy and idle together."""
        return sum(part.get(phase, 0.0) for part in (self.busy, self.idle) for phase in phases) / self.seconds

    def idle_share(self, *phases: str) -> float:
        """Share of the idle time in these phases, 0 to 1; without arguments, in all phases."""
        return sum(self.idle.get(phase, 0.0) for phase in phases or Phase) / self.seconds


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
    data_in_memory: bool = False


def bottlenecks(profile: Profile) -> list[str]:
    """A sentence for each part whose share of a step exceeds its limit, the largest expected saving first."""
    findings = [(share, gain, text) for share, limit, gain, text in _advice(profile) if share > limit]
    findings.sort(key=lambda finding: -finding[0] * finding[1])
    return [f"{share:.0%} of a step is {text}." for share, _, text in findings]


def _advice(profile: Profile) -> Iterator[tuple[float, float, float, str]]:
    """(share, limit, gain, text) of each part of a step that an option changes. gain: saved fraction of the share.

    No advice says to compile on a CPU: there ViT-Tiny gained 1%.
    """
    share, on_gpu, compiled = profile.times.share, profile.device_type == "cuda", profile.is_compiled
    if not profile.data_in_memory:
        smaller = "store the images decoded and small (scripts/make_shards.py -size N, -dataset=tar)"
        yield share(Phase.DATA_WAIT), 0.05, 1.0, f"waiting for data: raise -num_workers, or {smaller}"
        early = "raise -num_workers, so that the next batch is ready earlier"
        yield share(Phase.COPY), 0.05, 1.0, f"copying batches to the GPU while it has nothing to compute: {early}"
    idle = profile.times.idle_share(
        Phase.TRANSFORM, Phase.FORWARD, Phase.BACKWARD, Phase.COMMUNICATION, Phase.OPTIMIZER, Phase.OTHER
    )
    launch = "raise -batch_size, or try -opts TRAIN.COMPILE=max, which uses CUDA graphs on one GPU"
    launch = launch if compiled else "compile the model (-compile) or raise -batch_size"
    yield idle, 0.1, 1.0, f"an idle GPU that waits for the host to launch kernels: {launch}"
    if profile.has_fast_half and not profile.is_half_precision:
        slow = "the forward and backward pass in float32, on a device with fast 16-bit matrix products"
        yield share(Phase.FORWARD, Phase.BACKWARD), 0.5, 0.5, f"{slow}: train in mixed precision (-amp)"
    if on_gpu and profile.is_half_precision and profile.batch_size % 8:
        sizes = "16-bit matrix products of a size that tensor cores have to pad: make -batch_size a multiple of 8"
        yield share(Phase.FORWARD, Phase.BACKWARD), 0.5, 0.05, sizes
    if on_gpu and not compiled:
        fuse = "compile the model (-compile); compiling takes about a minute"
        elementwise = f"elementwise ops, norms and softmax, which torch.compile fuses: {fuse}"
        yield _share_of_ops(profile, _ELEMENTWISE.fullmatch), 0.15, 0.5, elementwise
    if not on_gpu:
        off = "set MODEL.DROPOUT and MODEL.ATTENTION_DROPOUT to 0; MODEL.DROPPATH regularizes at a lower cost"
        yield _share_of_ops(profile, _DROPOUT_MASK.search), 0.05, 1.0, f"drawing dropout masks, on one core: {off}"
    fewer = "a larger -batch_size or -accum_iter"
    if profile.has_fused_optimizer:
        yield share(Phase.OPTIMIZER), 0.1, 0.5, f"the optimizer: take fewer steps per epoch: {fewer}"
    else:
        fused = "use a fused one (TRAIN.OPTIMIZER.NAME AdamW or SGD)"
        yield share(Phase.OPTIMIZER), 0.1, 0.5, f"an optimizer that is not fused: {fused}"
    is_float32 = profile.communication is not None and "float32" in profile.communication.dtype
    in_16_bits = "exchange gradients in 16 bits (-opts PARALLEL.COMM_HOOK=bf16), or less often"
    less = in_16_bits if is_float32 else "communicate less often"
    hidden = f"communication between GPUs that computation does not hide: {less}: {fewer}"
    yield share(Phase.COMMUNICATION), 0.1, 0.5, hidden
    off = "turn off the augmentations that you need least: DATA.AFFINE_*, TRAIN.MIXUP_ALPHA, TRAIN.CUTMIX_ALPHA"
    yield share(Phase.TRANSFORM), 0.1, 0.5, f"augmentation on the device: {off}"
    yield share(Phase.LOGGING), 0.05, 1.0, "logging: log less often: raise REPORT_FREQ"


def _share_of_ops(profile: Profile, matches: Callable[[str], Any]) -> float:
    return sum(op.seconds for op in profile.ops if matches(op.name)) / profile.times.seconds


def has_fast_half_precision(device: torch.device) -> bool:
    """Returns whether the device multiplies 16-bit matrices faster than float32 ones.

    True for GPUs with tensor cores (Volta and later), and for CPUs with AMX, AVX512-BF16 or Arm's BF16.
    """
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (7, 0)
    cpuinfo = Path("/proc/cpuinfo")
    words = cpuinfo.read_text().split() if cpuinfo.exists() else []
    return not {"amx_bf16", "avx512_bf16", "bf16"}.isdisjoint(words)


_TOP_OPS = 10


def profile_page(profile: Profile) -> str:
    """The page in Markdown."""
    figures = [
        f"images/s: {three_digits(profile.images_per_second)}",
        *profile.model.rates(profile.images_per_second),
        f"memory: {profile.peak_memory_bytes / 1e9:.2f} GB",
    ]
    return "\n\n".join(
        (
            f"# Profile of {profile.model_name}, batch size {profile.batch_size}",
            f"{profile.title}; {profile.model.flops}.",
            f"**{', '.join(figures)}**",
            "\n".join(_advice_section(profile)),
            f"## Time of a step by phase\n\n{_phase_table(profile)}",
            *([_exchange(profile.communication)] if profile.communication else []),
            f"## Slowest ops, without the ops that they call\n\n{_op_table(profile)}",
        )
    )


def _advice_section(profile: Profile) -> list[str]:
    found = bottlenecks(profile)
    if not found:
        share = profile.times.share(Phase.FORWARD, Phase.BACKWARD)
        return [f"No bottleneck found: {share:.0%} of a step is the forward and backward pass."]
    return [f"**Bottleneck: {found[0]}**", *(f"Next: {sentence}" for sentence in found[1:])]


def _phase_table(profile: Profile) -> str:
    """The time of each phase; on a GPU, busy and idle time apart."""
    times = profile.times
    rows: list[tuple[str, float, float, float]] = []
    for phase in Phase:
        busy, idle = times.busy.get(phase, 0.0), times.idle.get(phase, 0.0)
        if busy or idle or phase != Phase.COMMUNICATION:
            rows.append((phase, busy, idle, times.share(phase)))
    rows.append(("step, with the profiler", sum(times.busy.values()), sum(times.idle.values()), 1.0))
    if profile.device_type != "cuda":
        return markdown_table(["phase", "ms", "share"], ([row[0], _ms(row[1]), f"{row[3]:.1%}"] for row in rows))
    header = ["phase", "GPU busy (ms)", "GPU idle (ms)", "share"]
    cells = ([phase, _ms(busy), _ms(idle), f"{share:.1%}"] for phase, busy, idle, share in rows)
    return f"{markdown_table(header, cells)}\n\nThe GPU is busy for {1 - times.idle_share():.1%} of the time."


def _exchange(exchange: Communication) -> str:
    """The section about the exchange of gradients between the ranks."""
    seconds, hidden = exchange.seconds, exchange.hidden_seconds
    cells = (
        "unknown" if exchange.buckets is None else str(exchange.buckets),
        f"{three_digits(exchange.bytes_per_step / 1e6)} MB, {exchange.dtype}",
        "unknown" if seconds is None else f"{_ms(seconds)} ms",
        "unknown" if hidden is None or seconds is None else f"{hidden / seconds:.0%}",
    )
    header = ["buckets", "gradients of each rank", "time in one step", "of it during the backward pass"]
    return f"## Exchange of gradients\n\n{markdown_table(header, [cells])}"


def _op_table(profile: Profile) -> str:
    rows = (
        [f"`{op.name}`", _ms(op.seconds), f"{op.seconds / profile.times.seconds:.1%}", f"{op.calls:g}"]
        for op in profile.ops[:_TOP_OPS]
    )
    return markdown_table(["op", "ms", "share", "calls"], rows)


def _ms(seconds: float) -> str:
    return three_digits(1000 * seconds)
