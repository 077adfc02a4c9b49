"""The parts that all benchmarks share: turns, ratios, tables, seeds, reasons of failures. No test asserts a time."""

import json

import pytest

from scripts.benchmarks.turns import ratio_table, seed_table, speed_ratios, take_turns
from utils.errors import UserError


def test_contenders_take_turns_and_one_that_failed_gets_no_more(tmp_path):
    file, turns, written = tmp_path / "a.json", [], []

    def measure(name: str, number: int) -> dict[str, float]:
        if turns:
            written.append(json.loads(file.read_text())["figures"])
        turns.append((name, number))
        if name == "b" and number == 1:
            raise UserError("no memory")
        return {"images_per_second": len(turns)}

    figures = {name: {} for name in "abc"}
    take_turns(figures, 3, measure, file)
    assert [name for name, _ in turns] == [*"abc", *"cba", *"ac"]
    assert figures["a"] == {"images_per_second": [1, 6, 7]}
    assert figures["b"] == {"images_per_second": [2], "failed": "no memory"}
    assert json.loads(file.read_text())["figures"] == figures
    assert written[0] == {"a": {"images_per_second": [1]}, "b": {}, "c": {}} and len(written) == 7
    with pytest.raises(UserError, match="b: no memory"):
        take_turns({"b": {}}, 2, lambda name, _: measure(name, 1), None)


def test_a_ratio_compares_turns_of_one_round():
    speeds = {"jpeg": [30.0, 90.0, 40.0], "timm": [20.0, 30.0], "ready": [30.0, 90.0, 50.0]}
    figures = {name: {"images_per_second": values} for name, values in speeds.items()} | {"bare": {"failed": "why"}}
    pairs = [("jpeg", "timm"), ("jpeg", "ready"), ("jpeg", "bare")]
    assert speed_ratios(figures, pairs) == {"jpeg / timm": [1.5, 3.0], "jpeg / ready": [1.0, 1.0, 0.8]}
    assert "| jpeg / ready | 1.000 (0.800 to 1.000) |" in ratio_table(figures, pairs)


def test_a_difference_is_shown_with_its_standard_error():
    top1 = {"fp32": [98, 99, 100], "O1": [98, 98, 98.2], "O2": [95]}
    figures = {name: {"top1": values} for name, values in top1.items()} | {"O3": {"top1": [90], "failed": "why"}}
    assert seed_table(figures, "fp32").splitlines()[2:] == [
        "| fp32 | 3 | 99.00 | 1.00 | 98.00 |  |",
        "| O1 | 3 | 98.07 | 0.12 | 98.00 | -0.93 +- 0.58 |",
        "| O2 | 1 | 95.00 |  | 95.00 |  |",
        "| O3 | failed: why |  |  |  |  |",
    ]
