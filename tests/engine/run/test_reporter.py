"""Reports of a run in the log, CSV tables and TensorBoard; skipped steps; the form of the log lines."""

import math
import re
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import torch
from conftest import each_value, log_of, refused, values_of
from pytest import approx
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from configs.schema import Amp
from configs.schema.train import Horizon
from configs.yaml_io import parse_value
from engine.precision.policy import Precision
from engine.progress import BatchSums, EpochProgress, Metrics, MetricSums, TrainClock
from engine.run.cost import TimerTotals, timer_of
from engine.run.facts import Model
from engine.run.log import RunLogger
from engine.run.loggers import LoggerGroup
from engine.run.record import read_metrics
from engine.run.reporter import Reporter, step_line
from utils.tables import read_csv_rows

BATCH_SIZE = 4
STEPS = 3


class SimulatedRun:
    """A single-process run without a model: the caller gives the loss and gradient norm of each step."""

    def __init__(self, folder, context, report_freq=1):
        self.folder = folder
        self.context = context
        logger = RunLogger(context)
        logger.open(folder)
        logger.record.open(folder)
        self.reporter = Reporter(
            context, logger, Precision(Amp(), context.device).scaler, lambda: Model(1, 10**9, None),
            timer_of(context.device),
            clock=TrainClock(0.0, seconds=1.0), horizon=Horizon(2),
            report_freq=report_freq, images_per_epoch=STEPS * BATCH_SIZE,
            loggers=LoggerGroup([], "", {}, logger)
        )  # fmt: skip
        self.reporter.start(0, 0)
        self.before_report = lambda: None

    def epoch(self, *steps):
        """steps: loss of each sample, gradient norm, whether the step is skipped."""
        progress = EpochProgress(0, STEPS, STEPS, MetricSums(self.context.device))
        self.reporter.start_epoch(progress)
        for loss, grad_norm, skipped in steps:
            targets = torch.zeros(BATCH_SIZE, dtype=torch.int64)
            batch = BatchSums.of(torch.tensor(BATCH_SIZE * loss), torch.eye(10)[targets], targets, BATCH_SIZE)
            progress.sums.add_step(batch, torch.tensor(grad_norm), torch.tensor(skipped))
            progress.done_steps += 1
            self.before_report()
            self.reporter.after_step(progress)
        self.reporter.after_epoch(progress, ends=False)
        self.reporter.close()

    def rows(self, name):
        return read_csv_rows(self.folder / name)

    @property
    def log(self):
        return log_of(self.folder)


def scalars(folder, name: str) -> dict[int, float]:
    events = EventAccumulator(str(folder / "details")).Reload()
    return {event.step: event.value for event in events.Scalars(name)}


def test_a_skipped_step_does_not_count_in_the_loss_and_the_gradient_norm(tmp_path, cpu):
    run = SimulatedRun(tmp_path, cpu, report_freq=2)
    run.epoch((2.0, 1.0, False), (math.nan, math.inf, True), (3.0, 2.5, False))
    columns = ("step", "grad_norm", "loss", "top1", "top5")
    rows = [[row.get(name) for name in columns] for row in read_metrics(tmp_path)[0] if row["kind"] == "report"]
    assert rows == values_of("1 | 1 | 2 | 100 | 100\n2 | | | |\n3 | 2.5 | 3 | 100 | 100")
    (epoch,) = run.rows("metrics.csv")
    known = {"grad_norm": "1.75", "train_loss": "2.5", "train_top1": "100.0", "images_in_skipped_steps": "4"}
    assert epoch.items() >= (known | {"skipped_images": "0"}).items()
    assert "nan" not in run.log
    assert scalars(tmp_path, "train/loss") == {1: 2.0, 3: 3.0}
    assert all(memory > 1e8 for memory in scalars(tmp_path, "train/peak_memory_bytes").values())


def test_an_epoch_of_skipped_steps_has_no_loss(tmp_path, cpu):
    run = SimulatedRun(tmp_path, cpu)
    run.epoch(*[(math.nan, math.nan, True)] * STEPS)
    (epoch,) = run.rows("metrics.csv")
    assert [epoch[name] for name in ("train_loss", "train_top1", "grad_norm")] == ["", "", ""]
    assert "nan" not in run.log


