"""programs.py reads the logs of programs correctly, times their turns, and ends them with their child processes."""

import os
import sys
import time
from pathlib import Path

import pytest

from engine.run.step_report import StepReport, log_lines
from scripts.benchmarks.programs import OurLog, PlainLog, Program, ProgramError, Reading, TimmLog, Window
from utils.metrics import Metrics

STEP = "Epoch[{epoch:03d}/300], Step[{step:04d}/0040], Lr: 0.000001, Loss: 6.9312 (6.9312), Avg Acc: 0.00%, {rest}"
TIMM = (
    "Train: 0 [{step:>4d}/1252 (  1%)]  Loss: {loss} (6.96)  Time: 0.480s,   66.67/s  (0.600s,   {rate}/s)  "
    "LR: 1.000e-05  Data: 0.010 ({data})"
)


def test_our_lines_have_the_speed_since_the_report_before():
    log = OurLog(images_per_step=32)
    assert log.read("----- Data: 1280 training images") is None
    assert log.read(STEP.format(epoch=1, step=0, rest="16.0 img/s, 2.27G, wait 50%")) == Reading(1, 2.0, 1.0, 2.27e9)
    assert log.read("----- Epoch[001/300], epoch time: 1m00s, 24.0 img/s, time left: 10h03m") is None
    reading = log.read(STEP.format(epoch=2, step=0, rest="32.0 img/s, 2.27G, wait 10%, left 10h03m"))
    assert reading == Reading(41, 42.0, 5.0, 2.27e9)
    assert log.read("  grad norm 24.6 (mean 1.23), skipped steps 7") is None


@pytest.mark.parametrize("rest", ["16.0 img/s, 2.27G", "16.0 img/s, 2.27G, left 12d03h"])
def test_our_lines_without_a_wait_waited_for_nothing(rest):
    assert OurLog(images_per_step=32).read(STEP.format(epoch=1, step=0, rest=rest)) == Reading(1, 2.0, 0.0, 2.27e9)


def test_a_speed_that_is_rounded_to_zero_can_be_read():
    reading = OurLog(images_per_step=2).read(STEP.format(epoch=1, step=0, rest="0.0 img/s, 2.27G"))
    assert reading.steps == 1 and reading.seconds > 0


def test_our_log_is_read_as_the_reporter_writes_it():
    metrics = Metrics(6.9312, 0.0, 0.0, 32, 0, 1.23)
    report = StepReport(
        epoch=1, num_epochs=300, epoch_step=1, steps_per_epoch=40, step=1, lr=1e-6, latest=metrics, average=metrics,
        images_per_second=16.0, data_wait_share=0.5, tflops_per_second=0.24, model_flops_utilization=None,
        is_scaled=True, loss_scale=65536.0, skipped_steps=1, peak_memory_bytes=2_270_000_000,
        seconds_left=36_180.0,
    )  # fmt: skip
    log = OurLog(images_per_step=32)
    assert [log.read(line) for line in log_lines(report)] == [Reading(1, 2.0, 1.0, 2.27e9), None]


def test_timms_lines_have_averages_over_the_epoch():
    log = TimmLog(images_per_step=32)
    assert log.read("Model vit_tiny_patch16_224 created, param count:5717416") is None
    first = log.read(TIMM.format(step=0, loss="6.93", rate="16.00", data="1.000"))
    later = log.read(TIMM.format(step=8, loss="nan", rate="  48.00", data="0.200"))
    assert first == Reading(1, 2.0, 1.0)
    assert later == Reading(9, 6.0, pytest.approx(1.8))


def test_a_plain_line_is_read_as_written():
    assert PlainLog().read(PlainLog.line(8, 4.125, 731_000_000)) == Reading(8, 4.125, 0.0, 731e6)


def prints(*lines: str, then: str = "") -> list[str]:
    """The command of a program that prints a line every 50 ms."""
    code = "".join(f"print({line!r}, flush=True); time.sleep(0.05)\n" for line in lines)
    return [sys.executable, "-c", f"import sys, time\n{code}{then}"]


def first_turn(
    command: list[str], environment: dict[str, str] | None = None, warmup=1, steps=1, limit_seconds=30.0
) -> tuple[Window, list[str]]:
    with Program(command, environment or {}, PlainLog()) as program:
        return program.turn(warmup, steps, limit_seconds), program.lines


