"""`-profile`: trains a few steps, and writes their trace and a page with the time of each phase."""

import gzip
import json
import math
import os
from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, record_function

from datasets.batch import Batch
from engine.profiling.page import Op, Profile, StepTimes, has_fast_half_precision, profile_page
from engine.run.facts import Devices
from engine.run.reporter import Reporter
from engine.run.step_timer import LABELLED, Phase
from engine.training.session import Record, Session
from engine.training.step import TrainState, train_steps
from utils.device import device_name, peak_memory_bytes, synchronize, timed
from utils.files import atomic_write
from utils.system import describe_waiting
from utils.torch_compat import is_compiled

TRACE, PAGE = "trace.json.gz", "profile.md"
_WARMUP_STEPS, _TIMED_STEPS, _PROFILED_STEPS = 5, 10, 10
_ENDLESS = 10**6  # epochs
_QUIET = "99"  # above all levels of KINETO_LOG_LEVEL, to silence its first line on standard error


def profile_run(session: Session, record: Record) -> None:
    """Trains some steps on every rank; only the main process is profiled; it writes and prints the page.

    A small data set is repeated. The speed is measured first, without the profiler, which slows the steps down.
    """
    context = session.state.context
    if context.is_main:
        os.environ.setdefault("KINETO_LOG_LEVEL", _QUIET)
        with _profiler(context.device):  # the first start is slow: do it now, or workers would load ahead during it
            pass
    batches = session.batches.iterate(0, 0, _ENDLESS, bad_images=session.bad_images)
    training = _Training(session.state, record.reporter, batches)
    training.train(_WARMUP_STEPS)
    for _ in range(session.batches.prefetched_batches):
        next(batches)  # loaded ahead: otherwise slow loading would not show in so few steps
    images_before = training.images
    seconds = timed(lambda: training.train(_TIMED_STEPS), context.device)
    images_per_second = (training.images - images_before) / seconds
    memory = peak_memory_bytes(context.device)
    if context.is_main:
        with _profiler(context.device) as profiler, record_function(WINDOW):
            training.train(_PROFILED_STEPS)
            synchronize(context.device)
        _write(session, record, profiler, images_per_second, memory)
    else:
        training.train(_PROFILED_STEPS)
    record.reporter.close()


class _Training:
    """Trains from the start of a run, through as many epochs as the steps take, without evaluations and checkpoints."""

    def __init__(self, state: TrainState, reporter: Reporter, batches: Iterator[Batch]) -> None:
        self.state, self.reporter, self.batches = state, reporter, batches
        self.progress = state.new_progress(epoch=0)
        steps = _WARMUP_STEPS + _TIMED_STEPS + _PROFILED_STEPS
        reporter.num_epochs = math.ceil(steps / state.layout.steps_per_epoch)
        reporter.start(epochs_done=0, steps_done=0)

    @property
    def images(self) -> int:
        """Trained on so far, over all ranks."""
        progress, layout = self.progress, self.state.layout
        batches = progress.epoch * progress.batches + progress.done_batches
        return batches * layout.batch.micro_step_size

    def train(self, steps: int) -> None:
        while steps:
            if self.progress.done_steps == self.progress.steps:
                self.progress = self.state.new_progress(self.progress.epoch + 1)
            progress = self.progress
            if progress.done_steps == 0:
                self.reporter.start_epoch(progress)
            stop_step = min(progress.steps, progress.done_steps + steps)
            steps -= stop_step - progress.done_steps
            train_steps(self.state, self.batches, progress, stop_step, self.reporter.after_step)


def _profiler(device: torch.device) -> profile:
    on_gpu = [ProfilerActivity.CUDA] if device.type == "cuda" else []
    return profile(activities=[ProfilerActivity.CPU, *on_gpu])


def _write(
    session: Session, record: Record, profiler: profile, images_per_second: float, peak_memory_bytes: int
) -> None:
    trace = record.folder / TRACE
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
            batch_size=state.config.data.batch_size,
            device_type=context.device.type,
            is_half_precision=state.precision.dtype != torch.float32,
            has_fast_half=has_fast_half_precision(context.device),
            is_compiled=any(map(is_compiled, state.precision.weights.compute.modules())),
            has_fused_optimizer=bool(state.optimizer.defaults.get("fused")),
            times=step_times(events, _PROFILED_STEPS, on_gpu),
            ops=_ops(profiler, on_gpu),
            images_per_second=images_per_second,
            model=record.reporter.model,
            peak_memory_bytes=peak_memory_bytes,
            communication=state.strategy.communication(state.wrapped),
            data_in_memory=session.plan.train.in_memory,
        )
    )
    atomic_write(record.folder / PAGE, f"{page}\n")
    record.logger.info(f"{page}\n----- Profile: {record.folder / PAGE}, {trace} (open it in ui.perfetto.dev)")


def _ops(profiler: profile, on_gpu: bool) -> list[Op]:
    """The slowest first, by their own time; on a GPU by the time of their kernels."""
    ops = []
    for row in profiler.key_averages():
        if row.device_type == DeviceType.CPU and not row.is_user_annotation:
            microseconds = row.self_device_time_total if on_gpu else row.self_cpu_time_total
            ops.append(Op(row.key, 1e-6 * microseconds / _PROFILED_STEPS, row.count / _PROFILED_STEPS))
    return sorted(ops, key=lambda op: -op.seconds)


WINDOW = "profiled steps"  # label around all profiled steps
_LAUNCHES = ("cuda_runtime", "cuda_driver")  # categories of events in the trace
_GPU_WORK = ("kernel", "gpu_memcpy", "gpu_memset")


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
