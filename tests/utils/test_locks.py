"""Locks with `flock`, and leases on file systems without it."""

import errno
import fcntl
import logging
import os
import subprocess
import sys
import time
from pathlib import Path
from threading import Event

import pytest
from conftest import ROOT
from rank_pool import environment

from engine.checkpoint import run_folder
from engine.checkpoint.run_folder import lock_run_folder
from utils import locks
from utils.errors import Unavailable
from utils.locks import locked
from utils.status import RUN_LOG
from utils.system import read_stat

HOLDER = """
import errno, fcntl, sys, time
from pathlib import Path
from utils.locks import locked
def flock(*_):
    raise OSError(errno.ENOSYS, "")
fcntl.flock = flock
with locked(Path(sys.argv[1])):
    print("locked", flush=True)
    time.sleep(600)
"""


def fail_flock(monkeypatch, number: int = errno.ENOSYS) -> None:
    def flock(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)


@pytest.fixture
def no_flock(monkeypatch):
    fail_flock(monkeypatch)


@pytest.fixture
def lock(tmp_path):
    return tmp_path / ".lock"


def leases(folder: Path) -> list[Path]:
    return list(folder.glob(".lock.lease.*"))


def lease_of(lock: Path, pid: int, start_time: str, namespace: str) -> Path:
    path = lock.with_name(f".lock.lease.node1.cluster.org.{namespace}.{pid}.{start_time}.0123abcd")
    path.touch()
    return path


def is_free(lock: Path, **options) -> bool:
    try:
        with locked(lock, 0.0, **options):
            return True
    except Unavailable:
        return False


def test_without_flock_a_lease_locks_a_folder(tmp_path, monkeypatch):
    fail_flock(monkeypatch, errno.ENOLCK)
    monkeypatch.setattr(run_folder, "_LOCK_SECONDS", 0.0)
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logging.getLogger(RUN_LOG).addHandler(handler)
    with lock_run_folder(tmp_path):
        (lease,) = leases(tmp_path)
        with pytest.raises(Unavailable, match=rf"^{tmp_path}: .*process {os.getpid()} on"), lock_run_folder(tmp_path):
            pass
    logging.getLogger(RUN_LOG).removeHandler(handler)
    assert len(lines) == 1 and lease.name in lines[0] and str(tmp_path) in lines[0]
    assert leases(tmp_path) == [] and is_free(tmp_path / ".lock")


def test_a_process_of_another_namespace_keeps_its_lease(lock, no_flock, monkeypatch):
    """As with `unshare --pid` without a /proc of its own; a file with such a name that is no lease is ignored."""
    monkeypatch.setattr(os, "readlink", lambda _: "1")
    lock.with_name(".lock.lease.other").touch()
    with locked(lock):
        assert len(leases(lock.parent)) == 2 and not is_free(lock)


def test_a_lock_that_another_host_has_removed_is_opened_again(lock, monkeypatch):
    flock, removed = fcntl.flock, []

    def stale(file, operation):
        if not removed:
            removed.append(lock.unlink())
            raise OSError(errno.ESTALE, "")
        flock(file, operation)

    monkeypatch.setattr(fcntl, "flock", stale)
    with locked(lock, 1.0):
        assert lock.exists() and not is_free(lock) and leases(lock.parent) == []


def test_a_refusal_means_locked(lock, monkeypatch):
    fail_flock(monkeypatch, errno.EACCES)
    assert not is_free(lock) and leases(lock.parent) == []


def test_a_killed_process_of_this_host_loses_its_lease_at_once(lock, no_flock):
    command = [sys.executable, "-c", HOLDER, str(lock)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT, env=environment()) as process:
        assert process.stdout.readline() == b"locked\n"
        assert not is_free(lock)
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it is a zombie
        assert is_free(lock) and leases(lock.parent) == []


@pytest.mark.parametrize(("earlier", "ended"), [(0, False), (1, True)], ids=["this process", "its id was used before"])
def test_a_process_is_known_by_its_id_and_start_time(lock, no_flock, earlier, ended):
    lease_of(lock, os.getpid(), str(int(read_stat(os.getpid())[2]) - earlier), locks._namespace())
    assert is_free(lock) == ended


@pytest.mark.parametrize("namespace", ["", "boot-1-0"], ids=["without /proc", "another host"])
def test_the_lease_of_another_host_expires_by_the_times_of_files(lock, no_flock, monkeypatch, namespace):
    monkeypatch.setattr(time, "time", lambda: 0.0)  # the clock of this host
    lease = lease_of(lock, os.getpid(), "1", namespace)
    now = lease.stat().st_mtime
    os.utime(lease, (now - 200, now - 200))
    assert not is_free(lock)
    os.utime(lease, (now - 301, now - 301))
    assert is_free(lock) and leases(lock.parent) == []


def test_an_essential_lock_waits_until_the_lease_of_another_host_expires(lock, no_flock, monkeypatch):
    monkeypatch.setattr(locks, "_EXPIRY_SECONDS", 0.5)
    lease_of(lock, 1, "1", "boot-1-0")
    assert not is_free(lock)
    assert is_free(lock, is_essential=True)


def test_a_lease_is_renewed(lock, no_flock, monkeypatch):
    monkeypatch.setattr(locks, "_RENEWAL_SECONDS", 0.01)
    with locked(lock):
        (lease,) = leases(lock.parent)
        os.utime(lease, (0, 0))
        while lease.stat().st_mtime == 0:
            time.sleep(0.01)


@pytest.mark.parametrize("is_essential", [True, False])
def test_a_process_that_has_lost_an_essential_lease_ends(lock, no_flock, monkeypatch, capfd, is_essential):
    exits: list[int] = []
    ended, renewed = Event(), Event()

    def exit_now(status: int) -> None:
        exits.append(status)
        ended.set()
        Event().wait()  # it does not return

    def utime(*arguments) -> None:
        try:
            real_utime(*arguments)
        finally:
            renewed.set()

    real_utime = os.utime
    monkeypatch.setattr(locks, "exit_now", exit_now)
    monkeypatch.setattr(locks, "_RENEWAL_SECONDS", 0.01)
    with locked(lock, is_essential=is_essential):
        (lease,) = leases(lock.parent)
        assert exits == []
        lease.unlink()  # by the process that takes over
        if is_essential:
            assert ended.wait(10)
        else:
            monkeypatch.setattr(os, "utime", utime)
            assert renewed.wait(10)
    errors = [line for line in capfd.readouterr().err.splitlines() if line.startswith("error: ")]
    assert (len(exits), len(errors)) == ((1, 1) if is_essential else (0, 0))
    assert all(str(lock.parent) in error for error in errors)
