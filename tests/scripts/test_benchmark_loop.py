"""benchmark_loop.py runs; no test here asserts a time."""

import json

from conftest import GREY, TINY_VIT

from scripts.benchmarks import benchmark_loop


def test_all_loops_are_measured(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(benchmark_loop, "GROUPS", 2)
    argv = [f"-json={tmp_path / 'loop.json'}", "-dataset=digits", "-batch_size=4", "-opts", *TINY_VIT, *GREY]
    assert benchmark_loop.main(argv) == 0
    figures = json.loads((tmp_path / "loop.json").read_text())
    assert {"ours", "bare", "guarded", "ours / bare", "guarded / ours", "guard_share"} <= figures.keys()
    assert "| guarded | " in capsys.readouterr().out