def test_a_program_is_paused_between_its_turns(tmp_path):
    file = tmp_path / "count"
    text = f"""
import time
for step in range(1, 10000):
    open({str(file)!r}, "w").write(str(step))
    print(f"step {{step}}, {{step / 100}} s, 0 GB", flush=True)
    time.sleep(0.01)
"""
    with Program([sys.executable, "-c", text], {}, PlainLog()) as program:
        one = program.turn(warmup=3, steps=5, limit_seconds=30)
        assert (one.first.steps, one.last.steps) == (3, 8)
        time.sleep(0.1)
        paused = file.read_text()
        time.sleep(0.2)
        assert file.read_text() == paused
        other = program.turn(warmup=3, steps=5, limit_seconds=30)
        assert (other.steps, other.first.steps > one.last.steps) == (5, True)


def test_steps_after_the_warmup_are_timed_by_the_arrival_of_their_lines():
    steps = [PlainLog.line(step, step / 10, 0) for step in (1, 5, 9, 13)]
    endless = "time.sleep(100)"
    window, lines = first_turn(prints(*steps, then=endless), warmup=4, steps=8)
    assert (window.steps, window.first.steps, window.last.steps, lines) == (8, 5, 13, steps)
    assert window.own_seconds == pytest.approx(0.8)
    assert 0.09 < window.seconds < 30


LOADING = """
import itertools, os, sys, time
read, write = os.pipe()
if os.fork() == 0:
    os.write(write, bytes(40))
    while os.getppid() != 1:
        time.sleep(0.05)
        os.write(write, bytes(1))
for step in itertools.count(1):
    os.read(read, 1)
    print(f"step {step}, {step} s, 0 GB", flush=True)
    time.sleep(0.01)
"""


def test_compile_workers_are_not_paused_with_the_loading_workers():
    children = "".join(
        f"subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(100)', {name!r}])\n"
        for name in ("loading", "torch/_inductor/compile_worker/__main__.py")
    )
    steps = "for step in range(1, 1000): print(f'step {step}, {step} s, 0 GB', flush=True); time.sleep(0.01)"
    with Program(prints(then=f"import subprocess\n{children}{steps}"), {}, PlainLog()) as program:
        program.turn(warmup=5, steps=5, limit_seconds=30)
        commands = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in program._loading_processes()]
    assert [b"loading" in command for command in commands] == [True]


@pytest.mark.parametrize("prefetches", [True, False])
def test_prefetched_batches_are_used_up_before_a_turn_is_timed(prefetches):
    with Program([sys.executable, "-c", LOADING], {}, PlainLog(), prefetches) as program:
        window = program.turn(warmup=2, steps=5, limit_seconds=30)
    assert (window.first.steps > 40, window.steps) == (prefetches, 5)


def test_child_processes_end_with_the_program(tmp_path):
    child = f"import os, time; open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); time.sleep(100)"
    then = f"import os, subprocess\nsubprocess.Popen([sys.executable, '-c', {child!r}])\n" + (
        f"while not os.path.exists({str(tmp_path / 'pid')!r}): time.sleep(0.01)\n"
        f"time.sleep(0.05)\nprint({PlainLog.line(1, 1, 0)!r})\nprint({PlainLog.line(2, 2, 0)!r}, flush=True)\n"
        "time.sleep(100)"
    )
    first_turn(prints(then=then))
    pid = int((tmp_path / "pid").read_text())
    for _ in range(100):
        if has_ended(pid):
            return
        time.sleep(0.05)
    pytest.fail("the child process is still running")


def has_ended(pid: int) -> bool:
    """The process does not exist, or is a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.mark.parametrize(
    ("command", "limit_seconds", "message"),
    [
        (prints("error: no such file", then="sys.exit(1)"), 30, "^no such file$"),
        (prints("loading", then="time.sleep(100)"), 0.5, "not done within 0.5 s; last line: loading"),
        ([sys.executable, "-c", ""], 30, "no output"),
    ],
)
def test_a_program_that_fails_gives_its_reason(command, limit_seconds, message):
    with pytest.raises(ProgramError, match=message):
        first_turn(command, limit_seconds=limit_seconds)


def test_the_environment_is_for_the_program_only():
    command = [sys.executable, "-c", "import os; print('step 1, 1.0 s, 0.0 GB'); print(os.environ['ADDED'])"]
    with pytest.raises(ProgramError, match="added for it"):
        first_turn(command, {"ADDED": "added for it"})
    assert "ADDED" not in os.environ
