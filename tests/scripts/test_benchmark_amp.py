"""benchmark_amp.py and seeds.py: figures, tables, and small real runs. No test here asserts a time."""

import json
import subprocess
from itertools import cycle

import pytest
import torch
from conftest import GREY, TINY_VIT

from scripts.benchmarks import benchmark_amp
from scripts.benchmarks.amp import accuracy, measurement
from scripts.benchmarks.amp.tables import mode_figures, mode_table, seconds_table
from scripts.benchmarks.common import MODES, interleaved, mode_config
from scripts.benchmarks.seeds import seed_figures, seed_table, seed_verdicts
from utils.errors import UserError

TINY = ["-batch_size=16", "-dataset=digits", "-opts", *TINY_VIT, *GREY]


@pytest.fixture(autouse=True)
def on_a_cpu(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def answer(seconds: float, memory: float = 2e9) -> dict:
    return {"seconds": seconds, "peak_memory_bytes": memory, "loss": 1.0}


def test_figures_and_tables():
    answers = {"fp32": [answer(20.0), answer(30.0)], "O1-bf16": [answer(10.0, 0.9e9), answer(10.0, 1e9)]}
    figures = mode_figures(answers | {"O3-bf16": [{"failed": "out of memory"}]}, iterations=50, batch_size=64)
    assert figures["O1-bf16"]["speedups"] == [2.0, 3.0]
    assert seconds_table({"fp32": figures["fp32"]["seconds_per_100_iterations"]}).splitlines()[2:] == [
        "| 1 | 40.00 |", "| 2 | 60.00 |", "| average | 50.00 |",
    ]  # fmt: skip
    assert mode_table(figures, "fp32").splitlines()[2:] == [
        "| fp32 | 2.00 | 1.00 | 128.0 | 1.00 (1.00 to 1.00) |",
        "| O1-bf16 | 1.00 | 0.50 | 320.0 | 2.50 (2.00 to 3.00) |",
        "| O3-bf16 | out of memory |  |  |  |",
    ]


def test_the_order_is_reversed_in_every_second_round():
    assert [name for _, name in interleaved(["a", "b", "c"], 3)] == [*"abc", *"cba", *"abc"]


def test_a_mode_overrides_the_options_of_the_user():
    argv = ["-amp_dtype=float16", "-opts", "SEED=3", "AMP.TF32=true"]
    fp32, o2 = mode_config(argv, "fp32"), mode_config(argv, "O2-bf16")
    assert (fp32.amp.enabled, fp32.amp.tf32) == (False, False)
    assert (o2.amp.enabled, o2.amp.level, o2.amp.dtype, o2.seed) == (True, "O2", "bfloat16", 3)
    assert {name for name in MODES if mode_config(argv, name).amp.level == "O3"} == {"O3-fp16", "O3-bf16"}


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["-modes=O1-bf61"], ["-modes", "O1-bf61", "O1-bf16"]),
        (["-modes=tf32"], ["-modes", "tf32", "GPU"]),
        (["-repeats=0"], ["-repeats"]),
        (["-repeets=2"], ["-repeets", "-repeats"]),
        (["-json=/no/such/folder/a.json"], ["-json"]),
        (["-max_batch"], ["-max_batch", "scripts/plan.py"]),
        (["-workload=linear"], ["-workload", "-cfg"]),
        (["-opts", "TRAIN.BATCH=1"], ["TRAIN.BATCH"]),
    ],
)
def test_mistakes_are_reported_before_the_measurements(argv, said, monkeypatch):
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("a measurement started"))
    with pytest.raises(UserError) as error:
        benchmark_amp.main(argv)
    assert all(word in str(error.value) for word in said)


