"""benchmark_gpu.py: commands and time limits of the parts, records, floors, page. One test needs a GPU."""

import json
import sys
from pathlib import Path

import pytest
import torch
from conftest import TINY_VIT
from test_benchmark_train import assert_ended

from configs.command_line import parse_command_line
from scripts.benchmarks import benchmark_gpu, benchmark_train, machine
from scripts.benchmarks.benchmark_gpu import INVALID, TABLES, TRAINING, Part, build_parts, page, run_part
from scripts.flags import split_flags
from utils.errors import UserError

TINY = ["-cfg=configs/vit_tiny_patch16_224.yaml", "-opts", *TINY_VIT]


def parts_of(*argv: str) -> dict[str, Part]:
    flags, rest = split_flags(benchmark_gpu._parser(), list(argv))
    return build_parts(flags, [*benchmark_gpu.DEFAULTS, *rest])


def part(code: str, limit_seconds: float = 60.0) -> Part:
    return Part([sys.executable, "-c", code], limit_seconds)


# The plan


@pytest.fixture
def ran(monkeypatch) -> list[str]:
    """The parts that main runs, by a clock on which each takes its whole limit; `O1` fails."""
    names, clock = [], [0.0]

    def run(name: str, part: Part, _: Path) -> dict:
        clock[0] += part.limit_seconds
        names.append(name)
        return {"outcome": "failed: why" if name == "O1" else "done", "seconds": 1.0, "result": None}

    monkeypatch.setattr(benchmark_gpu.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(benchmark_gpu, "run_part", run)
    return names


@pytest.mark.parametrize("gpus", [1, 8])
def test_the_same_command_runs_all_parts_in_calls_of_nine_minutes(ran, tmp_path, capsys, monkeypatch, gpus):
    monkeypatch.setattr(benchmark_gpu, "visible_gpus", lambda: gpus)
    calls, statuses, argv = 0, [], [f"-output={tmp_path}", f"-timm_train={__file__}", "-opts", "SEED=3"]
    while calls < 20 and (not calls or "Not run yet: " in capsys.readouterr().out):
        calls += 1
        statuses.append(benchmark_gpu.main(argv))
        assert benchmark_gpu.time.monotonic() <= calls * (540 - benchmark_gpu.RESERVED_SECONDS)
    assert sorted(ran) == sorted(parts_of(*argv)) and ran[:5] == list(parts_of())[:5]
    assert {"timm", "jpeg_whole", "stream", "stream_compiled", *TABLES} <= {*ran}
    assert statuses == [1, *[0] * (calls - 1)]
    assert "| O1 | failed: why | 1 |" in (tmp_path / "figures.md").read_text()


def test_named_parts_are_repeated_and_the_other_records_kept(ran, tmp_path):
    records = {name: {"outcome": "done", "seconds": 7.0, "result": None} for name in ("O1", "jpeg")}
    (tmp_path / "figures.json").write_text(json.dumps(records))
    assert benchmark_gpu.main([f"-output={tmp_path}", "-parts=O1,tables", "-minutes=60"]) == 1
    assert ran == ["O1", *TABLES]
    found = json.loads((tmp_path / "figures.json").read_text())
    assert {name: one["seconds"] for name, one in found.items()} == {"O1": 1, "jpeg": 7, **dict.fromkeys(TABLES, 1)}
    with pytest.raises(UserError, match=r"-parts.* jpeg"):
        benchmark_gpu.main([f"-output={tmp_path}", "-parts=jpg"])


def test_every_training_part_is_a_command_of_benchmark_train(tmp_path, monkeypatch):
    monkeypatch.setattr(benchmark_gpu, "visible_gpus", lambda: 2)
    made, configs = parts_of(f"-output={tmp_path}", f"-timm_train={__file__}", "-opts", "SEED=3"), {}
    for name, setting in TRAINING.items():
        command = made[name].command
        flags, rest = split_flags(benchmark_train._parser(), command[command.index("-u") + 2 :])
        configs[name] = config = parse_command_line([*benchmark_train.DEFAULTS, *rest]).config
        assert tuple(benchmark_train.checked_programs(flags, config)) == setting.programs
        assert config.data.batch_size == (64 if setting.small else 256)
        assert config.amp.enabled == setting.mode.startswith("O")
        assert (config.train.compile == "none") == setting.kind.startswith(("eager", "ranks"))
        images = flags.steps * config.data.batch_size
        assert images == pytest.approx(4096 if setting.mode == "fp32" else 16384, rel=0.3)
        assert config.seed == 3 or setting.model
    shipped = parse_command_line(["-cfg=configs/vit_base_patch16_224.yaml"]).config.model
    assert configs["dropout"].model == shipped
    assert configs["O1"].model.dropout == 0 < shipped.dropout
    assert configs["timm"].train.compile == "model"
    assert configs["fsdp"].parallel.strategy == "fsdp" and not configs.keys() - made.keys()
    monkeypatch.setattr(benchmark_gpu, "visible_gpus", lambda: 1)
    assert not benchmark_gpu.STRATEGIES.keys() & parts_of().keys()
    assert made["flash"].command[:2] == ["env", "TORCH_CUDNN_SDPA_DEPRIORITIZED=1"]


# Parts


FAILED = {"figures": {"ready": {"failed": "not done within 50 s"}, "bare": {"images_per_second": [1.0]}}}


@pytest.mark.parametrize(
    ("code", "result", "outcome"),
    [
        ("print('some output')", {}, "done"),
        ("import sys; print('| a table |'); sys.exit('error: no GPU')", None, "failed: no GPU"),
        ("print('==== 90 passed, 9 skipped in 1.25s ====')", None, "done: 90 passed, 9 skipped in 1.25s"),
        ("", FAILED, "failed: ready: not done within 50 s"),
    ],
)
def test_the_outcome_of_a_part(code, result, outcome, tmp_path):
    (tmp_path / "one.json").write_text('{"of": "the run before"}')
    if result is not None:
        code += f"\nopen({str(tmp_path / 'one.json')!r}, 'w').write({json.dumps(result)!r})"
    record = run_part("one", part(code), tmp_path)
    assert (record["outcome"], record["result"]) == (outcome, result)
    assert "some output" in (tmp_path / "one.txt").read_text() or outcome != "done"


HANGS = """
import os, signal, subprocess, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(100)'])
open({folder!r} + '/pid', 'w').write(str(child.pid))
print('the last line'); print('| --- |'); print('interrupted by SIGTERM', flush=True)
open({folder!r} + '/tmp', 'w').write('{{"turns": 1}}')
os.rename({folder!r} + '/tmp', {folder!r} + '/one.json')
child.wait()
"""


def test_a_part_that_hangs_is_killed_with_its_child_processes_and_keeps_its_result(tmp_path, monkeypatch):
    """It ignores SIGTERM."""
    monkeypatch.setattr(benchmark_gpu, "TERMINATION_SECONDS", 0.2)
    record = run_part("one", part(HANGS.format(folder=str(tmp_path)), limit_seconds=3.0), tmp_path)
    assert record["outcome"] == "stopped after 3 s; last line: the last line"
    assert record["result"] == {"turns": 1}
    assert_ended(int((tmp_path / "pid").read_text()))


# The machine and the floors


def test_a_floor_has_the_bytes_of_all_ops_but_products_and_attention_and_their_seconds(monkeypatch):
    """Equal calls are timed once: one second each."""
    measured = []
    monkeypatch.setattr(machine, "timed", lambda work, device: measured.append(work()) or 1.0)
    matrix, heads = torch.ones(4, 4), torch.ones(1, 2, 8, 16)
    with machine.TrafficCounter(torch.device("cpu"), times_kernels=True) as step:
        (matrix @ matrix.T).add_(1)
        torch.relu(matrix @ matrix.T)
        matrix @ matrix
        torch.nn.functional.scaled_dot_product_attention(heads, heads, heads)
    assert step.seconds == 4.0 and len(measured) == 3 * machine._TRIALS
    own = {name: moved for name, moved in step.num_bytes.items() if not name.startswith(machine.ATTENTION)}
    assert own == {"add_": 2 * 64, "relu": 2 * 64} and len(step.num_bytes) == 3


@pytest.mark.gpu
def test_a_gpu_is_measured(tmp_path):
    machine.main([f"-json={tmp_path / 'machine.json'}", "-small_batch=2", "-large_batch=4", *TINY])
    found = json.loads((tmp_path / "machine.json").read_text())
    assert found["device"] == torch.cuda.get_device_name() and found["copy_bytes_per_second"] > 0
    assert all(min(one.values()) > 0 for one in found["floors"].values())


# The page


def test_the_page_has_shares_of_the_speed_that_the_floor_allows():
    """The floor of O1 is 0.1 s + 0.4e12 bytes / 4e12 bytes/s for 200 images: 1000 images/s."""
    floor = {"batch_size": 200, "kernel_seconds": 0.1, "other_bytes": 0.4e12, "flops": 4e12}
    found = {"device": "NVIDIA H200", "torch": "2", "copy_bytes_per_second": 4e12, "floors": {"O1": floor}}
    speeds = {
        ("O1", "ready"): 5000.0, ("jpeg", "jpeg"): 500.0, ("flash", "ready"): 800.0, ("timm", "timm"): 1200.0,
        ("deterministic", "ready"): 2000.0, ("O2_compiled", "ready"): 500.0, ("tiny", "ready"): 500.0,
        ("fsdp", "ranks"): 500.0,
    }  # fmt: skip
    results = {
        part: {"figures": {program: {"images_per_second": [speed], "peak_memory_bytes": [20e9]}}}
        for (part, program), speed in speeds.items()
    }
    results |= {"machine": found, "O2": None, "compiled": {"figures": {"ready": {"failed": "a | b"}, "bare": {}}}}
    text = page({name: {"outcome": "done", "seconds": 2.0, "result": results[name]} for name in results}, "python x.py")
    rows = [line.split(" | ") for line in text.splitlines() if " | 20.00 |" in line]
    assert {name: (speed.split()[0], share) for name, speed, share, _ in rows} == {
        "| O1: O1-bf16, ready": ("5000.0", f"500.0%{INVALID}"), "| jpeg: O1-bf16, jpeg": ("500.0", "50.0%"),
        "| flash: O1-bf16, ready": ("800.0", "80.0%"), "| timm: O1-bf16, timm": ("1200.0", "120.0%"),
        "| deterministic: O1-bf16, ready": ("2000.0", f"200.0%{INVALID}"),
        "| O2_compiled: O2-bf16, ready": ("500.0", ""), "| tiny: O1-bf16, ready": ("500.0", ""),
        "| fsdp: O1-bf16, ranks": ("500.0", ""),
    }  # fmt: skip
    for line in ("`python x.py`", "| compiled: O1-bf16, ready | failed: a \\| b |  |  |", "| O2 | done | 2 |"):
        assert f"\n{line}\n" in text
    assert "NVIDIA H200, torch 2" in text and "attention, TFLOP/s: O1 40." in text
    assert "| compiled: O1-bf16, bare" not in text
