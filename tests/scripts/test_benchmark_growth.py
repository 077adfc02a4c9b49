"""benchmark_growth.py: growth is the last part over the second, and a memory leak is visible in it."""

import json

import pytest
from conftest import GREY, TINY_VIT

from engine.telemetry.reporter import Reporter
from scripts.benchmarks import benchmark_growth
from scripts.benchmarks.benchmark_growth import Part, growth


def test_growth_is_the_last_part_over_the_second():
    parts = [Part(9.0, 9, 9), Part(0.1, 100, 1000), *[Part(5.0, 5, 5)] * 7, Part(0.2, 150, 1100)]
    expected = {"growth of seconds_per_step": 2, "growth of memory_bytes": 1.5, "growth of objects": 1.1}
    assert growth(parts) == pytest.approx(expected)


@pytest.mark.parametrize("leaks", [False, True])
def test_a_leak_of_objects_is_visible(tmp_path, monkeypatch, leaks):
    kept: list[list] = []
    after_step = Reporter.after_step

    def leaking(self, progress) -> None:
        kept.extend([[]] for _ in range(20_000))
        after_step(self, progress)

    if leaks:
        monkeypatch.setattr(Reporter, "after_step", leaking)
    monkeypatch.setattr(benchmark_growth, "PARTS", 4)  # counting all live objects is slow
    file = tmp_path / "growth.json"
    argv = ["-dataset=digits", "-batch_size=8", "-steps=16", f"-json={file}", "-opts", *TINY_VIT, *GREY]
    assert benchmark_growth.main(argv) == 0
    found = json.loads(file.read_text())
    assert len(found["parts"]) == 4
    assert (found["growth of objects"] > 1.05) is leaks
