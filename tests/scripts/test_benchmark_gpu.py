"""benchmark_gpu.py: order, commands and time limits of the parts, and the tables. No test here needs a GPU."""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from conftest import TINY_VIT

from configs.command_line import parse_command_line
from scripts.benchmarks import benchmark_gpu, benchmark_train, gpu_parts
from scripts.benchmarks.benchmark_gpu import plan_parts
from scripts.benchmarks.gpu_parts import Part, part_environment, run_part
from scripts.benchmarks.gpu_report import target_rows, training_rows
from scripts.flags import split_flags
from utils.errors import UserError


def parts_of(monkeypatch, gpus: int, *argv: str) -> list[Part]:
    monkeypatch.setattr("scripts.benchmarks.benchmark_gpu.visible_gpus", lambda: gpus)
    flags, rest = split_flags(benchmark_gpu._parser(), list(argv))
    return list(plan_parts(flags, rest, [64, 256], Path("/images")))


def part(text: str, limit_seconds: float = 60.0, name: str = "one") -> Part:
    return Part(name, [sys.executable, "-c", text], limit_seconds)


def run(one: Part, folder: Path, seconds_left: float = 100, after_result: Callable[[], None] = lambda: None) -> None:
    run_part(one, folder, seconds_left, dict(os.environ), after_result)


def trained(mode: str, programs: dict, ratios: dict | None = None) -> Part:
    settings = {"mode": mode, "batch_size": 256, "compiled": mode != "fp32", "programs": tuple(programs), "variant": ""}
    return Part("x", [], 1.0, settings, "done", 1.0, {"programs": programs, "ratios": ratios or {}})


def figures(speed: float, wait: float = 0.0) -> dict:
    return {"images_per_second": [speed], "data_wait_share": [wait], "peak_memory_bytes": 20e9}


# The plan


def test_the_most_important_parts_come_first(monkeypatch):
    names = [part.name for part in parts_of(monkeypatch, 1)]
    assert names[:6] == ["machine", "O1-bf16-256-compiled", "tests", "fp32-256", "tf32-256", "O1-fp16-256-compiled"]
    modes = ("O1-fp16", "O1-bf16", "O2-bf16")
    half = {f"{mode}-{size}{kind}" for mode in modes for size in (64, 256) for kind in ("", "-compiled")}
    assert half <= set(names)
    assert {"O1-bf16-256-deterministic", "O1-bf16-256-cudnn"} <= set(names)
    assert len(names) == len(set(names)) == 2 + 2 + 12 + 2 + 3 + 2
    assert not any(word in part.name for part in parts_of(monkeypatch, 0) for word in ("fp16", "tf32", "cudnn"))


def test_a_training_part_is_a_command_of_benchmark_train(monkeypatch, tmp_path):
    (tmp_path / "train.py").touch()
    timm = f"-timm_train={tmp_path / 'train.py'}"
    parts = parts_of(monkeypatch, 1, timm, "-opts", "SEED=3")
    compiled, fp32 = parts[1].command, parts[3].command
    deterministic = next(part for part in parts if part.name.endswith("deterministic"))
    assert "DETERMINISTIC=true" in deterministic.command and deterministic.settings["variant"] == "deterministic"
    for word in ("-programs=jpeg,ready,bare,timm,jpeg_whole", timm, "-batch_size=256", "-compile"):
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


def test_every_training_part_has_programs_that_can_be_compared(monkeypatch, tmp_path):
    (tmp_path / "train.py").touch()
    for one in parts_of(monkeypatch, 1, f"-output={tmp_path}", f"-timm_train={tmp_path / 'train.py'}"):
        if one.settings:
            flags, rest = split_flags(benchmark_train._parser(), one.command[3:])
            config = parse_command_line([*benchmark_train.DEFAULTS, *rest]).config
            assert tuple(benchmark_train._checked_programs(flags, config)) == one.settings["programs"]


@pytest.mark.parametrize("text", ["64,", "a", "0", "-1", "6.4"])
def test_batch_sizes_are_positive_integers(text):
    with pytest.raises(UserError, match="-batch_sizes"):
        benchmark_gpu.main([f"-batch_sizes={text}"])


# Parts


def test_a_part_keeps_its_output_and_its_result(tmp_path):
    one = part(f"open({str(tmp_path / 'one.json')!r}, 'w').write('{{}}'); print('some output')")
    run(one, tmp_path)
    assert (one.outcome, one.result) == ("done", {})
    assert "some output" in (tmp_path / "one.txt").read_text()


