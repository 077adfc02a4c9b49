"""benchmark_amp.py: the rows and figures of its tables. No test here asserts a time."""

import signal

import pytest

from configs.command_line import parse_command_line
from scripts.benchmarks import benchmark_amp, turns
from scripts.benchmarks.benchmark_amp import parse_flags, rows_of
from scripts.benchmarks.programs import Program
from utils.errors import UserError
from utils.signals import Interrupted


@pytest.fixture(autouse=True)
def on_a_cpu(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.mark.parametrize(("argv", "said"), [
    (["-modes=O1-bf61"], "O1-bf16"), (["-modes=tf32"], "-modes"), (["-dataset=digits"], "-loader"),
    (["-table=caltech256", "-batch_size=8"], "-batch_size"), (["-table=paddlevit", "-modes=fp32"], "-modes"),
    (["-epochs=50,90"], "-accuracy"), (["-opts", "TRAIN.BATCH=1"], r"TRAIN\.BATCH"),
])  # fmt: skip
def test_mistakes_are_reported_before_the_measurements(argv, said, monkeypatch):
    monkeypatch.setattr(benchmark_amp, "compare", lambda *_: pytest.fail("a measurement started"))
    with pytest.raises(UserError, match=said):
        benchmark_amp.main(argv)


@pytest.mark.parametrize(("argv", "expected"), [
    (["-table=paddlevit"], {"AMP off": (64, None, 300), "AMP on": (64, "O1", 300)}),
    (["-table=caltech256"], {
        "256, fp32": (256, None, 10), "256, AMP": (256, "O1", 10), "512, fp32": (512, None, 10),
        "512, AMP": (512, "O1", 10),
    }),
    (["-accuracy", "-epochs=50,250", "-modes=O2-bf16,fp32", "-cfg=configs/vit_digits.yaml"], {
        "fp32, 50 epochs": (32, None, 50), "O2-bf16, 50 epochs": (32, "O2", 50),
        "fp32, 250 epochs": (32, None, 250), "O2-bf16, 250 epochs": (32, "O2", 250),
    }),
])  # fmt: skip
def test_rows_of_the_tables(argv, expected):
    """Batch size, level and epochs of each row; the user's flags replace those of a document."""
    flags, rest = parse_flags(argv)
    configs = {row: parse_command_line([*rest, "-opts", *options]).config for row, options in rows_of(flags).items()}
    assert {
        row: (one.data.batch_size, one.amp.level if one.amp.enabled else None, one.train.num_epochs)
        for row, one in configs.items()
    } == expected


def test_the_speedup_is_the_ratio_of_the_averages(monkeypatch, capsys):
    """Published: 78.29 s / 41.14 s = 1.903."""
    measured = {"AMP off": {"seconds": [4.0, 2.0]}, "AMP on": {"seconds": [1.0, 3.0]}}
    monkeypatch.setattr(turns, "take_turns", lambda figures, *_: figures.update(measured))
    benchmark_amp.main(["-table=paddlevit"])
    assert capsys.readouterr().out.splitlines()[4:] == [
        "| AMP off | 4s | 2s |  |  |  |  |  | 3.00s | - |",
        "| AMP off, published | 78s | 78s | 79s | 78s | 78s | 79s | 78s | 78.29s | - |",
        "| AMP on | 1s | 3s |  |  |  |  |  | 2.00s | 1.500 |",
        "| AMP on, published | 42s | 41s | 41s | 41s | 41s | 41s | 41s | 41.14s | 1.903 |",
    ]


def test_a_signal_keeps_the_measured_rows_and_a_limit_of_memory_is_a_result(monkeypatch, capsys):
    """The third row is interrupted; an iteration has the images of all accumulated batches."""
    sizes = []

    def run_turn(program: Program, warmup: int, steps: int, limit: int, size: int) -> dict[str, float]:
        sizes.append(size)
        if len(sizes) == 3:
            raise Interrupted(signal.SIGTERM)
        figures = {"images_per_second": 5.0, "cpu_seconds_per_second": 2.0, "data_wait_share": 0}
        return figures | {"peak_memory_bytes": 1e9 * len(sizes)}

    monkeypatch.setattr(benchmark_amp, "run_turn", run_turn)
    options = ["-memory_gb=1.5", "-num_workers=0", "-opts", "TRAIN.ACCUM_ITER=2"]
    with pytest.raises(Interrupted):
        benchmark_amp.main(["-loader", "-batch_size=16", "-modes=fp32,O1-bf16,O2-bf16", *options])
    _, _, fp32, o1, o2 = capsys.readouterr().out.split("\n\n")[1].splitlines()
    assert sizes == [32] * 3 and "5.0 (5.0 to 5.0) | 1.00 | 0% |" in fp32
    assert "out of memory: needs 2.00 GB" in o1 and "not measured" in o2
