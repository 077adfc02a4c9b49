"""Processes connect under every launcher, and all exit when one of them fails, is killed, is stopped or hangs."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import torch
import torch.distributed as dist
from conftest import each_value, refused
from pytest import fixture, mark, raises
from rank_pool import environment

from utils import distributed
from utils.distributed import connect_store
from utils.errors import Unavailable
from utils.files import read_json
from utils.signals import Interrupted

WORKER = str(Path(__file__).with_name("distributed_worker.py"))
LOOPBACK = "127.0.0.1"
LIMIT_SECONDS = 300  # a launch takes 3 s on an idle machine
AGREED = {"rank 0/2 local 0/2 cpu sum 3 run-0", "rank 1/2 local 1/2 cpu sum 3 run-0"}


@dataclass
class Ended:
    status: int
    out: str
    err: str


def start(case: str, variables: str = "") -> subprocess.Popen:
    """Starts the worker without GPUs, and without launcher variables except for the given ones, 'NAME=VALUE ...'."""
    inherited = environment()
    del inherited["OMP_NUM_THREADS"]
    env = inherited | dict(word.split("=") for word in variables.split())
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, WORKER, case], env=env, stdout=pipe, stderr=pipe, text=True)


def end(process: subprocess.Popen) -> Ended:
    """Waits until `process` and all processes that write to its output have exited."""
    out, err = process.communicate(timeout=LIMIT_SECONDS)
    lines = (line for line in out.splitlines(keepends=True) if not line.startswith("[Gloo]"))  # printed by torch 2.10
    return Ended(process.returncode, "".join(lines), err)


@mark.slow
def test_script_starts_its_own_processes_which_listen_at_the_loopback_interface_only():
    ended = end(start("agree_and_listen"))
    lines = ended.out.splitlines()
    assert ended.status == 0 and set(lines) >= AGREED, ended
    assert f"by torchrun with {max(1, torch.get_num_threads() // 2)} threads" in lines
    listening = [line for line in lines if line.startswith("listens")]
    assert len(listening) > 2
    assert set(listening) == {"listens at 0100007F"}
    assert ended.err == ""


def start_both(case: str, variables: str) -> list[subprocess.Popen]:
    """Two processes; RANK in a value is the number of the process."""
    return [start(case, variables.replace("=RANK", f"={rank}")) for rank in (0, 1)]


def srun(case: str) -> list[subprocess.Popen]:
    """Two processes with the environment of srun."""
    step = f"SLURM_JOB_ID={os.getpid()} SLURM_STEP_ID={case} SLURM_STEP_NUM_TASKS=2 SLURM_STEP_NODELIST=node7"
    place = "SLURM_STEP_TASKS_PER_NODE=2 SLURM_NODEID=0 SLURM_PROCID=RANK SLURM_LOCALID=RANK"
    return start_both(case, f"{step} {place}")


def mpirun(case: str) -> list[subprocess.Popen]:
    """Two processes with the environment of Open MPI's mpirun in a Slurm job."""
    job = f"PMIX_NAMESPACE={os.getpid()} OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_SIZE=2"
    daemon = "SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_STEP_NUM_TASKS=1"  # srun starts it
    return start_both(case, f"{job} {daemon} OMPI_COMM_WORLD_RANK=RANK OMPI_COMM_WORLD_LOCAL_RANK=RANK")


def torchrun(case: str) -> list[subprocess.Popen]:
    """Two processes with the variables that all launchers of torch set; they count the ranks of their host."""
    with socket.create_server((LOOPBACK, 0)) as free:
        port = free.getsockname()[1]
    return start_both(case, f"RANK=RANK LOCAL_RANK=RANK WORLD_SIZE=2 MASTER_PORT={port}")


