"""benchmark_amp.py: figures, tables, modes and real measurements. No test here asserts a time."""

import json
import subprocess
from itertools import cycle

import pytest
import torch
from conftest import GREY, TINY_VIT

from scripts.benchmarks import amp_worker, benchmark_amp
from scripts.benchmarks.amp_tables import mode_figures, mode_table, seconds_table
from scripts.benchmarks.benchmark_amp import largest_batch
from scripts.benchmarks.common import MODES, interleaved, mode_config, parse_modes
from scripts.flags import flag_parser, split_flags
from utils.entry import run_and_report_errors
from utils.errors import UserError

TINY = ["-batch_size=16", "-dataset=digits", "-opts", *TINY_VIT, *GREY]


@pytest.fixture(autouse=True)
def on_a_cpu(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr("scripts.benchmarks.common.visible_gpus", lambda: 0)
    monkeypatch.setattr("scripts.benchmarks.amp_tables.visible_gpus", lambda: 0)
    monkeypatch.setattr("scripts.benchmarks.benchmark_amp.visible_gpus", lambda: 0)


def answer(seconds: float, memory: float = 2e9, loss: float | None = 1.0) -> dict:
    flops = {"forward_flops": 1e9, "matmul_flops_per_second": 60e9}
    return {"seconds": seconds, "peak_memory_bytes": memory, "loss": loss} | flops


# Figures


def test_seconds_table_has_averages_and_speedups_as_paddlevits():
    seconds = {"fp32": [78.0, 79.0, 80.0], "tf32": [60.0, 60.0, 60.0], "O1-fp16": [40.0, 39.5, 20.0]}
    assert seconds_table(seconds).splitlines() == [
        "| repeat | fp32 | tf32 | O1-fp16 |",
        "| --- | --- | --- | --- |",
        "| 1 | 78.00 | 60.00 | 40.00 |",
        "| 2 | 79.00 | 60.00 | 39.50 |",
        "| 3 | 80.00 | 60.00 | 20.00 |",
        "| average | 79.00 | 60.00 | 33.17 |",
        "| speedup over fp32 | 1.00 | 1.32 | 2.00 |",  # the median of 1.95, 2.00, 4.00
        "| speedup over tf32 | 0.76 | 1.00 | 1.52 |",
    ]


def test_figures_of_a_mode():
    answers = {"fp32": [answer(20.0), answer(30.0)], "O1-bf16": [answer(10.0, 0.9e9), answer(10.0, 1e9)]}
    one = mode_figures(answers, iterations=50, batch_size=64)["O1-bf16"]
    assert one["seconds_per_100_iterations"] == [20.0, 20.0]
    assert one["speedup"] == {"fp32": 2.5}
    assert (one["peak_memory_bytes"], one["memory_ratio"]) == (1e9, 0.5)
    assert (one["iterations_per_second"], one["images_per_second"]) == (5.0, 320.0)
    assert one["share_of_peak"] == pytest.approx(3 * 1e9 * 320 / 60e9)


def test_a_mode_that_is_out_of_memory_has_a_row():
    answers = {"fp32": [{"failed": "out of memory"}], "O1-bf16": [answer(10.0)], "O3-bf16": [answer(5.0)]}
    figures = mode_figures(answers, iterations=100, batch_size=64)
    assert figures["fp32"] == {"failed": "out of memory", "out_of_memory": True}
    assert figures["O3-bf16"]["speedup"] == {"O1-bf16": 2.0}
    assert "| fp32 | out of memory |  |  |  |  |  |" in mode_table(figures)


def test_the_order_is_reversed_in_every_second_round():
    order = [name for _, name in interleaved(["a", "b", "c"], 3)]
    assert order == [*"abc", *"cba", *"abc"]


@pytest.mark.parametrize("fitting", [0, 1, 7, 64, 100, 1000, 40_000, 10**6])
@pytest.mark.parametrize("start", [1, 64, 300])
def test_the_largest_batch_is_found_to_within_five_percent(fitting, start):
    found = largest_batch(lambda size: size <= fitting, start)
    expected = min(fitting, benchmark_amp.LARGEST_BATCH)
    assert 0.95 * expected - 1 <= found <= expected
    assert found > 0 or fitting == 0


# Modes and flags


def test_a_mode_overrides_the_options_of_the_user():
    argv = ["-amp_dtype=float16", "-opts", "SEED=3", "AMP.TF32=true"]
    assert not mode_config(argv, "fp32").amp.enabled
    assert mode_config(argv, "fp32").amp.tf32 is False
    o2 = mode_config(argv, "O2-bf16")
    assert (o2.amp.enabled, o2.amp.level, o2.amp.dtype, o2.seed) == (True, "O2", "bfloat16", 3)
    assert {name for name in MODES if mode_config(argv, name).amp.level == "O3"} == {"O3-fp16", "O3-bf16"}


def test_own_flags_are_split_off_in_both_forms(tmp_path):
    argv = ["-cfg", "a.yaml", "-json", str(tmp_path / "a"), "-opts", "SEED=1", "DATA.BATCH_SIZE=2", "-amp"]
    flags, rest = split_flags(flag_parser("x.py", ""), argv)
    assert flags.json == tmp_path / "a"
    assert rest == ["-cfg", "a.yaml", "-opts", "SEED=1", "DATA.BATCH_SIZE=2", "-amp"]
    assert split_flags(flag_parser("x.py", ""), [f"-json={tmp_path / 'b'}"])[0].json == tmp_path / "b"


def test_default_modes_depend_on_the_device(monkeypatch):
    assert parse_modes(None) == ["fp32", "O1-bf16", "O2-bf16", "O3-bf16"]
    monkeypatch.setattr("scripts.benchmarks.common.visible_gpus", lambda: 1)
    assert parse_modes(None) == ["fp32", "tf32", "O1-fp16", "O1-bf16", "O2-fp16", "O2-bf16", "O3-fp16"]


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["-modes=O1-bf61"], "unknown mode O1-bf61; did you mean O1-bf16?"),
        (["-modes=tf32"], "GPU"),
        (["-repeats=0"], "-repeats"),
        (["-repeets=2"], "unknown flag -repeets; did you mean -repeats?"),
        (["-json=/no/such/folder/a.json"], "-json"),
        (["-workload=linear", "-max_batch"], "-workload linear"),
        (["-opts", "TRAIN.BATCH=1"], "unknown key TRAIN.BATCH"),
    ],
)
def test_mistakes_are_reported_before_the_measurements(argv, said, monkeypatch):
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("a measurement started"))
    with pytest.raises(UserError, match=said.replace("?", r"\?")):
        benchmark_amp.main(argv)


