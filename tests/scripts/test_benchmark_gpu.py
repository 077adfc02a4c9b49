"""benchmark_gpu.py: commands and time limits of the parts, records, page."""

import sys
from pathlib import Path

import pytest

from configs.command_line import parse_command_line
from scripts.benchmarks import benchmark_gpu, benchmark_train
from scripts.benchmarks.benchmark_gpu import TRAINING, Part, build_parts, run_part
from scripts.flags import split_flags


def parts_of(*argv: str) -> dict[str, Part]:
    flags, rest = split_flags(benchmark_gpu._parser(), list(argv))
    return build_parts(flags, [*benchmark_gpu.DEFAULTS, *rest])


@pytest.fixture
def ran(monkeypatch) -> list[str]:
    """The parts that main runs, by a clock on which each takes its whole limit; `O1` fails."""
    names, clock = [], [0.0]

    def run(name: str, part: Part, _: Path) -> dict:
        clock[0] += part.limit_seconds
        names.append(name)
        figures = {"bare": {}, "ready": {"images_per_second": [5000.0], "peak_memory_bytes": [20e9]}}
        failed = {"bare": {}, "ready": {"failed": "a | b"}}
        outcome = "failed: why" if name == "O1" else "done"
        return {"outcome": outcome, "seconds": 1.0, "result": {"figures": failed if name == "O1" else figures}}

    monkeypatch.setattr(benchmark_gpu.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(benchmark_gpu, "run_part", run)
    return names


def test_the_same_command_runs_all_parts_in_calls_of_nine_minutes(ran, tmp_path, capsys):
    calls, statuses, argv = 0, [], [f"-output={tmp_path}", f"-timm_train={__file__}", "-opts", "SEED=3"]
    while calls < 20 and (not calls or "Not run yet: " in capsys.readouterr().out):
        calls += 1
        statuses.append(benchmark_gpu.main(argv))
        assert benchmark_gpu.time.monotonic() <= calls * (540 - benchmark_gpu.RESERVED_SECONDS)
    assert sorted(ran) == sorted(parts_of(*argv)) and ran[:5] == list(parts_of())[:5]
    assert set(ran) - set(parts_of()) == {"timm", "timm_eager"}
    assert statuses == [1, *[0] * (calls - 1)]
    page = (tmp_path / "figures.md").read_text()
    for row in ("O1 | failed: why | 1 |", "O1: O1-bf16, ready | failed: a \\| b |", "timm: O1-bf16, ready | 5000.0 "):
        assert f"| {row}" in page


def test_every_training_part_is_a_command_of_benchmark_train(tmp_path):
    made, configs = parts_of(f"-output={tmp_path}", f"-timm_train={__file__}", "-opts", "SEED=3"), {}
    for name, setting in TRAINING.items():
        command = made[name].command
        flags, rest = split_flags(benchmark_train._parser(), command[command.index("-u") + 2 :])
        rest = [*benchmark_train.DEFAULTS, *rest]
        configs[name] = config = parse_command_line(rest).config
        assert tuple(benchmark_train.checked_contenders(flags, rest)) == setting.programs
        assert config.data.batch_size == 256
        assert config.amp.enabled == setting.mode.startswith("O")
        assert config.train.compiles == setting.compiles
        images = flags.steps * config.data.batch_size
        assert images == pytest.approx(4096 if setting.mode == "fp32" else 16384, rel=0.3)
        assert config.seed == 3 or setting.model
    shipped = parse_command_line(["-cfg=configs/vit_base_patch16_224.yaml"]).config.model
    assert configs["dropout"].model == shipped
    assert configs["O1"].model.dropout == 0 < shipped.dropout
    assert configs["timm"].train.compile == "model"


HANGS = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open({file!r}, "w").write('{{"turns": 1}}')
print("the last line", flush=True)
time.sleep(100)
"""


def test_a_part_that_hangs_is_killed_and_keeps_its_result(tmp_path, monkeypatch):
    monkeypatch.setattr(benchmark_gpu, "TERMINATION_SECONDS", 0.2)
    part = Part([sys.executable, "-IS", "-c", HANGS.format(file=str(tmp_path / "one.json"))], limit_seconds=1.0)
    record = run_part("one", part, tmp_path)
    assert record["outcome"] == "stopped after 1 s; last line: the last line"
    assert record["result"] == {"turns": 1}
