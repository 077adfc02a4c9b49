"""The programs of this folder run, and detect wrong outcomes."""

import json
import mmap
import os
import subprocess
import sys
import time
from pathlib import Path

import doc_commands
import endure
import fault_bench
import fuzz
import numpy as np
import pytest
import run_all
import try_clusters
from conftest import ROOT
from faults import processes, runner
from faults.catalogue import all_faults
from faults.runner import Fault, run_fault
from faults.scene import Scene
from fuzz import KINDS, Kind
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pages.commands import read_commands
from pages.runner import Runner

from utils.errors import UserError

_SLOW = {"runs": pytest.mark.slow}  # its example is a run that is trained

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
    "sleep 60": "hangs",
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", [pytest.param(kind, marks=_SLOW.get(kind, ())) for kind in KINDS])
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(number=st.integers(0, 10**9))
def test_damaged_inputs_are_read_or_refused(kind, number, tmp_path):
    assert not fuzz.try_case(kind, seed=1, number=number, folder=tmp_path).startswith("finding")


@pytest.mark.filterwarnings("ignore")
def test_undamaged_examples_are_read(tmp_path):
    for name, kind in KINDS.items():
        if name in _SLOW:
            continue
        answers = []
        for data in kind.examples():
            try:
                kind.read(data, tmp_path)
                answers.append("read")
            except Exception as error:
                answers.append(str(error))
        assert answers.count("read") >= len(answers) / 2, (name, answers)


def test_fuzz_findings(tmp_path, monkeypatch):
    def read(data, folder):
        if data == b"large":
            np.frombuffer(mmap.mmap(-1, 64 << 20), "u1")[:] = 1  # new pages: malloc may reuse memory
        elif data == b"hangs":
            time.sleep(60)
        elif data == b"dies":
            fuzz.os._exit(3)
        elif data == b"bug":
            raise KeyError("a bug")

    cases = [b"fine", b"bug", b"dies", b"large", b"fine"]
    monkeypatch.setattr(fuzz, "MAX_BYTES", 20 << 20)
    monkeypatch.setitem(KINDS, "bad", Kind(list, read))
    monkeypatch.setattr(fuzz, "make_case", lambda kind, seed, number: cases[number])
    result = fuzz.fuzz("bad", 0, len(cases), tmp_path)
    problems = [failure.removeprefix(f"{tmp_path}/bad-0-") for failure in result.failures]
    assert [problem[:9] for problem in problems] == ["1: KeyErr", "2: died w", "3: used 0"]
    assert (tmp_path / "bad-0-1").read_bytes() == b"bug" and result.figures["accepted"] == 2

    monkeypatch.setattr(fuzz, "HANG_SECONDS", 0.3)
    monkeypatch.setattr(fuzz, "make_case", lambda kind, seed, number: b"hangs")
    assert "hung" in fuzz.fuzz("bad", 1, 1, tmp_path).failures[0]


def test_wrong_outcomes_are_detected(tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "GRACE_SECONDS", 0.1)
    for number, (shell, problem) in enumerate(WRONG_OUTCOMES.items()):
        monkeypatch.setattr(processes, "HANG_SECONDS", 0.1 if shell == "sleep 60" else 300.0)
        (folder := tmp_path / str(number)).mkdir()
        outcome = run_fault(Fault("bad", lambda scene: [], "wanted", shell=shell), Scene(folder, tmp_path))
        assert problem in "".join(outcome.failures)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["doc_commands", "endure", "fault_bench", "fuzz", "run_all", "try_clusters"])
def test_a_program_starts_without_the_paths_of_pytest(name):
    command = [sys.executable, ROOT / "tests" / "stress" / f"{name}.py", "-h"]
    printed = subprocess.run(command, capture_output=True, text=True, cwd="/")
    assert printed.returncode == 0 and not printed.stderr


def test_faults_are_chosen_by_their_names():
    names = [fault.name for fault in all_faults()]
    assert len(set(names)) == len(names)
    assert f"| {len(names)} provoked faults" in (ROOT / "README.md").read_text()
    quick = [fault.name for fault in fault_bench.chosen_faults("", quick=True)]
    assert set(quick) < set(names)
    assert [fault.name for fault in fault_bench.chosen_faults("SIGTERM", quick=True)] == [
        name for name in quick if "SIGTERM" in name
    ]


