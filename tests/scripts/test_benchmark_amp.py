"""benchmark_amp.py: options of the modes, and small real runs. No test here asserts a time."""

import json

import pytest
import torch
from conftest import GREY, TINY_VIT

from scripts.benchmarks import benchmark_amp
from scripts.benchmarks.common import MODES, mode_config
from utils.errors import UserError

TINY = ["-batch_size=16", "-dataset=digits", "-opts", *TINY_VIT, *GREY]


@pytest.fixture(autouse=True)
def on_a_cpu(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


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
        (["-rounds=0"], ["-rounds"]),
        (["-roundes=2"], ["-roundes", "-rounds"]),
        (["-json=/no/such/folder/a.json"], ["-json"]),
        (["-max_batch"], ["-max_batch", "scripts/plan.py"]),
        (["-repeats=2"], ["-repeats", "-rounds"]),
        (["-opts", "TRAIN.BATCH=1"], ["TRAIN.BATCH"]),
    ],
)
def test_mistakes_are_reported_before_the_measurements(argv, said, monkeypatch):
    monkeypatch.setattr(benchmark_amp, "measure_programs", lambda *_: pytest.fail("a measurement started"))
    with pytest.raises(UserError) as error:
        benchmark_amp.main(argv)
    assert all(word in str(error.value) for word in said)


@pytest.mark.slow
def test_a_run_prints_the_tables_and_writes_the_figures(tmp_path, capsys):
    flags = ["-modes=fp32,O1-bf16", "-rounds=1", "-warmup=1", "-steps=2", "-interval=1", f"-json={tmp_path / 'a.json'}"]
    benchmark_amp.main([*flags, *TINY])
    printed = capsys.readouterr().out
    for start in ("|  | seconds per 100 iterations | images/s |", "| O1-bf16 | ", "| O1-bf16 / fp32"):
        assert f"\n{start}" in printed
    result = json.loads((tmp_path / "a.json").read_text())
    assert (result["environment"]["torch"], result["environment"]["batch_size"]) == (torch.__version__, 16)
    for one in result["figures"].values():
        assert one["peak_memory_bytes"][0] > 1e8 and one["images_per_second"][0] > 0


@pytest.mark.slow
def test_each_mode_is_trained_with_each_seed(tmp_path, capsys, monkeypatch):
    """One of the four runs is real."""
    argv = [*TINY, "TRAIN.NUM_EPOCHS=1", "TRAIN.BASE_LR=1e-3"]
    train = benchmark_amp.train
    monkeypatch.setattr(
        benchmark_amp, "train", lambda *given: train(*given) if given[1:3] == ("O1-bf16", 1) else {"top1": 12.5}
    )
    file, output = tmp_path / "a.json", tmp_path / "runs"
    flags = ["-accuracy", "-modes=fp32,O1-bf16", "-seeds=2", f"-json={file}", f"-output={output}"]
    assert benchmark_amp.main([*flags, *argv]) == 0
    assert "\n| fp32 | 2 | 12.50 |" in capsys.readouterr().out
    (folder,) = (output / "O1-bf16-seed1").iterdir()
    top1 = json.loads(file.read_text())["figures"]["O1-bf16"]["top1"]
    assert top1 == [12.5, json.loads((folder / "result.json").read_text())["top1"]]
    assert "SEED: 1\n" in (folder / "config.yaml").read_text()
