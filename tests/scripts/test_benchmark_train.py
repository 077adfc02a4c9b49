"""benchmark_train.py and programs.py: logs, turns, command lines. No test here asserts a time."""

import json
import os
import sys
import time
from pathlib import Path

import pytest
from conftest import TINY_VIT

from configs.command_line import parse_command_line
from engine.run.reporter import StepReport
from scripts.benchmarks import benchmark_train
from scripts.benchmarks.benchmark_train import DEFAULTS, make_images
from scripts.benchmarks.programs import BARE, OURS, Program, build_program, read_line, run_turn
from scripts.flags import split_flags
from utils.metrics import Metrics
from utils.system import read_stat

TINY = ["-batch_size=4", "-num_workers=0", "-opts", *TINY_VIT, "MODEL.NAME=vit_tiny_patch16_224"]

# Prints lines as timm's train.py does.
TIMM = """
import time
for step in range(0, 10000, 2):
    print(f"Train: 0 [{step:>4d}/9 (  1%)]  Loss: 2 (2)  Time: 0.020s,  200.00/s  (0.020s,  200.00/s)"
          "  LR: 1.0e-05  Data: 0.005 (0.005)", flush=True)
    time.sleep(0.02)
"""
STEPS = """
import itertools, time
for step in itertools.count(1):
    print(f"bare loop, step {step}, 1G", flush=True)
    time.sleep(0.01)
"""


@pytest.fixture(autouse=True)
def on_a_cpu(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def parsed(*argv: str):
    flags, rest = split_flags(benchmark_train._parser(), list(argv))
    return flags, [*DEFAULTS, *rest]


# Logs


def test_our_log_is_read_as_the_reporter_writes_it():
    metrics = Metrics({"loss": 6.9312, "top1": 0.0}, 32, 0, 1.23)
    report = {
        "num_epochs": 300, "epoch_step": 1, "steps_per_epoch": 40, "step": 1, "latest": metrics, "average": metrics,
        "is_scaled": True, "seconds_left": 36_180.0,
    }  # fmt: skip
    figures = {"lr": 1e-6, "loss_scale": 65536.0, "skipped_steps": 1, "peak_memory_bytes": 2_270_000_000}
    slow, fast = (
        {"images_per_second": 16.0, "data_wait_share": 0.5},
        {"images_per_second": 32.0, "data_wait_share": 0.0},
    )
    first, later = (StepReport(epoch=i, figures=figures | one, **report) for i, one in enumerate((slow, fast), 1))
    assert [read_line(OURS, line) for line in first.log_lines()] == [(1, 2.27e9, 0), None]
    assert [read_line(OURS, line) for line in later.log_lines()] == [(41, 2.27e9, 0), None]
    assert read_line(OURS, "----- Epoch[001/300], epoch time: 1m00s, 24.0 img/s, time left: 10h03m") is None


# Turns


def test_child_processes_end_with_the_program(tmp_path):
    pid_file = tmp_path / "pid"
    child = "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(100)'])"
    write = f"open({str(pid_file)!r}, 'w').write(str(child.pid))"
    code = f"import subprocess, sys\nchild = {child}\n{write}\n{STEPS}"
    found = run_turn(
        Program([sys.executable, "-c", code], BARE), warmup=3, steps=5, limit_seconds=60, images_per_step=8
    )
    assert found["images_per_second"] > 0 and found["peak_memory_bytes"] == 1e9
    assert 0 <= found["cpu_seconds_per_second"] <= os.cpu_count()
    assert_ended(int(pid_file.read_text()))


def assert_ended(pid: int) -> None:
    """Waits until the process does not exist, or is a zombie."""
    for _ in range(500):
        if read_stat(pid)[0] in ("", "Z"):
            return
        time.sleep(0.02)
    pytest.fail("the process is still running")


# Command lines


def test_the_entry_script_gets_the_options_of_the_user():
    flags, rest = parsed("-warmup=4", "-steps=8", "-interval=4", "-compile", "-opts", "SEED=7")
    for name in ("jpeg", "ready"):
        ours = parse_command_line(build_program(name, rest, flags.interval, Path("/f")).command[2:]).config
        assert (ours.seed, ours.train.max_steps, ours.report_freq, ours.amp.enabled) == (7, None, 4, True)
        assert (ours.data.batch_size, ours.model.name, ours.model.dropout) == (32, "vit_tiny_patch16_224", 0.0)
        assert ours.train.compile == "default"
        assert (ours.data.dataset, ours.data.hflip_prob) == (("folder", 0.5) if name == "jpeg" else ("fake", 0.0))
    flags, rest = parsed("-programs=jpeg,ready", "-modes=fp32,O2-bf16")
    contenders = benchmark_train.checked_contenders(flags, rest)
    configs = {label: parse_command_line(words).config.amp for label, (_, words) in contenders.items()}
    assert {label: amp.level if amp.enabled else None for label, amp in configs.items()} == {
        "jpeg, fp32": None, "ready, fp32": None, "jpeg, O2-bf16": "O2", "ready, O2-bf16": "O2",
    }  # fmt: skip


@pytest.mark.slow
def test_rounds_of_the_entry_script_and_of_a_train_py(tmp_path):
    (train_py := tmp_path / "train.py").write_text(TIMM)
    make_images(tmp_path / "images", (24, 16), count=16, noise=0.0)
    flags = ["-programs=jpeg,ready,timm", "-rounds=2", "-warmup=2", "-steps=4", "-interval=2"]
    paths = [f"-timm_train={train_py}", f"-data={tmp_path / 'images'}", f"-json={tmp_path / 'a.json'}"]
    assert benchmark_train.main([*flags, *paths, *TINY]) == 0
    result = json.loads((tmp_path / "a.json").read_text())
    assert len(result["ratios"]["jpeg / timm"]) == 2 and result["environment"]["batch size"] == 4
    assert min(result["figures"]["jpeg"]["peak_memory_bytes"]) > 1e8
    assert result["figures"]["timm"].keys() == {"images_per_second", "cpu_seconds_per_second"}