@mark.slow
@mark.parametrize("launcher", [srun, mpirun, torchrun])
def test_processes_of_a_launcher_agree(launcher):
    both = [end(process) for process in launcher("agree")]
    assert [ended.status for ended in both] == [0, 0], both
    lines = [line for ended in both for line in ended.out.splitlines()]
    assert set(lines) == AGREED | {f"by {launcher.__name__} with None threads"}


@mark.slow
def test_processes_exit_without_a_launcher_that_terminates_them():
    """A rank that fails prints its error, or else its traceback; another one that loses it prints that, if alone."""
    cases = ("all_fail", "one_crashes", "one_is_killed", "one_fails_and_its_exit_hangs")
    started = [process for case in cases for process in srun(case)]
    ended = [*map(end, started)]
    first, second, left, crashed, left_over, _, *last = ended
    assert [one.status for one in ended] == [1, 1, 1, 1, 1, -signal.SIGKILL, 1, 1]
    assert first.err + second.err == "error: disk: full\n"
    assert crashed.err.count("Traceback") == crashed.err.count("ValueError: a bug") == 1
    for one in (left, left_over):
        assert re.search(r"^error: rank 0 \(.*\) lost its connection .*\n\Z", one.err, re.MULTILINE)  # if alone
    assert [one.err for one in last] == ["", "error: disk: full\n"]


@mark.slow
@mark.parametrize("case", ["one_waits_for_a_sum", "one_waits_for_a_group"])
def test_a_signal_to_all_ranks_of_a_launcher_is_the_cause_while_one_waits_for_another(case):
    ranks = srun(case)
    for process in ranks:
        process.stdout.readline()  # it has joined its group
    time.sleep(2)  # a rank waits inside torch
    for process in ranks:
        process.terminate()
    first, second = map(end, ranks)
    assert (first.status, first.err) == (128 + signal.SIGTERM, "interrupted by SIGTERM\n")
    assert (second.status, second.err.count("\n")) == (1, 1)
    assert "SIGTERM" in second.err


@mark.slow
def test_a_hanging_or_stopped_rank_ends_all_after_the_timeout():
    started = [start("one_hangs"), start("one_is_stopped")]
    for ended in map(end, started):  # all processes that write to the output have ended
        assert ended.status == 1
        assert re.fullmatch(r"error: rank 1 does not respond; .*\n", ended.err)


def test_more_processes_than_gpus(monkeypatch):
    properties = SimpleNamespace(uuid="GPU-1", major=9, minor=0)
    store = dist.HashStore()
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setattr("utils.distributed.visible_gpus", lambda wanted: 1)
    monkeypatch.setattr("utils.distributed.check_runs_kernels", lambda device: None)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda device: properties)
    monkeypatch.setattr("torch.cuda.set_device", lambda device: None)
    assert distributed._claim_device(store, local_rank=0, local_world_size=2) == torch.device("cuda:0")
    with refused(r"2 processes on this host, but 1 visible"):
        distributed._claim_device(store, local_rank=1, local_world_size=2)


def test_gpu_that_is_full_at_the_start():
    nccl = "NCCL error in: x.cpp:1, unhandled cuda error\nLast error:\nCuda failure 2 'out of memory'"
    line = r"^out of GPU memory at the start \(.*out of memory'?\); .* CUDA_VISIBLE_DEVICES"
    for error in (dist.DistBackendError(nccl), torch.AcceleratorError("CUDA error: out of memory\nMore lines.")):
        with refused(line), distributed._report_full_gpu():
            raise error
    with raises(RuntimeError, match="a bug"), distributed._report_full_gpu():
        raise RuntimeError("a bug")


@mark.slow
def test_processes_wait_for_a_slow_one_longer_than_the_timeout():
    ended = end(start("one_is_slow"))
    assert ended.status == 0, ended.err
    assert {"rank 0: 0", "rank 1: 1"} <= set(ended.out.splitlines())


@fixture
def short_waits(monkeypatch):
    monkeypatch.setattr("utils.threads._QUIET_SECONDS", 0.3)
    monkeypatch.setattr("utils.distributed._ATTEMPT_SECONDS", 0.3)


