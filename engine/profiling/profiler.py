"""`-profile`: trains a few steps; prints the time of each phase, advice and the longest ops, and writes their trace.

In mixed precision it also prints `report_amp`.
"""

import math
import os
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity
from torch.profiler import profile as torch_profile

from configs.schema.train import Horizon
from datasets.batch import Batch
from engine.profiling.amp_report import report_amp
from engine.run.cost import Phase
from engine.run.facts import Devices
from engine.training.outputs import RunOutputs
from engine.training.session import Session
from engine.training.step import NonFiniteGradients, TrainState, train_steps
from utils.device import device_name, peak_memory_bytes, timed
from utils.distributed import call_on_main
from utils.files import atomic_write
from utils.tables import aligned_table, three_digits
from utils.torch_compat import is_compiled

TRACE = "trace.json.gz"
AMP_TABLE = "half_values.csv"
_WARMUP_STEPS = 5
_TIMED_STEPS = 10
_PROFILED_STEPS = 10
_ENDLESS = 10**6  # epochs
_QUIET = "99"  # above all levels of KINETO_LOG_LEVEL, to silence its first line on standard error
_TOP_OPS = 20
_MAX_COLUMN_CHARS = 80


@dataclass(frozen=True)
class Profile:
    """Measurements of a run. Seconds are per step; shares are from 0 to 1.

    step_seconds: with the profiler, which slows a step down. host_seconds, gpu_seconds: by phase, see `phase_seconds`.
    ops: a table of the longest ones. data_wait_share, launch_bound_share: see `TimerTotals`, without the profiler;
    the second is None on a CPU. is_slow_float32: on a GPU that multiplies 16-bit matrices faster.
    """

    step_seconds: float
    host_seconds: dict[str, float]
    gpu_seconds: dict[str, float]
    ops: str
    data_wait_share: float
    launch_bound_share: float | None
    data_in_memory: bool
    is_compiled: bool
    is_slow_float32: bool

    @property
    def on_gpu(self) -> bool:
        return self.launch_bound_share is not None

    def share(self, *phases: str) -> float:
        """Share of these phases in a step: of the GPU's work on a GPU, else of the host."""
        seconds = self.gpu_seconds if self.on_gpu else self.host_seconds
        return sum(seconds[phase] for phase in phases) / self.step_seconds


def advice(profile: Profile) -> list[str]:
    """A sentence for each part of a step whose share exceeds its limit, in the order in which to change them."""
    smaller = "store the images decoded and small (scripts/make_shards.py -size N, -dataset=tar)"
    faster = "raise -batch_size, or try -opts TRAIN.COMPILE=max, which uses CUDA graphs on one GPU"
    faster = faster if profile.is_compiled else "compile the model (-compile) or raise -batch_size"
    slow = "the forward and backward pass in float32, on a GPU with fast 16-bit matrix products"
    fewer = "take fewer steps per epoch, with a larger -batch_size or -accum_iter"
    off = "turn off the augmentations that you need least: DATA.AFFINE_*, TRAIN.MIXUP_ALPHA, TRAIN.CUTMIX_ALPHA"
    wait = profile.data_wait_share
    passes = profile.share(Phase.FORWARD, Phase.BACKWARD)
    parts = (
        (wait * (not profile.data_in_memory), 0.05, f"a step is waiting for data: raise -num_workers, or {smaller}"),
        (profile.launch_bound_share or 0.0, 0.1, f"the steps wait for the host to launch kernels: {faster}"),
        (passes * profile.is_slow_float32, 0.5, f"a step is {slow}: train in mixed precision (-amp)"),
        (profile.share(Phase.OPTIMIZER), 0.1, f"a step is the optimizer: {fewer}"),
        (profile.share(Phase.TRANSFORM), 0.1, f"a step is augmentation on the device: {off}"),
    )
    return [f"{share:.0%} of {text}." for share, limit, text in parts if share > limit]


def profile_text(profile: Profile) -> str:
    """The table of phases, the advice, and the table of ops."""

    def row(name: str, host_seconds: float, *phases: str) -> list[str]:
        times = [_ms(host_seconds)]
        if profile.on_gpu:
            times.append(_ms(sum(profile.gpu_seconds[phase] for phase in phases)))
        return [name, *times, f"{profile.share(*phases):.1%}"]

    rows = [row(phase, profile.host_seconds[phase], phase) for phase in Phase]
    rows.append(row("step, with the profiler", profile.step_seconds, *Phase))
    header = ["phase", "host (ms)", "GPU (ms)", "share"] if profile.on_gpu else ["phase", "host (ms)", "share"]
    passes = f"the forward and backward pass are {profile.share(Phase.FORWARD, Phase.BACKWARD):.0%} of a step"
    sentences = advice(profile) or [f"No bottleneck found: {passes}."]
    return "\n\n".join([aligned_table(header, rows, _MAX_COLUMN_CHARS), "\n".join(sentences), profile.ops])


def _ms(seconds: float) -> str:
    return three_digits(1000 * seconds)


