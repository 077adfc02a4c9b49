"""benchmark_gpu.py: order, commands and time limits of the parts, and the tables. No test here needs a GPU."""

import json
import os
import sys
import time
from pathlib import Path

import pytest

from scripts.benchmarks import benchmark_gpu, gpu_parts
from scripts.benchmarks.benchmark_gpu import plan_parts
from scripts.benchmarks.common import split_flags
from scripts.benchmarks.gpu_parts import Part, run_part
from scripts.benchmarks.gpu_report import target_rows, training_rows
from utils.errors import UserError


def parts_of(monkeypatch, gpus: int, *argv: str) -> list[Part]:
    monkeypatch.setattr("scripts.benchmarks.benchmark_gpu.visible_gpus", lambda: gpus)
    flags, rest = split_flags(benchmark_gpu._parser(), list(argv))
    return list(plan_parts(flags, rest, [64, 256], Path("/images")))


def part(text: str, limit_seconds: float = 60.0, name: str = "one") -> Part:
    return Part(name, [sys.executable, "-c", text], limit_seconds)


def trained(mode: str, programs: dict, ratios: dict | None = None) -> Part:
    settings = {"mode": mode, "batch_size": 256, "compiled": mode != "fp32"}
    return Part("x", [], 1.0, settings, "done", 1.0, {"programs": programs, "ratios": ratios or {}})


def figures(speed: float, wait: float = 0.0) -> dict:
    return {"images_per_second": [speed], "data_wait_share": [wait], "peak_memory_bytes": 20e9}


# The plan


def test_the_most_important_parts_come_first(monkeypatch):
    names = [part.name for part in parts_of(monkeypatch, 1)]
    assert names[:6] == ["tests", "machine", "O1-bf16-256-compiled", "fp32-256", "tf32-256", "O1-fp16-256-compiled"]
    half = {
        f"O1-{dtype}-{size}{kind}" for dtype in ("fp16", "bf16") for size in (64, 256) for kind in ("", "-compiled")
    }
    assert half <= set(names)
    assert len(names) == len(set(names)) == 2 + 2 + 8 + 1
    assert not any("fp16" in part.name or "tf32" in part.name for part in parts_of(monkeypatch, 0))


def test_a_training_part_is_a_command_of_benchmark_train(monkeypatch, tmp_path):
    (tmp_path / "train.py").touch()
    timm = f"-timm_train={tmp_path / 'train.py'}"
    parts = parts_of(monkeypatch, 1, timm, "-opts", "SEED=3")
    compiled, fp32 = parts[2].command, parts[3].command
    for word in ("-programs=jpeg,ready,bare,timm", timm, "-batch_size=256", "-compile"):
        assert word in compiled
    for word in (
        "-steps=60",
        "SEED=3",
        "AMP.DTYPE=bfloat16",
        "-data=/images",
        "-json=gpu_figures/O1-bf16-256-compiled.json",
    ):
        assert word in compiled
    for word in ("-programs=ready", "-steps=20", "AMP.ENABLED=false", "AMP.TF32=false"):
        assert word in fp32
    assert "-compile" not in fp32
    assert timm not in fp32


@pytest.mark.parametrize("text", ["64,", "a", "0", "-1", "6.4"])
def test_batch_sizes_are_positive_integers(text):
    with pytest.raises(UserError, match="-batch_sizes"):
        benchmark_gpu.main([f"-batch_sizes={text}"])


# Parts


def test_a_part_keeps_its_output_and_its_result(tmp_path):
    one = part(f"open({str(tmp_path / 'one.json')!r}, 'w').write('{{}}'); print('some output')")
    run_part(one, tmp_path, seconds_left=100)
    assert (one.outcome, one.result) == ("done", {})
    assert "some output" in (tmp_path / "one.txt").read_text()


def test_a_failed_part_has_a_reason(tmp_path):
    (tmp_path / "one.json").write_text('{"of": "the run before"}')
    one = part("import sys; print('error: no GPU', file=sys.stderr); sys.exit(1)")
    run_part(one, tmp_path, seconds_left=100)
    assert (one.outcome, one.result) == ("failed: no GPU", None)


