"""Some faults of the catalogue; and fault_bench.py detects wrong outcomes."""

import json
import random

import fault_bench
import pytest
import torch
from faults.catalogue import all_faults
from faults.endurance import damaged_checkpoints, kills_while_saving, state_hash
from faults.runner import Fault, run_fault
from faults.scene import Scene

from utils.errors import UserError
from utils.metrics import NUM_SUMS

LIMIT_SECONDS = 60.0  # tests do not assert times
FAULTS = {fault.name: fault for fault in all_faults()}
REPRESENTATIVE = [
    "command line: misspelt flag",
    "command line: long unknown flag",
    "launcher: several processes of the single-device script",
    "recipe: a pipe",
    "recipe: a tag with code",
    "recipe: a base outside",
    "image: cut short",
    "weights: pdparams with code",
    "checkpoint: of another optimizer",
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return fault_bench.train_once(tmp_path_factory.mktemp("trained") / "run")


@pytest.mark.parametrize("name", REPRESENTATIVE)
def test_a_fault_has_the_expected_outcome(name, trained, tmp_path):
    outcome = run_fault(FAULTS[name], tmp_path, trained, LIMIT_SECONDS)
    assert not outcome.problems and not outcome.skipped, outcome


def test_names_in_the_catalogue_are_unique():
    assert len(FAULTS) == len(all_faults()) >= 60


WRONG_OUTCOMES = {
    "echo Traceback": "a traceback",
    "true": "0 error lines",
    "echo error: one; echo error: two": "2 error lines",
    "echo error: another": "another error line",
    "exit 3": "status 3",
    "touch .last.pth.tmp": "a temporary file is left: .last.pth.tmp",
    "mkdir -p output/run; echo x > output/run/last.pth": "no good checkpoint in run",
    "printf 'error: wanted \\033[2J\\n'": "an error line that is too long or has control characters",
    "sleep 60 & sleep 0.3": "1 process(es) left: sleep 60",  # the pause lets the first one start
    "sleep 60": "timeout",
}


@pytest.mark.parametrize("shell", WRONG_OUTCOMES)
def test_a_wrong_outcome_is_detected(shell, trained, tmp_path):
    fault = Fault("bad", lambda scene: [], "wanted", shell=shell, grace_seconds=0.1)
    outcome = run_fault(fault, tmp_path, trained, limit_seconds=0.1 if shell == "sleep 60" else LIMIT_SECONDS)
    assert WRONG_OUTCOMES[shell] in "; ".join(outcome.problems)


def test_the_table_and_the_json_file(trained, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(fault_bench, "train_once", lambda folder: trained)
    path = tmp_path / "faults.json"
    assert fault_bench.main(["-only", "command line: (no value|abbreviated)", "-json", str(path)]) == 0
    printed = capsys.readouterr().out
    assert "| command line: no value | status 1, `-cfg: expected one argument` | status 1, argument" in printed
    assert "2 faults: 2 as expected, 0 failed, 0 skipped" in printed
    assert [fault["problems"] for fault in json.loads(path.read_text())["faults"]] == [[], []]


def test_kills_and_damage(trained, tmp_path):
    rng = random.Random(0)
    before = state_hash(trained / "last.pth")
    assert kills_while_saving(tmp_path, trained, 20, rng)["failures"] == []
    assert damaged_checkpoints(tmp_path, trained, 100, 20, rng)["failures"] == []
    assert state_hash(tmp_path / "saves" / "last.pth") == before


def test_the_hash_depends_on_all_of_the_training_state(trained, tmp_path):
    state = state_hash(trained / "last.pth")
    for changes in ({"done_steps": 1}, {"ema": {}}, {"sums": torch.ones(NUM_SUMS)}):
        path = Scene(tmp_path / next(iter(changes)), trained).edited_checkpoint(**changes)
        assert state_hash(path) != state


def test_an_unknown_fault_is_refused(tmp_path):
    with pytest.raises(UserError, match="matches no fault"):
        fault_bench.main(["-only", "nonsense"])
