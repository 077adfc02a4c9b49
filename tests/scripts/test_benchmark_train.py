"""benchmark_train.py and programs.py: logs, turns, command lines. No test here asserts a time."""

import json
import time
from pathlib import Path

import pytest
from conftest import TINY_VIT

from configs.command_line import parse_command_line
from scripts.benchmarks import benchmark_train
from scripts.benchmarks.benchmark_train import DEFAULTS, make_images
from scripts.benchmarks.programs import build_program
from scripts.flags import split_flags
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


@pytest.fixture(autouse=True)
def on_a_cpu(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def parsed(*argv: str):
    flags, rest = split_flags(benchmark_train._parser(), list(argv))
    return flags, [*DEFAULTS, *rest]


# Logs


# Turns


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
