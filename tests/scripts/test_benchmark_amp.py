"""benchmark_amp.py: options of the modes, and small real runs. No test here asserts a time."""

import json

import pytest
import torch
import torch.nn.functional as F
from conftest import GREY, TINY_VIT
from fake_gpu import GPU, fake_gpu
from torch import nn

from configs.reading.command_line import parse_command_line
from engine.training.optimization.optimizer import build_optimizer
from scripts.benchmarks import benchmark_amp, documents, paddle_net
from scripts.benchmarks.benchmark_amp import largest_batch, parse_flags, rows_of
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
        (["-dataset=digits"], ["-dataset", "-loader"]),
        (["-data_path=flowers"], ["-data_path", "-loader"]),
        (["-table=paddlevit", "-modes=fp32"], ["-table", "-modes"]),
        (["-table=paddle", "-batch_size=8"], ["-table paddle", "-batch_size=8"]),
        (["-table=colossalai"], ["-memory_gb"]),
        (["-opts", "TRAIN.BATCH=1"], ["TRAIN.BATCH"]),
    ],
)
def test_mistakes_are_reported_before_the_measurements(argv, said, monkeypatch):
    monkeypatch.setattr(benchmark_amp.turns, "take_turns", lambda *_: pytest.fail("a measurement started"))
    with pytest.raises(UserError) as error:
        benchmark_amp.main(argv)
    assert all(word in str(error.value) for word in said)


def test_the_default_model_fits_the_device(monkeypatch, capsys):
    def default() -> tuple[str, int]:
        config = mode_config(parse_flags([])[1], "fp32")
        assert f"-batch_size={config.data.batch_size}" in capsys.readouterr().err
        return config.model.name, config.data.batch_size

    assert default() == ("vit_tiny_patch16_224", 32)
    monkeypatch.setattr(benchmark_amp, "visible_gpus", lambda: 1)
    for gigabytes, batch_size in ((80, 64), (16, 56), (6, 16)):
        monkeypatch.setattr(benchmark_amp, "gpu_memory_bytes", lambda gigabytes=gigabytes: gigabytes * 10**9)
        assert default() == ("vit_base_patch16_224", batch_size)
    assert parse_flags(["-model=vit_digits"])[1] == ["-model=vit_digits"]


# The tables of the documents


def test_the_settings_are_the_documents_and_the_users_flags_replace_them(monkeypatch):
    flags, rest = parse_flags(["-table=paddlevit"])
    config = parse_command_line(rest).config
    assert (flags.rounds, flags.steps, config.data.batch_size, config.model.name) == (
        7,
        100,
        64,
        "vit_base_patch16_224",
    )
    assert rows_of(flags) == {"AMP off": "fp32", "AMP on": "O1-bf16"}
    monkeypatch.setattr(benchmark_amp, "visible_gpus", lambda: 1)
    flags, rest = parse_flags(["-table=colossalai", "-batch_size=8", "-opts", "TRAIN.WEIGHT_DECAY=0.0"])
    config = parse_command_line(rest).config
    assert list(rows_of(flags).values()) == ["fp32", "O1-fp16", "O2-fp16", "O1-fp16"]
    assert (config.data.batch_size, config.train.weight_decay) == (8, 0.0)
    optimizer = build_optimizer(nn.Linear(2, 2), config.train)
    assert isinstance(optimizer, torch.optim.SGD) and not (
        optimizer.defaults["nesterov"] or optimizer.defaults["momentum"]
    )
    assert parse_flags(["-table=paddle"])[0].steps == 50


def test_the_speedup_is_the_ratio_of_the_averages():
    """Published: 78.29 s / 41.14 s = 1.903."""
    measured = {"AMP off": {"seconds": [4.0, 2.0]}, "AMP on": {"seconds": [1.0, 3.0]}}
    table = documents.published_table(measured, documents.DOCUMENTS["paddlevit"].published[0], documents.PADDLEVIT)
    header, _, *rows = table.splitlines()
    assert header == "|  | 1st | 2nd | 3rd | 4th | 5th | 6th | 7th | Average | Speedup |"
    assert rows == [
        "| AMP off | 4s | 2s |  |  |  |  |  | 3.00s | - |",
        "| AMP off, published | 78s | 78s | 79s | 78s | 78s | 79s | 78s | 78.29s | - |",
        "| AMP on | 1s | 3s |  |  |  |  |  | 2.00s | 1.500 |",
        "| AMP on, published | 42s | 41s | 41s | 41s | 41s | 41s | 41s | 41.14s | 1.903 |",
    ]


def test_colossalais_iterations_follow_from_its_images_per_second():
    document = documents.DOCUMENTS["colossalai"]
    for published, iterations in zip(document.published, ("2.95 3.25 3.53 3.07", "0.84 0.91 0.93 0.90"), strict=True):
        figures = {row: {"failed": "out of memory"} for row in document.rows}
        rows = documents.published_table(figures, published, document.columns).splitlines()[2:]
        assert [row.split(" | ")[2] for row in rows[1::2]] == iterations.split()
        assert all("failed: out of memory" in row for row in rows[::2])


@pytest.mark.parametrize(
    ("overhead", "limit", "reason", "found"),
    [(0, 50e9, "", 240), (4e9, 50e9, "", 208), (4e9, 50e9, "out of GPU memory", 208), (0, 2.5e9, "", {})],
)
def test_the_largest_batch_size_fits_into_the_memory(overhead, limit, reason, found):
    """Peak: 2 GB and 0.2 GB per image; from 200 images on also an overhead. A run above the limit may end itself."""

    def run(batch_size: int) -> dict[str, float]:
        peak = 2e9 + 0.2e9 * batch_size + overhead * (batch_size > 200)
        if reason and peak > limit:
            raise UserError(reason)
        return {"peak_memory_bytes": peak, "images_per_second": 5.0}

    largest = largest_batch(run, 128, run(64)["peak_memory_bytes"] + 12.8e9, limit)
    assert largest == (found and {"largest_batch_size": found, "largest_images_per_second": 5.0})


@pytest.mark.parametrize(("mode", "accumulated"), [("default", 1), ("AMP, accumulation", 10)])
def test_paddles_network_equals_a_plain_loop(mode, accumulated):
    """Width 32, batch size 8, 10 batches; Paddle's initial values give a loss near 1.25."""
    found = paddle_net.train(torch.device("cpu"), 10, mode, width=32, batch_size=8)
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


def test_paddles_network_on_a_gpu_computes_in_float16(monkeypatch):
    computed = set()

    def mse_loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        computed.add((outputs.dtype, outputs.device))
        return (outputs - targets).square().mean()

    monkeypatch.setattr(paddle_net.F, "mse_loss", mse_loss)
    monkeypatch.setattr(paddle_net, "timed", lambda work, _: work() or 1.0)
    with fake_gpu():
        monkeypatch.setattr(torch.Tensor, "item", lambda _: 0.0)
        paddle_net.train(GPU, 10, "AMP, accumulation", width=16, batch_size=8)
    assert computed == {(torch.float16, GPU)}


# Runs


@pytest.mark.slow
def test_a_run_prints_the_tables_and_writes_the_figures(tmp_path, capsys):
    flags = [
        "-loader",
        "-modes=fp32,O1-bf16",
        "-rounds=1",
        "-warmup=1",
        "-steps=2",
        "-interval=1",
        f"-json={tmp_path / 'a.json'}",
    ]
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
