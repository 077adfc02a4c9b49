"""`-profile`: trains a few steps, writes their trace and a page that says where their time goes."""

import gzip
import json
import os
from collections.abc import Iterator

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, record_function

from datasets.batch import Batch
from datasets.loading.loader import num_workers
from engine.profiling.advice import Op, Profile
from engine.profiling.page import page_of
from engine.profiling.step_times import WINDOW, step_times
from engine.telemetry.reporter import peak_memory_bytes
from engine.training.trainer import Trainer
from utils.device import device_name, synchronize, timed
from utils.status import RunStatus

TRACE, PAGE = "trace.json.gz", "profile.md"
_WARMUP_STEPS, _TIMED_STEPS, _PROFILED_STEPS = 5, 10, 10
_READ_AHEAD = 2  # batches of each loading worker: torch's own choice
_QUIET = "99"  # above all levels of KINETO_LOG_LEVEL: its first line on standard error says that it starts


def profile_run(trainer: Trainer, status: RunStatus) -> None:
    """Trains some steps on every rank; the main process, which alone is profiled, writes the page and prints it.

    A data set of fewer steps is gone through again and again. First the steps are timed without the profiler, which
    slows them down.
    """
    context = trainer.context
    trainer.open(status)
    if context.is_main:
        os.environ.setdefault("KINETO_LOG_LEVEL", _QUIET)
        with _profiler(context.device):  # its first start takes long; later, loading workers would catch up meanwhile
            pass
    batches = trainer.batches(num_epochs=10**6)
    trainer.train_steps(batches, _WARMUP_STEPS)
    _use_up_what_was_read_ahead(trainer, batches)
    images_before = trainer.images
    seconds = timed(lambda: trainer.train_steps(batches, _TIMED_STEPS), context.device)
    images_per_second = (trainer.images - images_before) / seconds
    memory = peak_memory_bytes(context.device)
    if context.is_main:
        with _profiler(context.device) as profiler, record_function(WINDOW):
            trainer.train_steps(batches, _PROFILED_STEPS)
            synchronize(context.device)
        _write(trainer, profiler, images_per_second, memory)
    else:
        trainer.train_steps(batches, _PROFILED_STEPS)
    trainer.reporter.close()


def _profiler(device: torch.device) -> profile:
    on_gpu = [ProfilerActivity.CUDA] if device.type == "cuda" else []
    return profile(activities=[ProfilerActivity.CPU, *on_gpu])


def _use_up_what_was_read_ahead(trainer: Trainer, batches: Iterator[Batch]) -> None:
    """Else loading that is too slow would not show in so few steps."""
    workers = num_workers(trainer.train_samples, trainer.config.data, trainer.context)
    for _ in range(_READ_AHEAD * workers):
        next(batches)


def _write(trainer: Trainer, profiler: profile, images_per_second: float, peak_memory_bytes: int) -> None:
    trace = trainer.folder / TRACE
    profiler.export_chrome_trace(str(trace))
    with gzip.open(trace) as file:
        events = json.load(file)["traceEvents"]
    learner, context = trainer.learner, trainer.context
    on_gpu = context.device.type == "cuda"
    page = page_of(
        Profile(
            config=trainer.config,
            title=f"{context.world_size} process(es), {device_name(context.device)}, {learner.precision.describe()}",
            device_type=context.device.type,
            is_compiled=any(module._compiled_call_impl for module in learner.weights.computing.modules()),
            has_fused_optimizer=bool(learner.optimizer.defaults.get("fused")),
            times=step_times(events, _PROFILED_STEPS, on_gpu),
            ops=_ops(profiler, on_gpu),
            images_per_second=images_per_second,
            gauge=trainer.reporter.gauge,
            peak_memory_bytes=peak_memory_bytes,
        )
    )
    (trainer.folder / PAGE).write_text(f"{page}\n")
    trainer.logger.info(f"{page}\n----- Profile: {trainer.folder / PAGE}, {trace} (open it in ui.perfetto.dev)")


def _ops(profiler: profile, on_gpu: bool) -> list[Op]:
    """The slowest first, by the time on the GPU, if there is one, of what they launched themselves."""
    ops = []
    for row in profiler.key_averages():
        if row.device_type == DeviceType.CPU and not row.is_user_annotation:
            microseconds = row.self_device_time_total if on_gpu else row.self_cpu_time_total
            ops.append(Op(row.key, 1e-6 * microseconds / _PROFILED_STEPS, row.count / _PROFILED_STEPS))
    return sorted(ops, key=lambda op: -op.seconds)
