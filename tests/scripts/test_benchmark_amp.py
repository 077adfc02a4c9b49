"""benchmark_amp.py: options of the modes, and small real runs. No test here asserts a time."""

import argparse
import json
import signal
from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from conftest import GREY, TINY_VIT
from torch import nn

from configs.reading.command_line import parse_command_line
from configs.schema import Config
from engine.training.optimization.optimizer import build_optimizer
from scripts.benchmarks import benchmark_amp, documents, turns
from scripts.benchmarks.benchmark_amp import largest_batch, parse_flags, rows_of
from scripts.benchmarks.programs import MODES, Program, mode_config
from utils.errors import UserError
from utils.signals import Interrupted

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
        (["-dataset=digits"], ["-dataset", "-loader"]),
        (["-data_path=flowers"], ["-data_path", "-loader"]),
        (["-table=paddlevit", "-modes=fp32"], ["-table", "-modes"]),
        (["-table=paddle", "-lr=8"], ["-table paddle"]),
        (["-table=paddle", "-epochs=1,2"], ["-epochs"]),
        (["-width=8"], ["-width", "-table paddle"]),
        (["-table=caltech256", "-batch_size=8"], ["-batch_size"]),
        (["-epochs=50,90"], ["-epochs", "-accuracy"]),
        (["-accuracy", "-epochs=50,x"], ["-epochs"]),
        (["-table=colossalai"], ["-memory_gb"]),
        (["-opts", "TRAIN.BATCH=1"], ["TRAIN.BATCH"]),
    ],
)
def test_mistakes_are_reported_before_the_measurements(argv, said, monkeypatch):
    monkeypatch.setattr(benchmark_amp, "compare", lambda *_: pytest.fail("a measurement started"))
    with pytest.raises(UserError) as error:
        benchmark_amp.main(argv)
    assert all(word in str(error.value) for word in said)


# The tables of the documents


def configs_of(flags: argparse.Namespace, rest: list[str]) -> dict[str, Config]:
    return {row: parse_command_line([*rest, "-opts", *options]).config for row, options in rows_of(flags).items()}


def test_the_settings_are_the_documents_and_the_users_flags_replace_them(monkeypatch):
    flags, rest = parse_flags(["-table=paddlevit"])
    off, on = configs_of(flags, rest).values()
    assert (flags.rounds, flags.steps, on.data.batch_size, on.model.name) == (7, 100, 64, "vit_base_patch16_224")
    assert (off.amp.enabled, on.amp.enabled, on.amp.level) == (False, True, "O1")
    flags, rest = parse_flags(["-table=colossalai", "-memory_gb=9", "-batch_size=8", "-opts", "TRAIN.WEIGHT_DECAY=0.0"])
    configs = list(configs_of(flags, rest).values())
    assert [config.amp.preset for config in configs] == ["fp32", "torch", "naive", "apex_o1"]
    assert (configs[0].data.batch_size, configs[0].train.weight_decay) == (8, 0.0)
    optimizer = build_optimizer(nn.Linear(2, 2), configs[0].train)
    assert isinstance(optimizer, torch.optim.SGD) and optimizer.defaults["momentum"] == 0
    flags, rest = parse_flags(["-table=paddle"])
    assert flags.steps == 50
    assert [config.train.accum_iter for config in configs_of(flags, rest).values()] == [1, 1, 10]
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


@pytest.mark.parametrize("name", documents.DOCUMENTS)
def test_a_published_row_has_a_cell_per_column(name):
    document = documents.DOCUMENTS[name]
    for rows in document.published:
        assert len(rows) in (0, len(document.rows)) and {row.count("|") + 1 for row in rows} <= {len(document.columns)}


@pytest.mark.parametrize(
    ("overhead", "limit", "reason", "found"),
    [
        (0, 50e9, "", 240), (4e9, 50e9, "", 216), (4e9, 50e9, "ended by SIGKILL", 216), (0, 28e9, "", 128),
        (4e9, 50e9, "not done within 60 s", 216),
    ],
)  # fmt: skip
def test_the_largest_batch_size_fits_into_the_memory(overhead, limit, reason, found):
    """Peak: 2 GB and 0.2 GB per image; from 200 images on also an overhead."""

    def run(batch_size: int) -> dict[str, float]:
        peak = 2e9 + 0.2e9 * batch_size + overhead * (batch_size > 200)
        if peak > limit:
            raise UserError(reason or "out of memory")
        return {"peak_memory_bytes": peak, "images_per_second": 5.0}

    largest = largest_batch(run, 128, run(128), limit)
    by_time = {"at_least": found} if "within" in reason else {}
    assert largest == {"largest_batch_size": found, "largest_images_per_second": 5.0, **by_time}