def test_an_unknown_mode_is_a_one_line_error(capsys):
    assert run_and_report_errors(benchmark_amp.main, ["-modes", "fp23"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: -modes: unknown mode fp23; did you mean fp32?")


# Measurements


@pytest.mark.slow
def test_a_run_prints_the_tables_and_writes_the_files(tmp_path, capsys):
    files = ["-json", str(tmp_path / "a.json"), f"-picture={tmp_path / 'a.png'}"]
    benchmark_amp.main(["-modes=fp32,O1-bf16", "-repeats", "1", "-iterations=2", *files, *TINY])
    printed = capsys.readouterr().out
    for start in ("| repeat | fp32 | O1-bf16 |", "| 1 |", "| average |", "| speedup over fp32 | 1.00 |"):
        assert f"\n{start}" in printed
    for start in ("| mode | peak memory (GB) | / fp32 | iterations/s | images/s |", "| fp32 |", "| O1-bf16 |"):
        assert f"\n{start}" in printed
    assert "batch size 16: `python scripts/benchmarks/benchmark_amp.py -modes=fp32,O1-bf16" in printed
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")

    result = json.loads((tmp_path / "a.json").read_text())
    assert result["environment"]["torch"] == torch.__version__
    assert (result["iterations"], result["repeats"], list(result["modes"])) == (2, 1, ["fp32", "O1-bf16"])
    for one in result["modes"].values():
        assert len(one["seconds_per_100_iterations"]) == 1
        assert one["peak_memory_bytes"] > 1e8
        assert 1 < one["loss"] < 5  # ln 10 = 2.3
        assert one["images_per_second"] == pytest.approx(16 * one["iterations_per_second"])
        assert 0 < one["share_of_peak"] < 1


def test_a_batch_that_does_not_fit_is_detected():
    def fits(mode: str, gigabytes: float) -> bool:
        argv = ["-max_batch", f"-memory_gb={gigabytes}", *TINY]
        found = benchmark_amp.run_worker(argv, mode, "-opts", "DATA.BATCH_SIZE=16384")
        assert found in ({}, {"failed": "out of memory"})
        return found == {}

    assert fits("fp32", 4)
    assert not fits("fp32", 0.05)


def test_max_batch_prints_the_largest_batch_sizes(monkeypatch, capsys, tmp_path):
    def run_worker(argv: list[str], mode: str, *more: str) -> dict:
        batch_size = int(more[-1].removeprefix("DATA.BATCH_SIZE="))
        assert "-memory_gb=1.5" in more
        return {} if batch_size <= (200 if mode == "O1-bf16" else 100) else {"failed": "out of memory"}

    monkeypatch.setattr(benchmark_amp, "run_worker", run_worker)
    argv = ["-max_batch", "-memory_gb=1.5", "-modes=fp32,O1-bf16", f"-json={tmp_path / 'a.json'}", *TINY]
    benchmark_amp.main(argv)
    assert "| O1-bf16 | 200 | 2.00 |" in capsys.readouterr().out
    result = json.loads((tmp_path / "a.json").read_text())
    assert (result["largest_batch"], result["memory_gb"]) == ({"fp32": 100, "O1-bf16": 200}, 1.5)


@pytest.mark.parametrize(
    ("status", "stderr", "reason"),
    [
        (1, "error: weights.pth: no such file\n", "weights.pth: no such file"),
        (1, "Traceback (most recent call last):\nKeyError: 'x'\n", "KeyError: 'x'"),
        (-9, "", "out of memory"),
        (-11, "", "ended by SIGSEGV"),
    ],
)
def test_a_failed_measurement_is_a_result(status, stderr, reason, monkeypatch):
    process = subprocess.CompletedProcess([], status, "", stderr)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: process)
    assert benchmark_amp.run_worker([], "fp32") == {"failed": reason}


@pytest.mark.parametrize("accum_iter", [1, 2, 3])
def test_iterations_are_micro_batches(accum_iter, monkeypatch, cpu):
    monkeypatch.setattr("scripts.benchmarks.device_speed.SIZES", (8,))
    used = []
    monkeypatch.setattr(amp_worker, "cycle", lambda batches: (used.append(b) or b for b in cycle(batches)))
    config = mode_config([*TINY, f"-accum_iter={accum_iter}"], "fp32")
    assert amp_worker.training_figures(config, cpu, iterations=20)["loss"] < 3
    assert len(used) == amp_worker.WARMUP_ITERATIONS + 20


def test_linear_layers_without_and_with_accumulation(monkeypatch, capsys, cpu):
    monkeypatch.setattr(amp_worker, "LINEAR_WIDTH", 8)
    monkeypatch.setattr(amp_worker, "LINEAR_BATCH", 4)
    linear_figures = amp_worker.linear_figures
    monkeypatch.setattr(
        benchmark_amp, "run_worker", lambda _, mode: linear_figures(mode_config([], mode), cpu, iterations=12)
    )
    benchmark_amp.main(["-workload=linear", "-modes=fp32,O1-bf16,O3-bf16", "-repeats=2"])
    assert "\n| repeat | fp32 | O1-bf16 | O3-bf16 | fp32 x10 | O1-bf16 x10 | O3-bf16 x10 |" in capsys.readouterr().out
