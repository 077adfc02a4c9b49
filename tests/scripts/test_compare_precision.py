"""compare_precision.py: figures, verdicts, and real runs on the embedded digits."""

import json

import pytest
from conftest import GREY, TINY_VIT

from scripts.benchmarks import compare_precision
from scripts.benchmarks.compare_precision import mode_figures, table, train, verdicts

TINY = ["-dataset=digits", "-batch_size=64", "-opts", *TINY_VIT, *GREY, "TRAIN.NUM_EPOCHS=1", "TRAIN.BASE_LR=1e-3"]


@pytest.fixture(autouse=True)
def on_a_cpu(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr("scripts.benchmarks.common.visible_gpus", lambda: 0)


def runs(*top1: float) -> list[dict]:
    return [{"top1": value, "train_seconds": 10.0} for value in top1]


def test_a_mode_is_worse_if_it_is_below_fp32_by_more_than_the_spread_of_seeds():
    figures = mode_figures({"O3-fp16": runs(97, 97, 97), "fp32": runs(98, 99, 100), "O1-fp16": runs(98, 98, 98.2)})
    assert (figures["fp32"]["mean"], figures["fp32"]["standard_deviation"], figures["fp32"]["min"]) == (99, 1, 98)
    assert {mode: one["below_baseline"] for mode, one in figures.items()} == {
        "O3-fp16": True, "fp32": False, "O1-fp16": False,
    }  # fmt: skip
    assert verdicts(figures) == [
        "- O3-fp16: -2.00 points from fp32's mean, worse by more than the spread of fp32's seeds (1.00)",
        "- O1-fp16: -0.93 points from fp32's mean, not worse by more than the spread of fp32's seeds (1.00)",
    ]
    assert "| fp32 | 98.00% | 99.00% | 100.00% | 99.00% | 1.00 | 98.00% | 100.00% | 10.0 |" in table(figures)


def test_failed_runs_are_listed_and_the_others_averaged():
    failed = {"failed": "non-finite gradients for 18 steps"}
    figures = mode_figures({"fp32": runs(98, 99), "O3-fp16": [failed, *runs(90)], "O2-fp16": [failed, failed]})
    assert figures["O3-fp16"]["mean"] == 90
    assert figures["O3-fp16"]["below_baseline"] is True
    assert figures["O2-fp16"]["below_baseline"] is None
    assert "| O3-fp16 | failed | 90.00% | 90.00% |  | 90.00% | 90.00% | 10.0 |" in table(figures)
    assert "- O3-fp16, seed 0: failed: non-finite gradients for 18 steps" in verdicts(figures)
    assert any(line.startswith("- O2-fp16: no verdict") for line in verdicts(figures))


def test_one_seed_gives_no_verdict():
    figures = mode_figures({"fp32": runs(98), "O1-bf16": runs(10)})
    assert figures["O1-bf16"]["below_baseline"] is None


@pytest.mark.slow
def test_each_mode_is_trained_with_each_seed(tmp_path, capsys, monkeypatch):
    """Two of the four runs are real: each takes several seconds."""
    real = {("fp32", 1), ("O1-bf16", 0)}
    monkeypatch.setattr(
        compare_precision,
        "train",
        lambda argv, mode, seed, output: train(argv, mode, seed, output) if (mode, seed) in real else runs(12.5)[0],
    )
    flags = ["-modes", "fp32,O1-bf16", "-seeds=2", f"-json={tmp_path / 'a.json'}", "-output", str(tmp_path / "runs")]
    assert compare_precision.main([*flags, *TINY]) == 0
    printed = capsys.readouterr().out
    header = "\n| mode | seed 0 | seed 1 | mean | standard deviation | min | max | training (s) |"
    for start in (header, "\n| fp32 |", "\n| O1-bf16 |", "\n- O1-bf16: "):
        assert start in printed
    result = json.loads((tmp_path / "a.json").read_text())
    assert result["seeds"] == 2
    for mode, seed in real:
        (folder,) = (tmp_path / "runs" / f"{mode}-seed{seed}").iterdir()
        assert json.loads((folder / "result.json").read_text())["top1"] == result["modes"][mode]["top1"][seed]
        options = (folder / "config.yaml").read_text()
        assert f"SEED: {seed}\n" in options
        assert f"ENABLED: {'false' if mode == 'fp32' else 'true'}\n" in options


@pytest.mark.slow
def test_a_failed_run_is_a_result(tmp_path):
    found = train([f"-pretrained={tmp_path / 'none.pth'}", *TINY], "fp32", 0, tmp_path)
    assert "none.pth" in found["failed"]
    assert not found["failed"].startswith("error")
