"""benchmark_amp.py: options of the modes, and small real runs. No test here asserts a time."""

import argparse
import json
import signal

import pytest
from conftest import GREY, TINY_VIT

from configs.command_line import parse_command_line
from configs.schema import Config
from scripts.benchmarks import benchmark_amp, turns
from scripts.benchmarks.benchmark_amp import parse_flags, rows_of
from scripts.benchmarks.programs import MODES, Program
from utils.errors import UserError
from utils.signals import Interrupted

TINY = ["-batch_size=16", "-dataset=digits", "-opts", *TINY_VIT, *GREY]


@pytest.fixture(autouse=True)
def on_a_cpu(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def test_a_mode_overrides_the_options_of_the_user():
    argv = ["-amp_dtype=float16", "-opts", "SEED=3", "AMP.TF32=true"]
    configs = {mode: parse_command_line([*argv, "-opts", *MODES[mode]]).config for mode in MODES}
    fp32, o2 = configs["fp32"], configs["O2-bf16"]
    assert (fp32.amp.enabled, fp32.amp.tf32) == (False, False)
    assert (o2.amp.enabled, o2.amp.level, o2.amp.dtype, o2.seed) == (True, "O2", "bfloat16", 3)
    assert {name for name in MODES if configs[name].amp.level == "O3"} == {"O3-fp16", "O3-bf16"}


@pytest.mark.parametrize(("argv", "said"), [
    (["-modes=O1-bf61"], "-modes: unknown O1-bf61.*O1-bf16"), (["-modes=tf32"], "-modes: tf32 needs a GPU"),
    (["-rounds=0"], "-rounds"), (["-roundes=2"], "-roundes.*-rounds"), (["-json=/no/such/folder/a.json"], "-json"),
    (["-dataset=digits"], "-dataset.*-loader"), (["-table=paddlevit", "-modes=fp32"], "-table.*-modes"),
    (["-table=caltech256", "-batch_size=8"], "-batch_size"), (["-epochs=50,90"], "-epochs.*-accuracy"),
    (["-accuracy", "-epochs=50,x"], "-epochs"), (["-opts", "TRAIN.BATCH=1"], r"TRAIN\.BATCH"),
])  # fmt: skip
def test_mistakes_are_reported_before_the_measurements(argv, said, monkeypatch):
    monkeypatch.setattr(benchmark_amp, "compare", lambda *_: pytest.fail("a measurement started"))
    with pytest.raises(UserError, match=said):
        benchmark_amp.main(argv)


# The tables of the documents


def configs_of(flags: argparse.Namespace, rest: list[str]) -> dict[str, Config]:
    return {row: parse_command_line([*rest, "-opts", *options]).config for row, options in rows_of(flags).items()}


def test_the_settings_are_the_documents_and_the_users_flags_replace_them(monkeypatch):
    flags, rest = parse_flags(["-table=paddlevit"])
    off, on = configs_of(flags, rest).values()
    assert (flags.rounds, flags.steps, on.data.batch_size, on.model.name) == (7, 100, 64, "vit_base_patch16_224")
    assert (off.amp.enabled, on.amp.enabled, on.amp.level) == (False, True, "O1")
    flags, rest = parse_flags(["-table=paddlevit", "-batch_size=8", "-steps=7", "-opts", "TRAIN.WEIGHT_DECAY=0.0"])
    config = configs_of(flags, rest)["AMP off"]
    assert (flags.steps, config.data.batch_size, config.train.weight_decay) == (7, 8, 0.0)
    flags, rest = parse_flags(["-table=caltech256"])
    found = {row: (config.data.batch_size, config.amp.enabled) for row, config in configs_of(flags, rest).items()}
    assert found == {
        "256, fp32": (256, False), "256, AMP": (256, True), "512, fp32": (512, False), "512, AMP": (512, True)
    }  # fmt: skip
    assert flags.memory_gb == 6


def test_an_accuracy_table_has_a_row_per_mode_and_number_of_epochs():
    flags, rest = parse_flags(["-accuracy", "-epochs=50,250", "-modes=O1-bf16,fp32", "-cfg=configs/vit_digits.yaml"])
    found = {row: (one.train.num_epochs, one.amp.enabled) for row, one in configs_of(flags, rest).items()}
    assert found == {
        "fp32, 50 epochs": (50, False), "O1-bf16, 50 epochs": (50, True),
        "fp32, 250 epochs": (250, False), "O1-bf16, 250 epochs": (250, True),
    }  # fmt: skip


def test_the_speedup_is_the_ratio_of_the_averages(monkeypatch, capsys):
    """Published: 78.29 s / 41.14 s = 1.903."""
    measured = {"AMP off": {"seconds": [4.0, 2.0]}, "AMP on": {"seconds": [1.0, 3.0]}}
    monkeypatch.setattr(turns, "take_turns", lambda figures, *_: figures.update(measured))
    benchmark_amp.main(["-table=paddlevit"])
    header, _, *rows = capsys.readouterr().out.splitlines()[2:]
    assert header == "|  | 1st | 2nd | 3rd | 4th | 5th | 6th | 7th | Average | Speedup |"
    assert rows == [
        "| AMP off | 4s | 2s |  |  |  |  |  | 3.00s | - |",
        "| AMP off, published | 78s | 78s | 79s | 78s | 78s | 79s | 78s | 78.29s | - |",
        "| AMP on | 1s | 3s |  |  |  |  |  | 2.00s | 1.500 |",
        "| AMP on, published | 42s | 41s | 41s | 41s | 41s | 41s | 41s | 41.14s | 1.903 |",
    ]


def test_a_signal_keeps_the_measured_rows(monkeypatch, capsys):
    """The third row is interrupted."""
    sizes = []

    def run_turn(program: Program, warmup: int, steps: int, limit: int, size: int) -> dict[str, float]:
        sizes.append(size)
        if len(sizes) == 3:
            raise Interrupted(signal.SIGTERM)
        return {"peak_memory_bytes": 1e9, "images_per_second": 5.0, "cpu_seconds_per_second": 2.0, "data_wait_share": 0}

    monkeypatch.setattr(benchmark_amp, "run_turn", run_turn)
    options = ["-opts", "TRAIN.ACCUM_ITER=2"]
    with pytest.raises(Interrupted):
        benchmark_amp.main(["-loader", "-batch_size=16", "-modes=fp32,O1-bf16,O2-bf16", "-num_workers=0", *options])
    table = capsys.readouterr().out.split("\n\n")[1]
    _, _, fp32, o1, o2 = table.splitlines()
    assert sizes == [32] * 3  # images of an iteration: of all accumulated batches
    assert "5.0 (5.0 to 5.0) | 1.00 | 0% |" in fp32 and "5.0 (5.0 to 5.0) | 1.00 | 0% |" in o1
    assert "not measured" in o2


def test_a_mode_that_needs_more_memory_is_shown_as_such(monkeypatch, capsys):
    """The rows with AMP fit into 2 GB."""

    def run_turn(program: Program, *_: float) -> dict[str, float]:
        needed = 2e9 if any(word == "AMP.PRESET=torch" for word in program.command) else 2.5e9
        return {"peak_memory_bytes": needed, "images_per_second": 5.0, "cpu_seconds_per_second": 2.0}

    monkeypatch.setattr(benchmark_amp, "run_turn", run_turn)
    benchmark_amp.main(["-table=caltech256", "-memory_gb=2.2", "-rounds=2"])
    printed = capsys.readouterr().out
    assert printed.count("fp32 | failed: out of memory: needs") == 2 and printed.count("AMP | ") == 2


# Runs


@pytest.mark.slow
def test_each_mode_is_trained_with_each_seed(tmp_path, capsys, monkeypatch):
    """One of the four runs is real."""
    argv = [*TINY, "TRAIN.NUM_EPOCHS=1", "TRAIN.BASE_LR=1e-3"]
    train = benchmark_amp.final_top1
    monkeypatch.setattr(
        benchmark_amp, "final_top1", lambda *given: train(*given) if given[1].name == "O1-bf16-seed1" else 12.5
    )
    file, output = tmp_path / "a.json", tmp_path / "runs"
    flags = ["-accuracy", "-modes=fp32,O1-bf16", "-seeds=2", f"-json={file}", f"-output={output}"]
    assert benchmark_amp.main([*flags, *argv]) == 0
    assert "\n| fp32 | 2 | 12.50 |" in capsys.readouterr().out
    (folder,) = (output / "O1-bf16-seed1").iterdir()
    top1 = json.loads(file.read_text())["figures"]["O1-bf16"]["top1"]
    assert top1 == [12.5, json.loads((folder / "result.json").read_text())["top1"]]
    assert "SEED: 1\n" in (folder / "config.yaml").read_text()
