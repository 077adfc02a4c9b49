"""`-profile`: trains a few steps, and writes their trace and a page with the time of each phase."""

import gzip
import json
import math
import os
from collections.abc import Iterator

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, record_function

from datasets.batch import Batch
from engine.profiling.page import Op, Profile, has_fast_half_precision, profile_page
from engine.profiling.step_times import WINDOW, step_times
from engine.run.facts import Devices
from engine.run.reporter import Reporter
from engine.training.record import Record
from engine.training.session import Session
from engine.training.step import TrainState, train_steps
from utils.device import device_name, peak_memory_bytes, synchronize, timed
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
            data_in_memory=session.batches.in_memory,
        )
    )
    (record.folder / PAGE).write_text(f"{page}\n")
    record.logger.info(f"{page}\n----- Profile: {record.folder / PAGE}, {trace} (open it in ui.perfetto.dev)")


def _ops(profiler: profile, on_gpu: bool) -> list[Op]:
    """The slowest first, by their own time; on a GPU by the time of their kernels."""
    ops = []
    for row in profiler.key_averages():
        if row.device_type == DeviceType.CPU and not row.is_user_annotation:
            microseconds = row.self_device_time_total if on_gpu else row.self_cpu_time_total
            ops.append(Op(row.key, 1e-6 * microseconds / _PROFILED_STEPS, row.count / _PROFILED_STEPS))
    return sorted(ops, key=lambda op: -op.seconds)