def profile_run(session: Session, outputs: RunOutputs) -> None:
    """Profiles some steps, and reports on AMP with the weights and the loss scale after them.

    The run has as many epochs as the steps take, without evaluations and checkpoints.
    Raises NonFiniteGradients: after the report, which tells more.
    """
    batches = session.batches.iterate(0, 0, _ENDLESS, bad_images=session.bad_images)
    failure: NonFiniteGradients | None = None
    try:
        _profile_steps(session, outputs, batches)
    except NonFiniteGradients as error:
        failure = error
    if session.state.precision.dtype != torch.float32:
        call_on_main(lambda: _write_amp_report(session.state, outputs, next(batches)), session.state.context)
    if failure:
        raise failure


def _write_amp_report(state: TrainState, outputs: RunOutputs, batch: Batch) -> None:
    has_other_ranks = state.config.parallel.sync_bn and state.context.world_size > 1
    if state.strategy.is_sharded or has_other_ranks:
        outputs.logger.info("----- AMP report: none with a sharded model or PARALLEL.SYNC_BN: profile it on one device")
        return
    lines, table = report_amp(state, batch)
    atomic_write(outputs.folder / AMP_TABLE, table)
    text = "\n".join(lines)
    outputs.logger.table(f"----- {text}\nAll ops: {outputs.folder / AMP_TABLE}")


def _profile_steps(session: Session, outputs: RunOutputs, batches: Iterator[Batch]) -> None:
    """Trains some steps on every rank; only the main process is profiled, and prints the figures.

    The speed is measured first, without the profiler, which slows the steps down.
    """
    state = session.state
    context = session.state.context
    reporter = outputs.reporter
    device = context.device
    on_gpu = context.device.type == "cuda"
    activities = [ProfilerActivity.CPU, *[ProfilerActivity.CUDA] * on_gpu]
    if context.is_main:
        os.environ.setdefault("KINETO_LOG_LEVEL", _QUIET)
        with torch_profile(activities=activities):  # the first start is slow: during it workers would load ahead
            pass
    progress = state.new_progress(epoch=0)
    num_steps = _WARMUP_STEPS + _TIMED_STEPS + _PROFILED_STEPS
    reporter.horizon = Horizon(math.ceil(num_steps / state.layout.steps_per_epoch))
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
    totals = state.timer.totals()
    seconds = timed(lambda: train(_TIMED_STEPS), device)
    images_per_second = (batches_done() - before) * state.layout.batch.micro_step_size / seconds
    waits = state.timer.totals().since(totals)
    memory = peak_memory_bytes(device)
    with torch_profile(activities=activities) if context.is_main else nullcontext() as profiler:
        profiled_seconds = timed(lambda: train(_PROFILED_STEPS), device)
    reporter.close()

    def report() -> None:
        assert profiler
        host_seconds, gpu_seconds = phase_seconds(profiler.events(), _PROFILED_STEPS)
        is_float32 = on_gpu and state.precision.dtype == torch.float32
        profile = Profile(
            step_seconds=profiled_seconds / _PROFILED_STEPS,
            host_seconds=host_seconds,
            gpu_seconds=gpu_seconds,
            ops=profiler.key_averages().table(f"self_{'cuda' if on_gpu else 'cpu'}_time_total", _TOP_OPS),
            data_wait_share=waits.data_wait_seconds / seconds,
            launch_bound_share=waits.launch_bound_share,
            data_in_memory=session.plan.train.in_memory,
            is_compiled=any(map(is_compiled, state.precision.weights.compute.modules())),
            is_slow_float32=is_float32 and torch.cuda.get_device_capability(device) >= (7, 0),
        )
        figures = [
            f"images/s: {three_digits(images_per_second)}",
            *reporter.model.rates(images_per_second),
            f"memory: {memory / 1e9:.2f} GB",
            f"data wait: {profile.data_wait_share:.1%}",
        ]
        if profile.launch_bound_share is not None:
            figures.append(f"launch-bound steps: {profile.launch_bound_share:.0%}")
        devices = Devices(context.world_size, device_name(device), state.precision.describe())
        title = f"Profile of {state.config.model.name}, batch size {state.config.data.micro_batch}: {devices}"
        outputs.logger.table(f"----- {title}\n{', '.join(figures)}\n\n{profile_text(profile)}\n")
        profiler.export_chrome_trace(str(outputs.folder / TRACE))
        outputs.logger.info(f"----- Trace: {outputs.folder / TRACE} (open it in ui.perfetto.dev)")

    call_on_main(report, context)


def phase_seconds(events: Iterable[Any], steps: int) -> tuple[dict[str, float], dict[str, float]]:
    """Seconds per step of the host in each phase, and of the GPU's work by the phase in which the host launched it.

    events: `torch.profiler.profile.events()`, sorted by start. The backward pass launches from a thread of its own.
    """
    host: dict[str, float] = dict.fromkeys(Phase, 0.0)
    gpu = host.copy()
    phase = Phase.LOGGING
    stop = -math.inf  # the current phase and its end, in microseconds
    for event in (event for event in events if event.device_type == DeviceType.CPU):
        span = event.time_range
        if event.is_user_annotation and event.name in host:
            phase = Phase(event.name)
            stop = span.end
            host[phase] += 1e-6 * (span.end - span.start) / steps
        if span.start <= stop:
            gpu[phase] += 1e-6 * sum(kernel.duration for kernel in event.kernels) / steps
    return host, gpu