def place(port: int, rank: int = 1) -> dict[str, str]:
    return {"RANK": str(rank), "LOCAL_RANK": "0", "MASTER_ADDR": LOOPBACK, "MASTER_PORT": str(port)}


def test_ranks_share_the_store_of_rank_0_which_no_other_host_reaches():
    with socket.create_server((LOOPBACK, 0)) as free:
        port = free.getsockname()[1]
    stores = [connect_store(place(port, rank), limit_seconds=60) for rank in (0, 1)]
    stores[0].set("key", "value")
    assert stores[1].get("key") == b"value"
    with raises(OSError):  # another address of this host
        socket.create_connection(("127.0.0.2", port), timeout=1)


@mark.slow
@mark.usefixtures("short_waits")
def test_an_address_without_rank_0_is_named():
    with socket.create_server((LOOPBACK, 0)) as server:
        port = server.getsockname()[1]
        with refused(rf"MASTER_PORT: another program listens at {LOOPBACK}:{port}"):
            connect_store(place(port), limit_seconds=0.5)
        with refused(rf"rank 0 cannot open {LOOPBACK}:{port} \(Address already in use\)"):
            connect_store(place(port, rank=0), limit_seconds=0.5)
    with refused(rf"rank 1 cannot connect to {LOOPBACK}:{port} \(Connection refused\)"):
        connect_store(place(port), limit_seconds=0.5)


@mark.usefixtures("short_waits")
def test_a_rank_that_does_not_start_and_one_with_another_device_are_named():
    store = dist.HashStore()
    store.set("host of rank 2", "node2")
    with raises(Unavailable, match=r"WORLD_SIZE is 3: rank 0 waits for rank 1, for 1 s now"):
        distributed._meet(store, 0, 3, 1, "host", "node0")
    store.set("host of rank 1", "node1")
    hosts = distributed._meet(store, 0, 3, 1, "host", "node0")
    assert hosts == ("node0", "node1", "node2")
    with refused(r"uses cpu, but rank 2 \(node2\) uses cuda"):
        distributed._check_devices(("cpu", "cpu", "cuda"), hosts)


@mark.usefixtures("short_waits")
def test_what_ranks_read_of_each_other_grows_with_their_number():
    """64 ranks: rank 0 reads 64 values, and each rank one list."""
    store = Mock(wraps=dist.HashStore())
    with ThreadPoolExecutor(64) as threads:
        found = [threads.submit(distributed._meet, store, rank, 64, 60, "host", f"n {rank}") for rank in range(64)]
    assert {one.result() for one in found} == {tuple(f"n {rank}" for rank in range(64))}
    lists = [call.args[0] for call in store.multi_get.call_args_list]
    assert len(store.get.call_args_list) + sum(map(len, lists)) == 128


ERRORS = """
text | is_lost | timed_out
Connection closed by peer [127.0.0.1]:1234 | true | false
Timed out waiting 3000ms for recv operation to complete | true | true
a bug | false | false
"""


@each_value(ERRORS)
@mark.usefixtures("handlers_after_test")
def test_errors_of_the_connection_are_told_from_others(monkeypatch, tmp_path, text, is_lost, timed_out):
    monkeypatch.setattr("utils.distributed._EXIT_SECONDS", 1e6)
    monkeypatch.setattr("utils.distributed.has_launcher", lambda: True)
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(report := tmp_path / "error.json"))
    terminated = Interrupted(signal.SIGTERM)
    terminated.__context__ = RuntimeError(text)  # the launcher's signal arrived while it was handled
    for error in (RuntimeError(text), terminated):
        raised = Unavailable if is_lost else type(error)
        with raises(raised), distributed._report_failure(dist.HashStore(), 1, 1, limit_seconds=60):
            raise error
        assert report.exists() == is_lost
        assert read_json(report).get("timed_out", False) == timed_out
        report.unlink(missing_ok=True)