def test_an_unknown_test_is_refused():
    for program, argv in (
        (endure, ["x"]),
        (fuzz, ["x"]),
        (try_clusters, ["x"]),
        (fault_bench, ["-only", "nonsense"]),
        (doc_commands, ["-only", "nonsense"]),
    ):
        with pytest.raises(UserError):
            program.main(argv)


def test_one_table_of_all_programs(capsys, monkeypatch, tmp_path):
    failing = tmp_path / "failing.py"
    failing.write_text("raise SystemExit(3)")
    fuzzing = (str(Path(fuzz.__file__)), "policies", "-n", "2")
    monkeypatch.setattr(run_all, "_QUICK", (fuzzing, (str(failing),)))
    monkeypatch.setattr("sys.argv", ["run_all.py", "-quick", "-json", str(tmp_path / "all.json")])
    assert run_all.main() == 1
    printed = capsys.readouterr().out
    assert "| fuzz: policies | 2 | 0 | 0 |" in printed and "ended with status 3" in printed
    assert [len(result["failures"]) for result in json.loads((tmp_path / "all.json").read_text())] == [0, 1]


PAGE = """
Try `python main_single_gpu.py -h
TRAIN`, not `pip install` or `report.py -csv`.
```shell
# a comment
RUN=$(ls -d out)  # a variable
python main_single_gpu.py -resume=$RUN \\
    -epochs=2                       # status 3
for seed in 0 1; do
    bash run.sh $seed
done
```
```text
torchrun train.py
Epoch[001/300]
```
```python
python = 1
```
"""


def test_commands_of_a_page(tmp_path):
    (tmp_path / "page.md").write_text(PAGE)
    commands = read_commands(tmp_path / "page.md")
    found = [(one.line, one.text.split("\n")[0], one.status, one.variables) for one in commands]
    assert found == [
        (2, "python main_single_gpu.py -h TRAIN", 0, ()),
        (6, "RUN=$(ls -d out)  # a variable", 0, ("RUN",)),
        (7, "python main_single_gpu.py -resume=$RUN \\", 3, ()),
        (9, "for seed in 0 1; do", 0, ()),
        (14, "torchrun train.py", 0, ()),
    ]


def test_entries_without_a_command_are_found(monkeypatch):
    monkeypatch.setattr(doc_commands, "NOT_RUN", (("^git clone", ""), ("^hg clone", "")))
    monkeypatch.setattr(doc_commands, "REPLACED", ((r"DIR", "photos"),))
    monkeypatch.setattr(doc_commands, "ADDED", ((r"photos", "-n 1"), ("DIR", "-n 2")))
    result = doc_commands.check_tables(["git clone URL", "ls DIR"])
    assert (result.cases, result.failures) == (5, ["matches no command: ^hg clone", "matches no command: DIR"])


def test_commands_run_and_are_checked(tmp_path):
    for name in ("configs", "scripts", "utils", "main_multi_gpu.py"):
        (tmp_path / name).symlink_to(ROOT / name)
    runner = Runner(tmp_path, lambda added: os.environ | {"ADDED": added})
    assert not runner.run("A=$(echo 3)", variables=("A",)) + runner.run("sleep 60 & exit $A", status=3)
    assert runner.run("echo a; echo $ADDED; false", "b") == "status 1: a / b"
    command = "srun python main_multi_gpu.py -cfg=configs/vit_digits.yaml -opts"
    assert not runner.check(f"{command} SEED=1 # a comment")
    assert "TRAIN.EPOCHS" in runner.check(f"{command} TRAIN.EPOCHS=1")
    assert runner.check("sbatch scripts/slurm/none.sbatch") == "scripts/slurm/none.sbatch does not exist"
    assert runner.check("python scripts/make_shards.py -data_path=DIR -output=OUT -nods 4") == "-nods is unknown"
    runner.close()
