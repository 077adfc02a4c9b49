"""The programs of this folder start, and detect wrong outcomes."""

import contextlib
import subprocess
import sys

import fuzz
import pytest
import run_all
from conftest import ROOT
from faults import runner
from faults.catalogue import all_faults
from faults.runner import Fault, run_fault
from faults.scene import Scene
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from utils.errors import UserError

_SLOW = {"runs": pytest.mark.slow}  # its example is a run that is trained
WRONG_OUTCOMES = {
    "echo Traceback": "a traceback",
    "echo error: another": "another error line",
    "exit 3": "status 3",
    "touch .last.pth.tmp": "a temporary file is left: .last.pth.tmp",
    "mkdir -p output/run; echo x > output/run/last.pth": "no good checkpoint in run",
    "sleep 60 & sleep 0.3": "1 process(es) left: sleep 60",  # the pause lets the first one start
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", [pytest.param(kind, marks=_SLOW.get(kind, ())) for kind in fuzz.KINDS])
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(number=st.integers(0, 10**9))
def test_damaged_inputs_are_read_or_refused(kind, number, tmp_path):
    assert not fuzz.try_case(kind, seed=1, number=number, folder=tmp_path).startswith("finding")


@pytest.mark.filterwarnings("ignore")
def test_undamaged_examples_are_read(tmp_path):
    """Else each damaged one is refused for another reason than its damage."""
    for name in fuzz.KINDS.keys() - _SLOW.keys():
        accepted = 0
        for data in (examples := fuzz.KINDS[name].examples()):
            with contextlib.suppress(UserError):
                fuzz.KINDS[name].read(data, tmp_path)
                accepted += 1
        assert accepted >= len(examples) / 2, name


def test_wrong_outcomes_are_detected(tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "GRACE_SECONDS", 0.1)
    for number, (shell, problem) in enumerate(WRONG_OUTCOMES.items()):
        (folder := tmp_path / str(number)).mkdir()
        outcome = run_fault(Fault("bad", lambda scene: [], "wanted", shell=shell), Scene(folder, tmp_path))
        assert problem in "".join(outcome.failures)
    monkeypatch.setitem(fuzz.KINDS, "bad", fuzz.Kind(lambda: [b"x"], lambda data, folder: [][0]))
    assert len(fuzz.fuzz("bad", 0, 2, tmp_path).failures) == 2


def test_faults_have_different_names():
    names = [fault.name for fault in all_faults()]
    assert len(set(names)) == len(names)
    assert f"| {len(names)} provoked faults" in (ROOT / "README.md").read_text()


@pytest.mark.slow
def test_each_program_starts_without_the_paths_of_pytest():
    for name in {command[0] for command in run_all._ALL} | {"run_all.py"}:
        command = [sys.executable, ROOT / "tests" / "stress" / name, "-h"]
        printed = subprocess.run(command, capture_output=True, text=True, cwd="/")
        assert printed.returncode == 0 and not printed.stderr