def test_a_failed_part_has_a_reason(tmp_path):
    (tmp_path / "one.json").write_text('{"of": "the run before"}')
    one = part("import sys; print('error: no GPU', file=sys.stderr); sys.exit(1)")
    run(one, tmp_path)
    assert (one.outcome, one.result) == ("failed: no GPU", None)


def test_the_reason_of_a_failed_part_can_be_in_its_standard_output(tmp_path):
    one = part("print('1 failed, 9 passed'); raise SystemExit(1)")
    run(one, tmp_path)
    assert one.outcome == "failed: 1 failed, 9 passed"


PROGRAMS = """
import os, sys
sys.path.insert(0, {root!r})
from scripts.benchmarks.programs import PlainLog, Program
from utils.errors import run_and_report_errors
child = "import os, time; open({pid!r}, 'w').write(str(os.getpid())); time.sleep(100)"
def main(argv):
    with Program([sys.executable, "-c", child], {{}}, PlainLog()) as program:
        open({json!r} + ".tmp", "w").write('{{"turns": 1}}')
        os.rename({json!r} + ".tmp", {json!r})
        program.turn(1, 1, 100)
sys.exit(run_and_report_errors(main, []))
"""


def part_that_hangs(folder: Path, limit_seconds: float) -> Part:
    """It writes a result, and then waits for a program."""
    text = PROGRAMS.format(root=str(gpu_parts.ROOT), pid=str(folder / "pid"), json=str(folder / "one.json"))
    return part(text, limit_seconds)


def assert_ended(pid_file: Path) -> None:
    for _ in range(100):
        if not os.path.exists(f"/proc/{pid_file.read_text()}"):
            return
        time.sleep(0.02)
    pytest.fail("the program is still running")


def test_a_part_that_hangs_is_ended_with_its_programs_and_keeps_its_result(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_parts, "MIN_SECONDS", 0.0)
    monkeypatch.setattr(gpu_parts, "POLL_SECONDS", 0.05)
    one, seen = part_that_hangs(tmp_path, limit_seconds=4.0), []
    run(one, tmp_path, after_result=lambda: seen.append((one.outcome, one.result)))
    assert seen == [("running", {"turns": 1})]
    assert (one.outcome, one.result) == ("stopped after 4 s", {"turns": 1})
    assert_ended(tmp_path / "pid")


def test_an_interrupted_part_is_ended_with_its_programs_and_keeps_its_result(tmp_path):
    def interrupt() -> None:
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
            time.sleep(0.02)
        raise KeyboardInterrupt

    one = part_that_hangs(tmp_path, limit_seconds=60.0)
    with pytest.raises(KeyboardInterrupt):
        run(one, tmp_path, after_result=interrupt)
    assert (one.outcome, one.result) == ("interrupted", {"turns": 1})
    assert_ended(tmp_path / "pid")


def test_a_part_that_ignores_sigterm_is_killed_with_its_child_processes(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_parts, "MIN_SECONDS", 0.0)
    monkeypatch.setattr(gpu_parts, "TERMINATION_SECONDS", 0.2)
    child = f"import os, time; open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); time.sleep(100)"
    one = part(
        "import signal, subprocess, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"subprocess.run([sys.executable, '-c', {child!r}])",
        limit_seconds=1.5,
    )
    run(one, tmp_path)
    assert one.outcome == "stopped after 2 s"
    assert_ended(tmp_path / "pid")


def test_a_part_without_time_is_not_run(tmp_path):
    one = part("raise SystemExit('was run')")
    run(one, tmp_path, seconds_left=20)
    assert one.outcome == "not run: no time was left"
    assert not list(tmp_path.iterdir())


def test_parts_find_packages_in_a_relative_folder_and_share_a_compile_cache(tmp_path, monkeypatch):
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels" / "carried.py").write_text("NAME = 'from the folder'")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", "wheels")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/set/by/torch")
    one = part("import carried, os; print(carried.NAME, os.environ['TORCHINDUCTOR_CACHE_DIR'])")
    run_part(one, tmp_path, 100, part_environment(Path("/cache")), lambda: None)
    assert "from the folder /cache" in (tmp_path / "one.txt").read_text()


# The machine


MACHINE = ["-cfg=configs/vit_tiny_patch16_224.yaml", "-opts", *TINY_VIT]


