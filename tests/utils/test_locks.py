"""Locks with `flock`, and file systems without it."""

import errno
import fcntl
import logging
import os
from pathlib import Path

import pytest

from engine.checkpoint import run_folder
from engine.checkpoint.run_folder import lock_run_folder
from utils.errors import Unavailable
from utils.files import locked
from utils.notes import RUN_LOG


def fail_flock(monkeypatch, number: int) -> None:
    def flock(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)


@pytest.fixture
def lock(tmp_path):
    return tmp_path / ".lock"


@pytest.fixture
def warnings(monkeypatch) -> list[str]:
    lines: list[str] = []
    monkeypatch.setattr(logging.getLogger(RUN_LOG), "warning", lines.append)
    return lines


def is_free(lock: Path) -> bool:
    try:
        with locked(lock, 0.0):
            return True
    except Unavailable:
        return False


def test_a_folder_is_locked_by_one_process_which_is_named(tmp_path, monkeypatch, warnings):
    monkeypatch.setattr(run_folder, "_LOCK_SECONDS", 0.0)
    with lock_run_folder(tmp_path) as has_locks:
        assert has_locks
        with pytest.raises(Unavailable, match=rf"^{tmp_path}: .*process {os.getpid()} on"), lock_run_folder(tmp_path):
            pass
    assert is_free(tmp_path / ".lock") and not warnings


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_without_flock_nothing_is_locked_and_one_warning_says_so(tmp_path, monkeypatch, warnings, number):
    fail_flock(monkeypatch, number)
    for _ in range(2):
        with lock_run_folder(tmp_path) as has_locks:
            assert not has_locks and is_free(tmp_path / ".lock")
    assert len(warnings) == 1 and str(tmp_path) in warnings[0]


def test_a_lock_that_another_host_has_removed_is_opened_again(lock, monkeypatch):
    flock, removed = fcntl.flock, []

    def stale(file, operation):
        if not removed:
            removed.append(lock.unlink())
            raise OSError(errno.ESTALE, "")
        flock(file, operation)

    monkeypatch.setattr(fcntl, "flock", stale)
    with locked(lock, 1.0):
        assert lock.exists() and not is_free(lock)


def test_a_refusal_means_locked(lock, monkeypatch):
    fail_flock(monkeypatch, errno.EACCES)
    assert not is_free(lock)
