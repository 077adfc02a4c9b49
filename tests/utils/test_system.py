"""Systems that cannot run the program end with one line, before an import that fails there."""

import os
import re
import runpy
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from conftest import ROOT

from utils.system import why_unusable

PROJECT = {"configs", "datasets", "engine", "models", "scripts", "utils"}
PROGRAMS = [
    path
    for path in [*ROOT.glob("main_*.py"), *(ROOT / "scripts").rglob("*.py")]
    if "run_and_report_errors(main" in path.read_text()
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_windows_is_refused_before_a_module_that_it_lacks(monkeypatch, program):
    """Also by `python -P`, which leaves the folder of the script out of sys.path: programs find their modules."""
    for name in [name for name in sys.modules if name.partition(".")[0] in PROJECT]:
        monkeypatch.delitem(sys.modules, name)
    for name in ("fcntl", "resource"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delattr(signal, "SIGHUP")
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if Path(entry or ".").resolve() != ROOT])
    with pytest.raises(SystemExit, match=r"^error: .*win32.*Linux, macOS, or WSL 2"):
        runpy.run_path(str(program), run_name="__main__")


def test_a_deleted_folder(monkeypatch, tmp_path):
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    assert "current folder" in why_unusable()


def test_no_folder_for_temporary_files(monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: [os.devnull, "/nonexistent"])
    problem = why_unusable()
    assert problem.startswith("TMPDIR: ") and "/nonexistent" in problem


@pytest.mark.slow
@pytest.mark.parametrize("limit", ["ulimit -n 40", "ulimit -v 500000"])
def test_a_low_limit_is_one_line(limit):
    """Also with two ranks: torch's store would wait for minutes, and its import ends with a traceback."""
    command = f"{limit}; exec {sys.executable} main_multi_gpu.py -dataset=digits -ngpus=2 -device=cpu"
    done = subprocess.run(["sh", "-c", command], cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert done.returncode == 1 and re.fullmatch(rf"error: {limit[:9]} is {limit[10:]}\b.* raise .*\n", done.stderr)


def test_a_missing_required_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "pydantic", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert why_unusable().startswith("pydantic is not installed")
