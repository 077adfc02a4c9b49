"""`-profile`: trains a few steps, and writes their trace and a page: speed, advice, time by phase, slowest ops.

Advice is about the parts of a step that take long, each with its measured share, and the option to change.
"""

import gzip
import json
import math
import os
import re
from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, record_function
from torch.profiler import profile as torch_profile

from engine.parallel.strategy import Communication
from engine.run.facts import Devices, Model
from engine.run.step_timer import LABELLED, Phase
from engine.training.session import RunOutputs, Session
from engine.training.step import train_steps
from utils.device import device_name, peak_memory_bytes, synchronize, timed
from utils.files import atomic_write
from utils.system import describe_waiting
from utils.tables import markdown_table, three_digits
from utils.torch_compat import is_compiled

TRACE, PAGE = "trace.json.gz", "profile.md"
_WARMUP_STEPS, _TIMED_STEPS, _PROFILED_STEPS = 5, 10, 10
_ENDLESS = 10**6  # epochs
_QUIET = "99"  # above all levels of KINETO_LOG_LEVEL, to silence its first line on standard error
_TOP_OPS = 10
WINDOW = "profiled steps"  # label around all profiled steps
_LAUNCHES = ("cuda_runtime", "cuda_driver")  # categories of events in the trace
_GPU_WORK = ("kernel", "gpu_memcpy", "gpu_memset")
# Ops that read and write memory more than they compute. torch.compile fuses them.
_ELEMENTWISE = re.compile(
    "^aten::(native_|cudnn_)?"
    "(add|sub|mul|div|gelu|silu|relu|clamp_min|threshold|sigmoid|_softmax|layer_norm|batch_norm|dropout)"
    "(_|_backward|_backward_data)?$"
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
    times, share, on_gpu = profile.times, profile.times.share, profile.device_type == "cuda"

    def share_of_ops(pattern: re.Pattern[str]) -> float:
        return sum(op.seconds for op in profile.ops if pattern.search(op.name)) / times.seconds

    if not profile.data_in_memory:
        smaller = "store the images decoded and small (scripts/make_shards.py -size N, -dataset=tar)"
        yield share(Phase.DATA_WAIT, Phase.COPY), 0.05, 1.0, f"waiting for data: raise -num_workers, or {smaller}"
    launches = (Phase.TRANSFORM, Phase.FORWARD, Phase.BACKWARD, Phase.COMMUNICATION, Phase.OPTIMIZER, Phase.OTHER)
    faster = "raise -batch_size, or try -opts TRAIN.COMPILE=max, which uses CUDA graphs on one GPU"
    faster = faster if profile.is_compiled else "compile the model (-compile) or raise -batch_size"
    yield times.idle_share(*launches), 0.1, 1.0, f"an idle GPU that waits for the host to launch kernels: {faster}"
    if profile.has_fast_half and not profile.is_half_precision:
        slow = "the forward and backward pass in float32, on a device with fast 16-bit matrix products"
        yield share(Phase.FORWARD, Phase.BACKWARD), 0.5, 0.5, f"{slow}: train in mixed precision (-amp)"
    if on_gpu and not profile.is_compiled:
        fused = "elementwise ops, norms and softmax, which torch.compile fuses: compile the model (-compile)"
        yield share_of_ops(_ELEMENTWISE), 0.15, 0.5, fused
    if not on_gpu:
        off = "set MODEL.DROPOUT and MODEL.ATTENTION_DROPOUT to 0; MODEL.DROPPATH regularizes at a lower cost"
        yield share_of_ops(_DROPOUT_MASK), 0.05, 1.0, f"drawing dropout masks, on one core: {off}"
    fewer = "a larger -batch_size or -accum_iter"
    yield share(Phase.OPTIMIZER), 0.1, 0.5, f"the optimizer: take fewer steps per epoch: {fewer}"
    less = f"exchange gradients in 16 bits (-opts PARALLEL.COMM_HOOK=bf16), or less often: {fewer}"
    yield share(Phase.COMMUNICATION), 0.1, 0.5, f"communication between GPUs that computation does not hide: {less}"
    off = "turn off the augmentations that you need least: DATA.AFFINE_*, TRAIN.MIXUP_ALPHA, TRAIN.CUTMIX_ALPHA"
    yield share(Phase.TRANSFORM), 0.1, 0.5, f"augmentation on the device: {off}"
    yield share(Phase.LOGGING), 0.05, 1.0, "logging: log less often: raise REPORT_FREQ"


def has_fast_half_precision(device: torch.device) -> bool:
    """Returns whether the device multiplies 16-bit matrices faster than float32 ones.

    True for GPUs with tensor cores (Volta and later), and for CPUs with AMX, AVX512-BF16 or Arm's BF16.
    """
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (7, 0)
    cpuinfo = Path("/proc/cpuinfo")
    words = cpuinfo.read_text().split() if cpuinfo.exists() else []
    return not {"amx_bf16", "avx512_bf16", "bf16"}.isdisjoint(words)


def profile_page(profile: Profile) -> str:
    """The page in Markdown."""
    figures = [
        f"images/s: {three_digits(profile.images_per_second)}",
        *profile.model.rates(profile.images_per_second),
        f"memory: {profile.peak_memory_bytes / 1e9:.2f} GB",
    ]
    if found := bottlenecks(profile):
        advice = [f"**Bottleneck: {found[0]}**", *(f"Next: {sentence}" for sentence in found[1:])]
    else:
        share = profile.times.share(Phase.FORWARD, Phase.BACKWARD)
        advice = [f"No bottleneck found: {share:.0%} of a step is the forward and backward pass."]
    ops = (
        [f"`{op.name}`", _ms(op.seconds), f"{op.seconds / profile.times.seconds:.1%}", f"{op.calls:g}"]
        for op in profile.ops[:_TOP_OPS]
    )
    op_table = markdown_table(["op", "ms", "share", "calls"], ops)
    parts = [
        f"# Profile of {profile.model_name}, batch size {profile.batch_size}",
        f"{profile.title}; {profile.model.flops}.",
        f"**{', '.join(figures)}**",
        "\n".join(advice),
        f"## Time of a step by phase\n\n{_phase_table(profile)}",
        *([_exchange(profile.communication)] if profile.communication else []),
        f"## Slowest ops, without the ops that they call\n\n{op_table}",
    ]
    return "\n\n".join(parts)


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


def _ms(seconds: float) -> str:
    return three_digits(1000 * seconds)


def profile_run(session: Session, outputs: RunOutputs) -> None:
    """Trains some steps on every rank; only the main process is profiled; it writes and prints the page.

    The run has as many epochs as the steps take, without evaluations and checkpoints. The speed is measured first,
    without the profiler, which slows the steps down.
    """
    state, context, reporter = session.state, session.state.context, outputs.reporter
    on_gpu = [ProfilerActivity.CUDA] if context.device.type == "cuda" else []
    new_profiler = partial(torch_profile, activities=[ProfilerActivity.CPU, *on_gpu])
    if context.is_main:
        os.environ.setdefault("KINETO_LOG_LEVEL", _QUIET)
        with new_profiler():  # the first start is slow: do it now, or workers would load ahead during it
            pass
    batches = session.batches.iterate(0, 0, _ENDLESS, bad_images=session.bad_images)
    progress = state.new_progress(epoch=0)
    num_steps = _WARMUP_STEPS + _TIMED_STEPS + _PROFILED_STEPS
    reporter.num_epochs = math.ceil(num_steps / state.layout.steps_per_epoch)
    reporter.start(epochs_done=0, steps_done=0)

    def train(steps: int) -> None:
        nonlocal progress
        while steps:
            if progress.done_steps == progress.steps:
                progress = state.new_progress(progress.epoch + 1)
            if progress.done_steps == 0:
                reporter.start_epoch(progress)
            stop_step = min(progress.steps, progress.done_steps + steps)
            steps -= stop_step - progress.done_steps
            train_steps(state, batches, progress, stop_step, reporter.after_step)

    def batches_done() -> int:
        return progress.epoch * progress.batches + progress.done_batches

    train(_WARMUP_STEPS)
    for _ in range(session.batches.prefetched_batches):
        next(batches)  # loaded ahead: otherwise slow loading would not show in so few steps
    before = batches_done()
    seconds = timed(lambda: train(_TIMED_STEPS), context.device)
    images_per_second = (batches_done() - before) * state.layout.batch.micro_step_size / seconds
    memory = peak_memory_bytes(context.device)
    if context.is_main:
        with new_profiler() as profiler, record_function(WINDOW):
            train(_PROFILED_STEPS)
            synchronize(context.device)
        _write(session, outputs, profiler, images_per_second, memory)
    else:
        train(_PROFILED_STEPS)
    reporter.close()


def _write(
    session: Session, outputs: RunOutputs, profiler: torch_profile, images_per_second: float, peak_memory_bytes: int
) -> None:
    trace = outputs.folder / TRACE
    profiler.export_chrome_trace(str(trace))
    with gzip.open(trace) as file:
        events = json.load(file)["traceEvents"]
    state, context = session.state, session.state.context
    on_gpu = context.device.type == "cuda"
    devices = Devices(context.world_size, device_name(context.device), state.precision.describe())
    waiting = "" if on_gpu else f"; {describe_waiting()}"
    page = profile_page(
        Profile(
            title=f"{devices}{waiting}",
            model_name=state.config.model.name,
            batch_size=state.config.data.micro_batch,
            device_type=context.device.type,
            is_half_precision=state.precision.dtype != torch.float32,
            has_fast_half=has_fast_half_precision(context.device),
            is_compiled=any(map(is_compiled, state.precision.weights.compute.modules())),
            times=step_times(events, _PROFILED_STEPS, on_gpu),
            ops=_ops(profiler, on_gpu),
            images_per_second=images_per_second,
            model=outputs.reporter.model,
            peak_memory_bytes=peak_memory_bytes,
            communication=state.strategy.communication(state.wrapped),
            data_in_memory=session.plan.train.in_memory,
        )
    )
    atomic_write(outputs.folder / PAGE, f"{page}\n")
    outputs.logger.info(f"{page}\n----- Profile: {outputs.folder / PAGE}, {trace} (open it in ui.perfetto.dev)")


def _ops(profiler: torch_profile, on_gpu: bool) -> list[Op]:
    """The slowest first, by their own time; on a GPU by the time of their kernels."""
    ops = []
    for row in profiler.key_averages():
        if row.device_type == DeviceType.CPU and not row.is_user_annotation:
            microseconds = row.self_device_time_total if on_gpu else row.self_cpu_time_total
            ops.append(Op(row.key, 1e-6 * microseconds / _PROFILED_STEPS, row.count / _PROFILED_STEPS))
    return sorted(ops, key=lambda op: -op.seconds)


class Span(NamedTuple):
    """A time span in microseconds, and its phase."""

    start: float
    stop: float
    phase: str


def step_times(events: list[dict[str, Any]], steps: int, on_gpu: bool) -> StepTimes:
    """Computes the times from the `traceEvents` of torch's Chrome trace, which has the labels `WINDOW` and `LABELLED`.

    GPU work belongs to the phase in which the host launched it, from any thread. Work that overlaps is counted once:
    computation before communication between GPUs, communication before copies to the device. So the times of the
    latter two are those that computation does not hide.
    """
    labels = [_span(event, event["name"]) for event in events if event.get("cat") == "user_annotation"]
    (window,) = (span for span in labels if span.phase == WINDOW)
    phases = sorted(span for span in labels if span.phase in LABELLED)
    gaps = [(window.start, window.stop)]
    gpu_times: dict[str, float] = defaultdict(float)
    if on_gpu:
        work = _gpu_work(events, phases)
        order: dict[str, int] = {Phase.COMMUNICATION: 1, Phase.COPY: 2}  # computation is first
        for place in range(3):
            gaps = _add_covered(gaps, [span for span in work if order.get(span.phase, 0) == place], gpu_times)
    host_times: dict[str, float] = defaultdict(float)
    for start, stop in _add_covered(gaps, phases, host_times):
        host_times[Phase.OTHER] += stop - start
    microseconds = (gpu_times, host_times) if on_gpu else (host_times, {})
    busy, idle = ({name: 1e-6 * time / steps for name, time in part.items() if time} for part in microseconds)
    return StepTimes(busy, idle)


def _span(event: dict[str, Any], phase: str) -> Span:
    return Span(event["ts"], event["ts"] + event["dur"], phase)


def _gpu_work(events: list[dict[str, Any]], phases: list[Span]) -> list[Span]:
    """The GPU's work. A correlation number links it to its launch on the host; launches may precede the trace."""
    launch_times = {
        event["args"]["correlation"]: event["ts"]
        for event in events
        if event.get("cat") in _LAUNCHES and "correlation" in event.get("args", {})
    }
    starts = [span.start for span in phases]

    def phase_of(event: dict[str, Any]) -> str:
        if event["cat"] == "gpu_memcpy" and "HtoD" in event["name"]:
            return Phase.COPY
        if event["name"].startswith("nccl"):
            return Phase.COMMUNICATION
        launched = launch_times.get(event["args"].get("correlation"))
        if launched is None:
            return Phase.OTHER
        index = bisect_right(starts, launched) - 1
        return phases[index].phase if index >= 0 and launched <= phases[index].stop else Phase.OTHER

    return [_span(event, phase_of(event)) for event in events if event.get("cat") in _GPU_WORK]


def _add_covered(
    gaps: list[tuple[float, float]], spans: Iterable[Span], times: dict[str, float]
) -> list[tuple[float, float]]:
    """Adds to `times` the parts of the gaps that the spans cover, by phase; returns the parts that they do not cover.

    The gaps are sorted and do not overlap. Where spans overlap, the one that starts first counts.
    """
    uncovered = []
    pending = deque(sorted(spans))
    for start, stop in gaps:
        while pending and pending[0].start < stop:
            span = pending[0]
            covered_start, covered_stop = max(span.start, start), min(span.stop, stop)
            if covered_start < covered_stop:
                if start < covered_start:
                    uncovered.append((start, covered_start))
                times[span.phase] += covered_stop - covered_start
                start = covered_stop
            if span.stop > stop:
                break  # it may reach into the next gap
            pending.popleft()
        if start < stop:
            uncovered.append((start, stop))
    return uncovered