@pytest.mark.slow
def test_a_run_prints_the_tables_and_writes_the_figures(tmp_path, capsys):
    benchmark_amp.main(["-modes=fp32,O1-bf16", "-repeats=1", "-iterations=2", f"-json={tmp_path / 'a.json'}", *TINY])
    printed = capsys.readouterr().out
    for start in ("| repeat | fp32 | O1-bf16 |", "| average |", "| mode | peak memory (GB) | / fp32 | images/s |"):
        assert f"\n{start}" in printed
    result = json.loads((tmp_path / "a.json").read_text())
    assert (result["environment"]["torch"], result["environment"]["batch_size"]) == (torch.__version__, 16)
    for one in result["modes"].values():
        assert one["peak_memory_bytes"] > 1e8 and 1 < one["loss"] < 5  # ln 10 = 2.3


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
    with pytest.raises(UserError, match=reason):
        benchmark_amp.main(["-modes=fp32,O1-bf16", "-repeats=1"])


@pytest.mark.parametrize("accum_iter", [1, 3])
def test_iterations_are_micro_batches(accum_iter, monkeypatch):
    used = []
    monkeypatch.setattr(measurement, "cycle", lambda batches: (used.append(b) or b for b in cycle(batches)))
    config = mode_config([*TINY, f"-accum_iter={accum_iter}"], "fp32")
    assert measurement.measure_mode(config, iterations=20)["loss"] < 3
    assert len(used) == measurement.WARMUP_ITERATIONS + 20


def test_running_out_of_memory_is_a_result(monkeypatch):
    def fails(*_):
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(measurement, "train", fails)
    assert measurement.measure_mode(mode_config(TINY, "fp32"), 1) == {"failed": measurement.OUT_OF_MEMORY}


# Accuracy


def runs(*top1: float) -> list[dict]:
    return [{"top1": value} for value in top1]


def test_a_difference_is_compared_with_its_standard_error():
    failed = {"failed": "non-finite gradients for 18 steps"}
    ones = {"fp32": runs(98, 99, 100), "O1": runs(98, 98, 98.2), "O3": runs(95, 95, 95), "O2": [failed, *runs(90)]}
    figures = seed_figures(ones, "fp32")
    assert seed_table(figures).splitlines()[2::3] == [
        "| fp32 | 98.00% | 99.00% | 100.00% | 99.00% | 1.00 | 98.00% |",
        "| O2 | failed | 90.00% | 90.00% |  | 90.00% |",
    ]
    assert figures["O3"]["difference"] == {"mean": -4, "standard_error": pytest.approx((1 / 3) ** 0.5)}
    assert seed_verdicts(figures, "fp32").splitlines() == [
        "- O1 - fp32: -0.93 points, standard error 0.58: no difference beyond the noise of seeds",
        "- O3 - fp32: -4.00 points, standard error 0.58: a difference beyond the noise of seeds",
        "- O2, seed 0: failed: non-finite gradients for 18 steps",
        "- O2 - fp32: no verdict; it needs two finished runs of each",
    ]


@pytest.mark.slow
def test_each_mode_is_trained_with_each_seed(tmp_path, capsys, monkeypatch):
    """One of the four runs is real."""
    argv = [*TINY, "TRAIN.NUM_EPOCHS=1", "TRAIN.BASE_LR=1e-3"]
    train = accuracy.train
    monkeypatch.setattr(
        accuracy, "train", lambda *given: train(*given) if given[1:3] == ("O1-bf16", 1) else runs(12.5)[0]
    )
    file, output = tmp_path / "a.json", tmp_path / "runs"
    flags = ["-accuracy", "-modes=fp32,O1-bf16", "-seeds=2", f"-json={file}", f"-output={output}"]
    assert benchmark_amp.main([*flags, *argv]) == 0
    assert "\n| O1-bf16 | 12.50% |" in capsys.readouterr().out
    (folder,) = (output / "O1-bf16-seed1").iterdir()
    top1 = json.loads(file.read_text())["modes"]["O1-bf16"]["top1"]
    assert json.loads((folder / "result.json").read_text())["top1"] == top1[1]
    assert "SEED: 1\n" in (folder / "config.yaml").read_text()


def test_a_failed_run_has_its_reason(tmp_path, monkeypatch):
    for status, reason in ((1, "none.pth: no such file"), (0, "the run has no evaluation")):
        process = subprocess.CompletedProcess([], status, "", "error: none.pth: no such file\n")
        monkeypatch.setattr(subprocess, "run", lambda *_, process=process, **__: process)
        assert accuracy.train(TINY, "fp32", 0, tmp_path) == {"failed": reason}
