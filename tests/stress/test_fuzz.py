"""The fuzzer's cases, a few of each kind, and what it makes of a reader that fails, hangs or takes too much."""

import json
import time

import fuzz
import numpy as np
import pytest
from fuzz import _peak_bytes, read_cases, try_case
from fuzz_cases import KINDS, Kind, make_case
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["images", "configs", "pdparams", "weights", "cifar", "packed"])
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(number=st.integers(0, 10**9))
def test_damage_is_read_or_refused(kind, number, tmp_path):
    assert not try_case(kind, seed=1, number=number, folder=tmp_path).startswith("finding")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", KINDS)
def test_the_undamaged_examples_are_read(kind, tmp_path):
    answers = []
    for data in KINDS[kind].examples():
        try:
            KINDS[kind].read(data, tmp_path)
            answers.append("read")
        except Exception as error:
            answers.append(str(error))
    assert answers.count("read") >= len(answers) / 2, answers


def test_a_case_is_a_function_of_its_number():
    assert make_case("images", 0, 7) == make_case("images", 0, 7) != make_case("images", 1, 7)


@pytest.fixture
def bad_kind(monkeypatch):
    def read(data, folder):
        if data == b"slow":
            end = time.process_time() + 1.1
            while time.process_time() < end:
                pass
        elif data == b"large":
            np.ones(_peak_bytes(), "u1")
        else:
            raise KeyError("a bug")

    monkeypatch.setattr(fuzz, "LARGEST_BYTES", 100 << 20)
    monkeypatch.setitem(KINDS, "bad", Kind(list, read))
    monkeypatch.setattr("fuzz_cases.make_case", lambda kind, seed, number: [b"bug", b"slow", b"large"][number])
    monkeypatch.setattr(fuzz.resource, "setrlimit", lambda *_: None)  # this process goes on


def test_what_a_child_finds(bad_kind, capsys):
    read_cases("bad", 0, range(3))
    outcomes = [json.loads(line)[3] for line in capsys.readouterr().out.splitlines()]
    assert outcomes[0] == "finding: KeyError: 'a bug'"
    assert outcomes[1].startswith("finding: took 1.")
    assert outcomes[2].startswith("finding: took") and outcomes[2].endswith("GB")


def test_a_child_that_hangs_or_dies_is_replaced(monkeypatch):
    monkeypatch.setattr(fuzz, "HANG_SECONDS", 0.3)
    script = """import os, sys, time
first = int(sys.argv[sys.argv.index("-child") + 1])
for number in range(first, 6):
    if number == 2: time.sleep(60)
    if number == 4: os._exit(3)
    print(f'[{number}, 0.0, 0, "accepted"]', flush=True)
"""
    monkeypatch.setattr(fuzz, "__file__", "child.py")
    original = fuzz.subprocess.Popen
    monkeypatch.setattr(
        fuzz.subprocess, "Popen", lambda command, **more: original([command[0], "-c", script, *command[4:]], **more)
    )
    result = fuzz.fuzz("images", 0, 6)
    assert [(finding["case"], finding["what"][:6]) for finding in result["findings"]] == [(2, "hung f"), (4, "died w")]
    assert result["outcomes"]["accepted"] == 4


def test_the_script_reads_and_reports(tmp_path, capsys):
    assert fuzz.main(["images", "-n", "20", "-json", str(tmp_path / "a.json"), "-output", str(tmp_path)]) == 0
    assert "| images | 20 |" in capsys.readouterr().out
    assert json.loads((tmp_path / "a.json").read_text())["kinds"]["images"]["findings"] == []
