"""Log lines: they start as in PaddleViT, show unusual values only, and have at most 120 columns."""

from dataclasses import replace

import pytest

from engine.run.step_report import StepReport
from utils.metrics import Metrics

REPORT = StepReport(
    epoch=1,
    num_epochs=300,
    epoch_step=21,
    steps_per_epoch=1251,
    step=21,
    lr=0.000095,
    latest=Metrics({"loss": 6.9077, "top1": 0.0}, 20480, 0, 1.2345),
    average=Metrics({"loss": 6.9077, "top1": 0.1}, 20480, 0, 1.2345),
    images_per_second=2850.4,
    data_wait_share=0.004,
    tflops_per_second=307.2,
    model_flops_utilization=0.3105,
    is_scaled=False,
    loss_scale=1.0,
    skipped_steps=0,
    peak_memory_bytes=20_100_000_000,
    seconds_left=36_180.0,
)
PADDLEVIT = "Epoch[001/300], Step[0020/1251], Lr: 0.000095, Loss: 6.9077 (6.9077), Avg Acc: 0.10%"


def test_a_usual_report_is_one_line():
    assert REPORT.log_lines(REPORT) == [f"{PADDLEVIT}, 2850 img/s, 20.1G, left 10h03m"]


def test_a_loss_scale_appears_in_the_first_report_and_when_it_changes():
    scaled = replace(REPORT, is_scaled=True, loss_scale=65536.0)
    halved = replace(scaled, loss_scale=32768.0)
    assert scaled.log_lines()[1:] == ["  loss scale 65536"]
    assert scaled.log_lines(scaled) == REPORT.log_lines(REPORT)
    assert halved.log_lines(scaled)[1:] == ["  loss scale 32768"]


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({"data_wait_share": 0.049}, ""),
        ({"data_wait_share": 0.05}, "wait 5%"),
        ({"latest": replace(REPORT.latest, grad_norm=2.4)}, ""),
        ({"latest": replace(REPORT.latest, grad_norm=24.6)}, "grad norm 24.6 (mean 1.23)"),
        ({"skipped_steps": 7}, ""),  # before the last report
        ({"skipped_steps": 7, "latest": replace(REPORT.latest, skipped_samples=128)}, "skipped steps 7"),
    ],
)
def test_a_value_appears_if_it_is_unusual(changes, shown):
    text, usual = ", ".join(replace(REPORT, **changes).log_lines(REPORT)), REPORT.log_lines(REPORT)
    assert shown in text if shown else text == usual[0]


def test_longest_lines_have_at_most_120_columns():
    widest = Metrics({"loss": 16.9077, "top1": 100.0}, 20480, 128, 0.0012345)
    longest = replace(
        REPORT,
        epoch=1000,
        num_epochs=1000,
        epoch_step=12510,
        steps_per_epoch=12510,
        latest=replace(widest, grad_norm=1234567.8),
        average=widest,
        images_per_second=123456.7,
        data_wait_share=0.99,
        is_scaled=True,
        loss_scale=65536.0,
        skipped_steps=1234,
        peak_memory_bytes=139_900_000_000,
        seconds_left=999 * 86_400,
    )
    lines = longest.log_lines()
    assert len(lines) == 2 and max(map(len, lines)) <= 120
    assert "wait 99%" in "".join(lines) and lines[1].endswith("skipped steps 1234")