@pytest.mark.parametrize("search", [True, False])
def test_a_signal_and_a_search_without_images_keep_the_measured_rows(monkeypatch, capsys, search):
    """45 images, as of a small data set; the search of the second row receives SIGTERM."""
    sizes = []

    def run_turn(program: Program, warmup: int, steps: int, limit: int, size: int) -> dict[str, float]:
        sizes.append(size)
        if sizes.count(128) > 1:
            raise Interrupted(signal.SIGTERM)
        if size > 45:
            raise UserError(f"45 training samples do not fill one batch of {size} on 1 device(s)")
        return {"peak_memory_bytes": 1e9, "images_per_second": 5.0, "cpu_seconds_per_second": 2.0, "data_wait_share": 0}

    monkeypatch.setattr(benchmark_amp, "run_turn", run_turn)
    argv = ["-table=colossalai", "-loader", "-batch_size=8", "-num_workers=0"]
    with pytest.raises(Interrupted) if search else nullcontext():
        benchmark_amp.main([*argv, "-memory_gb=2" if search else "-no_search"])
    rows = [line for line in capsys.readouterr().out.splitlines() if line.endswith("0% |")]
    assert [(">= 40" in row, "| 1.0 |" in row) for row in rows] == [(False, True)] * 3 + [(search, True)]


def test_a_mode_that_needs_more_memory_is_shown_as_such(monkeypatch, capsys):
    """The rows with AMP fit into 2 GB."""

    def run_turn(program: Program, *_: float) -> dict[str, float]:
        needed = 2e9 if any(word == "AMP.PRESET=torch" for word in program.command) else 2.5e9
        return {"peak_memory_bytes": needed, "images_per_second": 5.0, "cpu_seconds_per_second": 2.0}

    monkeypatch.setattr(benchmark_amp, "run_turn", run_turn)
    benchmark_amp.main(["-table=caltech256", "-memory_gb=2.2", "-rounds=2"])
    printed = capsys.readouterr().out
    assert printed.count("fp32 | failed: out of memory: needs") == 2 and printed.count("AMP | ") == 2


def test_paddles_table_takes_the_sizes_of_the_user(monkeypatch, capsys):
    given = []
    monkeypatch.setattr(
        documents,
        "train_linears",
        lambda config, *rest: given.append((config.data.batch_size, *rest[1:])) or {"loss": 1.0, "seconds": 2.0},
    )
    benchmark_amp.main(["-table=paddle", "-batch_size=8", "-steps=1", "-epochs=2", "-width=16"])
    benchmark_amp.main(["-table=paddle"])
    assert given == [(8, 1, 2, 16)] * 3 + [(512, 50, 5, 4096)] * 3 and "2.000 sec" in capsys.readouterr().out


def paddle_config(row: str) -> Config:
    return parse_command_line(["-batch_size=8", "-opts", *documents.DOCUMENTS["paddle"].rows[row]]).config


@pytest.mark.parametrize(("mode", "accumulated"), [("default", 1), ("AMP, accumulation", 10)])
def test_paddles_network_equals_a_plain_loop(mode, accumulated):
    """Width 32, batch size 8, 10 batches; Paddle's initial values give a loss near 1.25."""
    found = documents.train_linears(paddle_config(mode), torch.device("cpu"), 10, epochs=5, width=32)
    generator = torch.Generator().manual_seed(0)
    bound = (6 / (32 + 32)) ** 0.5  # Xavier
    weights = [nn.Parameter(torch.empty(32, 32).uniform_(-bound, bound, generator=generator)) for _ in range(3)]
    biases = [nn.Parameter(torch.zeros(32)) for _ in range(3)]
    data = torch.randn(10, 2, 8, 32, generator=generator)
    for step in range(50):
        outputs = data[step % 10, 0]
        for number, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
            outputs = F.linear(outputs.relu() if number else outputs, weight, bias)
        loss = (outputs - data[step % 10, 1]).square().mean()
        loss.backward()
        if (step + 1) % accumulated == 0:
            for parameter in (*weights, *biases):
                parameter.data -= 1e-4 * parameter.grad
                parameter.grad = None
    assert found["loss"] == pytest.approx(loss.item(), rel=1e-2 if mode != "default" else 1e-6)
    assert 1.0 < loss.item() < 1.5


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