def test_an_epoch_without_readable_images_is_an_error(tmp_path, cpu):
    run = SimulatedRun(tmp_path, cpu)
    run.reporter.images_per_epoch = BATCH_SIZE
    run.epoch(*[(1.0, 1.0, False)] * STEPS)  # more images than expected, as after a resume with another batch size
    assert run.rows("metrics.csv")[0]["skipped_images"] == "0"
    progress = EpochProgress(1, 1, 1, MetricSums(cpu.device), done_steps=0)
    run.reporter.start_epoch(progress)
    progress.done_steps = 1
    with refused(r"no training image of epoch 2 can be read; bad_images_\*\.csv in"):
        run.reporter.after_step(progress)


def test_waits_of_the_gpu(tmp_path, cpu, monkeypatch):
    """In each second there are four steps; the GPU waits 0.2 s for data, and in three steps for the host."""
    run = SimulatedRun(tmp_path, cpu)
    now = 0

    def pass_a_second():
        nonlocal now
        now += 1

    run.before_report = pass_a_second
    monkeypatch.setattr("engine.run.reporter.time.perf_counter", lambda: now)
    monkeypatch.setattr(run.reporter.timer, "totals", lambda: TimerTotals(0.2 * now, 0.0, 4 * now, 3 * now))
    for _ in range(2):
        run.epoch(*[(1.0, 1.0, False)] * STEPS)
        figures = [row for row in read_metrics(tmp_path)[0] if row["kind"] == "report"][-1]
        assert figures["data_wait_share"] == approx(0.2)
        assert figures["launch_bound_share"] == 0.75
    assert re.findall(r"time left: (\S+)", run.log)[0] == "3.0s"  # of the second epoch
    for row in run.rows("metrics.csv"):
        assert (row["data_wait_share"], row["launch_bound_share"]) == ("0.2", "0.75")


FIGURES = parse_value("""
{lr: 0.000095, images_per_second: 2850.4, data_wait_share: 0.004, tflops_per_second: 307.2,
model_flops_utilization: 0.3105, loss_scale: 65536.0, skipped_steps: 0, peak_memory_bytes: 20100000000,
launch_bound_share: null}
""")
LATEST = Metrics({"loss": 6.9077, "top1": 0.0}, 20480, 0, 1.2345)
PADDLEVIT = "Epoch[001/300], Step[0020/1251], Lr: 0.000095, Loss: 6.9077 (6.9077), Avg Acc: 0.10%"


def line(cpu, latest=LATEST, shows_scale=False, **figures) -> str:
    progress = EpochProgress(0, 1251, 1251, MetricSums(cpu.device), done_steps=21, lr=0.000095)
    average = replace(LATEST, values={"loss": 6.9077, "top1": 0.1})
    return step_line(progress, 300, latest, average, FIGURES | figures, 36_180.0, shows_scale)


def test_a_usual_report_is_one_line(cpu):
    assert line(cpu) == f"{PADDLEVIT}, 2850 img/s, 20.1G, left 10h03m"


def test_a_loss_scale_appears_in_the_first_report_and_when_it_changes(tmp_path, cpu):
    assert line(cpu, shows_scale=True) == f"{line(cpu)}, loss scale 65536"
    run = SimulatedRun(tmp_path, cpu)
    scales = iter((4.0, 4.0, 2.0))
    run.reporter.scaler = scaler = SimpleNamespace(dynamic=True, skipped=0)

    def next_scale():
        scaler.get_scale = partial(float, next(scales))

    run.before_report = next_scale
    run.epoch(*[(1.0, 1.0, False)] * STEPS)
    assert re.findall(r"Step\[0*(\d)/(?:.*loss scale (\d))?", run.log) == [("0", "4"), ("1", ""), ("2", "2")]


UNUSUAL = """
figures | latest | shown
{data_wait_share: 0.049} | {} |
{data_wait_share: 0.05} | {} | wait 5%
{} | {grad_norm: 2.4} |
{} | {grad_norm: 24.6} | grad norm 24.6 (mean 1.23)
{skipped_steps: 7} | {} |   # before the last report
{skipped_steps: 7} | {skipped_samples: 128} | skipped steps 7
"""


@each_value(UNUSUAL)
def test_a_value_appears_if_it_is_unusual(cpu, figures, latest, shown):
    text = line(cpu, replace(LATEST, **latest), **figures)
    assert shown in text if shown else text == line(cpu)
