"""How OpenMP's threads wait: set on a CPU only, and never over the user's variables."""

from pathlib import Path

import pytest

from utils import system
from utils.system import busy_note, describe_waiting, limit_spinning


@pytest.fixture(autouse=True)
def machine(monkeypatch, tmp_path) -> Path:
    """A machine of two cores without these variables; its load is in `loadavg`, its devices are in the folder."""
    for name in ("CUDA_VISIBLE_DEVICES", "GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.setenv(name, "")  # so that the test's end restores what limit_spinning sets
        monkeypatch.delenv(name)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    monkeypatch.setattr(system, "_LOAD", tmp_path / "loadavg")
    monkeypatch.setattr(system, "DEVICE_FILES", tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("gpu", "device", "variables", "expected"),
    [
        (False, None, {}, "10000"),
        (True, None, {}, None),
        (True, "cpu", {}, "10000"),
        (True, None, {"CUDA_VISIBLE_DEVICES": ""}, "10000"),
        (True, "cuda", {}, None),
        (False, None, {"GOMP_SPINCOUNT": "7"}, "7"),
        (False, None, {"OMP_WAIT_POLICY": "active"}, None),
    ],
)
def test_limit_spinning(gpu, device, variables, expected, monkeypatch, machine):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    (machine / ("nvidia0" if gpu else "nvidiactl")).touch()
    limit_spinning(device)
    assert system.os.environ.get("GOMP_SPINCOUNT") == expected


@pytest.mark.parametrize(
    ("running", "expected"), [("2/80", "10000"), ("3/80", "10000"), ("4/80", "1000"), ("x", "10000"), (None, "10000")]
)
def test_threads_spin_shortly_beside_more_running_threads_than_cores(running, expected, machine):
    if running:
        (machine / "loadavg").write_text(f"9.0 9.0 9.0 {running} 23282\n")
    limit_spinning("cpu")
    assert system.os.environ["GOMP_SPINCOUNT"] == expected


def test_a_busy_machine_is_noted_with_the_way_threads_wait(monkeypatch):
    monkeypatch.setattr("os.getloadavg", lambda: (2.0, 9.0, 9.0))
    monkeypatch.setenv("GOMP_SPINCOUNT", "10000")
    assert busy_note() is None
    monkeypatch.setattr("os.getloadavg", lambda: (11.26, 0.0, 0.0))
    assert describe_waiting().endswith("GOMP_SPINCOUNT 10000")
    assert "11.3 on 2 cores" in busy_note() and describe_waiting() in busy_note()
