"""Log lines: they start as in PaddleViT, omit uninformative values, and have at most 120 columns."""

from dataclasses import replace

from engine.telemetry.step_report import StepReport, log_lines
from utils.metrics import Metrics

TIME_STAMP = "2026-01-31 23:59:59,999 "
REPORT = StepReport(
    epoch=1,
    num_epochs=300,
    epoch_step=21,
    steps_per_epoch=1251,
    step=21,
    lr=0.000095,
    latest=Metrics(6.9077, 0.0, 0.0, 20480, 0, 1.2345),
    average=Metrics(6.9077, 0.1, 0.5, 20480, 0, 1.2345),
    images_per_second=2850.4,
    data_wait_share=0.004,
    tflops_per_second=307.2,
    model_flops_utilization=0.3105,
    is_scaled=False,
    loss_scale=1.0,
    skipped_steps=0,
    peak_memory_bytes=20_100_000_000,
)


def test_default_lines():
    assert log_lines(REPORT) == (
        "Epoch[001/300], Step[0020/1251], Lr: 0.000095, Loss: 6.9077 (6.9077), Avg Acc: 0.10%",
        "  grad norm: 1.23, img/s: 2850, TFLOP/s: 307, MFU: 31.1%, mem: 20.1G",
    )


def test_optional_values_appear_when_informative():
    _, line = log_lines(
        replace(
            REPORT,
            images_per_second=64.54,
            data_wait_share=0.03,
            model_flops_utilization=None,
            is_scaled=True,
            skipped_steps=2,
        )
    )
    assert line == "  grad norm: 1.23, img/s: 64.5, wait: 3%, TFLOP/s: 307, loss scale: 1, skipped: 2, mem: 20.1G"


def test_no_loss_without_samples():
    empty = Metrics(0.0, 0.0, 0.0, 0, 20480)
    progress, line = log_lines(replace(REPORT, latest=empty, average=empty, skipped_steps=21))
    assert progress.endswith("Loss: - (-), Avg Acc: -") and line.startswith("  grad norm: -, img/s: 2850")
    assert "nan" not in progress + line


def test_longest_lines_have_at_most_120_columns():
    widest = Metrics(16.9077, 100.0, 100.0, 20480, 0, 0.0012345)
    longest = replace(
        REPORT,
        epoch=1000,
        num_epochs=1000,
        epoch_step=12510,
        steps_per_epoch=12510,
        latest=widest,
        average=widest,
        images_per_second=123456.7,
        data_wait_share=0.99,
        tflops_per_second=12345.6,
        is_scaled=True,
        loss_scale=65536.0,
        skipped_steps=1234,
        peak_memory_bytes=139_900_000_000,
    )
    progress, line = log_lines(longest)
    assert len(progress) <= 120 - len(TIME_STAMP) and len(line) <= 120, (len(progress), len(line))
    assert all(len(TIME_STAMP) + len(line) <= 120 for line in log_lines(REPORT))