def test_a_part_that_hangs_is_ended_with_its_child_processes(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_parts, "MIN_SECONDS", 0.0)
    pid_file = tmp_path / "pid"
    text = f"""
import sys
import time
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from scripts.benchmarks.programs import PlainLog, Program
from utils.errors import run_and_report_errors
child = "import os, time; open({str(pid_file)!r}, 'w').write(str(os.getpid())); time.sleep(100)"
def main(argv):
    with Program([sys.executable, "-c", child], {{}}, PlainLog()) as program:
        program.turn(1, 1, 100)
sys.exit(run_and_report_errors(main, []))
"""
    one = part(text, limit_seconds=1.5)
    run_part(one, tmp_path, seconds_left=100)
    assert one.outcome == "stopped after 2 s"
    assert one.seconds < 10
    for _ in range(100):
        if not os.path.exists(f"/proc/{pid_file.read_text()}"):
            return
        time.sleep(0.02)
    pytest.fail("the program is still running")


def test_a_part_without_time_is_not_run(tmp_path):
    one = part("raise SystemExit('was run')")
    run_part(one, tmp_path, seconds_left=20)
    assert one.outcome == "not run: no time was left"
    assert not list(tmp_path.iterdir())


# Tables


def test_rows_have_the_share_of_the_measured_peak():
    machine = {"training_flops_per_image": 100e9, "peak_flops_per_second": {"O1-bf16": 800e12}}
    one = trained("O1-bf16", {"jpeg": figures(4000.0, 0.01), "bare": figures(4100.0), "timm": {"failed": "why"}})
    assert training_rows(one, machine) == [
        ["O1-bf16", "256", "yes", "jpeg", "4000.0", "400", "50.0%", "1.0%", "20.00"],
        ["O1-bf16", "256", "yes", "bare", "4100.0", "410", "51.2%", "", "20.00"],
        ["O1-bf16", "256", "yes", "timm", "failed: why", "", "", "", ""],
    ]
    assert training_rows(one, {})[0][4:] == ["4000.0", "", "", "1.0%", "20.00"]


def test_targets_are_compared_with_the_measured_values():
    parts = [
        trained("O1-bf16", {"jpeg": figures(3500.0, 0.02), "ready": figures(3900.0)}, {"jpeg / timm": [1.3]}),
        trained("fp32", {"ready": figures(390.0)}),
        trained("tf32", {"ready": {"failed": "why"}}),
    ]
    assert [row[2] for row in target_rows(parts)] == ["3,900", "1.30", "10.00", "2.0%"]
    assert [row[2] for row in target_rows(parts[1:])] == ["", "", "", ""]


def test_figures_are_written_after_each_part(tmp_path, monkeypatch, capsys):
    machine = {"device": "GPU", "torch": "2", "model": "vit", "training_flops_per_image": 1e9}
    machine |= {"peak_flops_per_second": {"O1-bf16": 1e12}}
    settings = {"mode": "O1-bf16", "batch_size": 8, "compiled": False}

    def writing(name: str, result: dict, settings: dict, first: str = "0") -> Part:
        text = f"{first}; open({str(tmp_path / name)!r} + '.json', 'w').write({json.dumps(result)!r})"
        return Part(name, part(text).command, 60.0, settings)

    def parts(*_):
        yield part("print('all skipped')", name="tests")
        yield writing("machine", machine, {})
        check = f"assert 'machine | done' in open({str(tmp_path / 'figures.md')!r}).read()"
        yield writing("O1-bf16-8", {"programs": {"ready": figures(100.0)}, "ratios": {}}, settings, check)
        yield part("raise SystemExit(3)", name="loaders")

    monkeypatch.setattr(benchmark_gpu, "plan_parts", parts)
    monkeypatch.setattr(benchmark_gpu, "make_images", lambda *_, **__: None)
    assert benchmark_gpu.main([f"-output={tmp_path}"]) == 1
    printed = capsys.readouterr().out
    assert "| O1-bf16 | 8 | no | ready | 100.0 | 0.1 | 10.0% | 0.0% | 20.00 |" in printed
    assert "| loaders | failed: ended with status 3 |" in printed
    kept = json.loads((tmp_path / "figures.json").read_text())["parts"]
    assert [one["outcome"] for one in kept] == ["done", "done", "done", "failed: ended with status 3"]
