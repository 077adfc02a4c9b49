"""What is found once on a machine."""

import json
import time
from concurrent.futures import ProcessPoolExecutor
from itertools import count
from pathlib import Path

import pytest

from utils.cache import cache_folder, found_once

QUESTION = {"what": "speed", "shape": [2, 3]}


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("AMPVIT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_question_is_asked_once(folder):
    answers = count()
    assert [found_once(QUESTION, lambda: next(answers)) for _ in range(3)] == [0, 0, 0]
    assert found_once(QUESTION | {"shape": [2, 4]}, lambda: next(answers)) == 1
    assert len(list(folder.iterdir())) == 2


def test_a_damaged_answer_is_found_anew_and_kept(folder):
    found_once(QUESTION, lambda: "first")
    (file,) = folder.iterdir()
    for damaged in ("", "[]", json.dumps({"question": QUESTION})):
        file.write_text(damaged)
        assert found_once(QUESTION, lambda: "second") == "second"
        assert found_once(QUESTION, lambda: "third") == "second"


def test_who_is_slower_takes_the_answer_of_who_was_quicker(folder):
    assert found_once(QUESTION, lambda: found_once(QUESTION, lambda: "quick") and "slow") == "quick"
    assert found_once(QUESTION, lambda: "later") == "quick"


def test_processes_that_ask_at_once_agree(folder):
    with ProcessPoolExecutor(4) as pool:
        assert len(set(pool.map(_ask, range(32)))) == 1


def _ask(number: int) -> int:
    return found_once(QUESTION, lambda: time.sleep(0.05) or number)


def test_without_a_place_to_keep_it_it_is_asked_each_time(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    for place in ("", str(tmp_path / "file" / "below")):
        monkeypatch.setenv("AMPVIT_CACHE", place)
        answers = count()
        assert cache_folder() is None
        assert [found_once(QUESTION, lambda answers=answers: next(answers)) for _ in range(2)] == [0, 1]


def test_the_place_follows_the_desktop_convention(monkeypatch, tmp_path):
    monkeypatch.delenv("AMPVIT_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "ampvit"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_folder() == tmp_path / "home" / ".cache" / "ampvit"
