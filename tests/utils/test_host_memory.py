"""Freed memory is reused in the next step."""

import subprocess
import sys

import pytest
from conftest import ROOT

from configs.reading.command_line import parse_command_line
from engine.commands.run import run

SCRIPT = """
import resource, sys
from utils.device import keep_freed_memory
if sys.argv[1] == "kept":
    keep_freed_memory()
def step():
    tensors = [b"x" * size for size in (50_000_000, 20_000_000, 300_000)]
    del tensors
step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="glibc's")
def test_freed_memory_is_reused():
    faults = {
        kind: int(
            subprocess.run([sys.executable, "-c", SCRIPT, kind], cwd=ROOT, capture_output=True, check=True).stdout
        )
        for kind in ("as it is", "kept")
    }
    assert faults["kept"] < 100 < 10_000 < faults["as it is"]


def test_runs_on_a_cpu_enable_it(digits_argv, cpu, monkeypatch):
    calls = []
    monkeypatch.setattr("engine.commands.run.keep_freed_memory", lambda: calls.append(1))
    assert run(parse_command_line(["-dry_run", *digits_argv]), cpu) == 0
    assert calls == [1]
