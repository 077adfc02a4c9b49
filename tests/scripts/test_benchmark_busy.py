"""benchmark_busy.py: what runs beside a program, and with which variable."""

import json
from contextlib import AbstractContextManager
from typing import Any

from scripts.benchmarks import benchmark_busy

SPEEDS = {"300000": 2.0, "1000": 5.0}
running: list[Any] = []


class Loop(AbstractContextManager):
    """A busy loop that uses no time. As with Popen, the end of the context waits for its process."""

    def __init__(self, command) -> None:
        running.append(self)

    def kill(self) -> None:
        running.remove(self)

    def __exit__(self, *error) -> None:
        assert self not in running


def test_turns_beside_busy_loops(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    seen = []

    def measure(program, *others):
        spins = program.command[1].removeprefix("GOMP_SPINCOUNT=")
        seen.append((spins, len(running)))
        return {"images_per_second": SPEEDS[spins]}

    monkeypatch.setattr(benchmark_busy, "run_turn", measure)
    monkeypatch.setattr(benchmark_busy, "Popen", Loop)
    argv = ["-loops=0,3", "-spins=300000,1000", "-rounds=1", f"-json={tmp_path / 'busy.json'}"]
    assert benchmark_busy.main(argv) == 0
    assert seen == [(s, n) for n in (0, 3) for s in SPEEDS]
    assert not running  # they end with their turn
    ratios = json.loads((tmp_path / "busy.json").read_text())["ratios"]
    assert list(ratios.values()) == [[2.5], [2.5]] and "3 busy loops, 1000 spins" in capsys.readouterr().out