def measured_machine(file: Path, monkeypatch) -> dict:
    monkeypatch.setattr("scripts.benchmarks.benchmark_gpu.visible_gpus", lambda: 0)
    monkeypatch.setattr("scripts.benchmarks.device_speed.SIZES", (8,))
    monkeypatch.setattr("scripts.benchmarks.device_speed._COPY_BYTES", 8)
    benchmark_gpu.main(["-worker", f"-json={file}", *MACHINE])
    return json.loads(file.read_text())


def test_the_machine_is_measured(tmp_path, monkeypatch):
    machine = measured_machine(tmp_path / "machine.json", monkeypatch)
    assert set(machine["peak_flops_per_second"]) == {"O1-bf16", "O2-bf16", "fp32"}
    assert machine["training_flops_per_image"] > 0 and machine["copy_bytes_per_second"] > 0


def test_a_measurement_that_fails_ends_no_other(tmp_path, monkeypatch):
    def fails(*_):
        raise RuntimeError("no such op")

    def fails_in_bf16(precision):
        return fails() if precision.dtype == torch.bfloat16 else 1e12

    monkeypatch.setattr(benchmark_gpu, "training_flops", fails)
    monkeypatch.setattr(benchmark_gpu, "matmul_flops_per_second", fails_in_bf16)
    with pytest.raises(UserError, match=r"^not measured: training_flops_per_image: RuntimeError: no such op; O1-bf16"):
        measured_machine(tmp_path / "machine.json", monkeypatch)
    machine = json.loads((tmp_path / "machine.json").read_text())
    assert machine["peak_flops_per_second"] == {"fp32": 1e12} and machine["copy_bytes_per_second"] > 0
    rows = training_rows(trained("fp32", {"ready": figures(10.0)}), machine)
    assert rows == [["fp32", "256", "no", "ready", "10.0", "", "", "", "0.0%", "20.00"]]


# Tables


def test_rows_have_the_roofline_and_the_share_of_the_measured_peak():
    machine = {"training_flops_per_image": 100e9, "peak_flops_per_second": {"O1-bf16": 800e12}}
    one = trained("O1-bf16", {"jpeg": figures(4000.0, 0.01), "bare": figures(4100.0), "timm": {"failed": "why"}})
    one.settings["programs"] += ("jpeg_whole",)
    assert training_rows(one, machine) == [
        ["O1-bf16", "256", "blocks", "jpeg", "4000.0", "8,000", "400", "50.0%", "1.0%", "20.00"],
        ["O1-bf16", "256", "blocks", "bare", "4100.0", "8,000", "410", "51.2%", "", "20.00"],
        ["O1-bf16", "256", "whole model", "timm", "failed: why", "", "", "", "", ""],
        ["O1-bf16", "256", "whole model", "jpeg_whole", "no complete turn", "", "", "", "", ""],
    ]
    assert training_rows(one, {})[0][4:] == ["4000.0", "", "", "", "1.0%", "20.00"]


def test_targets_are_compared_with_the_measured_values():
    parts = [
        trained(
            "O1-bf16",
            {"jpeg": figures(3500.0, 0.02), "ready": figures(3900.0)},
            {"jpeg / timm": [1.3], "jpeg_whole / timm": [1.2]},
        ),
        trained("fp32", {"ready": figures(390.0)}),
        trained("tf32", {"ready": {"failed": "why"}}),
    ]
    assert [row[2] for row in target_rows(parts)] == ["3,900", "1.20", "1.30", "10.00", "2.0%"]
    assert [row[2] for row in target_rows(parts[1:])] == ["", "", "", "", ""]


def test_figures_are_written_after_each_part(tmp_path, monkeypatch, capsys):
    machine = {"device": "GPU", "torch": "2", "model": "vit", "training_flops_per_image": 1e9}
    machine |= {"peak_flops_per_second": {"O1-bf16": 1e12}}
    settings = {"mode": "O1-bf16", "batch_size": 8, "compiled": False, "programs": ["ready"], "variant": ""}

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
    assert "| O1-bf16 | 8 | no | ready | 100.0 | 1,000 | 0.1 | 10.0% | 0.0% | 20.00 |" in printed
    assert "| loaders | failed: ended with status 3 |" in printed
    kept = json.loads((tmp_path / "figures.json").read_text())["parts"]
    assert [one["outcome"] for one in kept] == ["done", "done", "done", "failed: ended with status 3"]
