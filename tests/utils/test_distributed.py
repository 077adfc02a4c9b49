"""Processes connect under every launcher, and all exit when one of them fails, is killed, is stopped or hangs."""

import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from rank_pool import environment

from utils import distributed
from utils.errors import UserError
from utils.files import read_json
from utils.status import STATUS

WORKER = str(Path(__file__).with_name("distributed_worker.py"))
LIMIT_SECONDS = 300  # a launch takes 3 s on an idle machine
AGREED = {"rank 0/2 local 0/2 cpu sum 3 run-0", "rank 1/2 local 1/2 cpu sum 3 run-0"}


@dataclass
class Ended:
    status: int
    out: str
    err: str


def start(command: list[str], **variables: str) -> subprocess.Popen:
    """Starts `command` without GPUs, and without launcher variables except for the given ones."""
    inherited = environment()
    del inherited["OMP_NUM_THREADS"]
    return subprocess.Popen(
        command, env=inherited | variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def end(process: subprocess.Popen) -> Ended:
    """Waits until `process` and all processes that write to its output have exited."""
    out, err = process.communicate(timeout=LIMIT_SECONDS)
    lines = (line for line in out.splitlines(keepends=True) if not line.startswith("[Gloo]"))  # printed by torch 2.10
    return Ended(process.returncode, "".join(lines), err)


def run(case: str, *words: str) -> Ended:
    return end(start([sys.executable, WORKER, case, *words]))


@pytest.mark.slow
def test_script_starts_its_own_processes():
    words = ["-path=/a b/$$c", "${local_rank}"]
    ended = run("agree", *words)
    assert ended.status == 0, ended.err
    assert set(ended.out.splitlines()) >= AGREED | set(words)
    assert f"by torchrun with {max(1, torch.get_num_threads() // 2)} threads" in ended.out
    assert ended.err == ""


def srun(case: str, **variables: str) -> list[subprocess.Popen]:
    """Two processes with the environment of srun."""
    step = {"SLURM_JOB_ID": f"{os.getpid()}", "SLURM_STEP_ID": case, "SLURM_STEP_NUM_TASKS": "2"}
    step |= {"SLURM_STEP_NODELIST": "node7", "SLURM_STEP_TASKS_PER_NODE": "2", "SLURM_NODEID": "0"}
    return [
        start([sys.executable, WORKER, case], SLURM_PROCID=rank, SLURM_LOCALID=rank, **step, **variables)
        for rank in "01"
    ]


def mpirun(case: str) -> list[subprocess.Popen]:
    """Two processes with the environment of Open MPI's mpirun in a Slurm job."""
    job = {"PMIX_NAMESPACE": f"{os.getpid()}", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
    job |= {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_STEP_NUM_TASKS": "1"}  # srun starts the daemon of mpirun
    ranks = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK")
    return [start([sys.executable, WORKER, case], **job, **dict.fromkeys(ranks, rank)) for rank in "01"]


@pytest.mark.slow
@pytest.mark.parametrize("launcher", [srun, mpirun])
def test_srun_and_mpirun(launcher):
    both = [end(process) for process in launcher("agree")]
    assert [ended.status for ended in both] == [0, 0], both
    lines = [line for ended in both for line in ended.out.splitlines()]
    assert set(lines) == AGREED | {f"by {launcher.__name__} with None threads"}


@pytest.mark.slow
def test_a_pickle_without_a_signature_is_not_read(tmp_path):
    """A run that starts its own processes signs; under srun the same pickle runs its code."""
    ended = end(start([sys.executable, WORKER, "one_forges"], FORGED=str(tmp_path / "own")))
    assert ended.status == 1
    assert re.fullmatch(r"error: torch\.distributed: an object has no valid signature.*\n", ended.err)
    assert [end(process).status for process in srun("one_forges", FORGED=str(tmp_path / "srun"))] == [0, 0]
    assert [path.name for path in tmp_path.iterdir()] == ["srun"]


@pytest.mark.slow
def test_processes_exit_without_a_launcher_that_terminates_them():
    cases = ("one_fails_one_ignores_signals", "one_crashes", "one_is_killed", "one_fails_and_its_exit_hangs")
    started = [process for case in cases for process in srun(case)]
    ignoring, failed, healthy, crashed, left_over, killed, waiting, hanging = (end(process) for process in started)
    assert [(one.status, one.err) for one in (ignoring, healthy, waiting)] == [(1, "")] * 3
    assert [(one.status, one.err) for one in (failed, hanging)] == [(1, "error: disk: full\n")] * 2
    assert crashed.status == 1
    assert crashed.err.count("Traceback") == crashed.err.count("ValueError: a bug") == 1
    assert (killed.status, killed.err) == (-signal.SIGKILL, "")
    assert left_over.status == 1
    assert re.fullmatch(r"error: rank 1 \(process \d+ on .*\) ended without an error message; .*\n", left_over.err)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "lost", "line"),
    [
        ("one_hangs", 1, "does not respond"),
        # As under NCCL: a main thread that is blocked receives no error.
        ("one_is_stopped_the_other_is_blocked", 1, "is stopped"),
        ("owner_is_stopped", 0, "is stopped"),  # of the key-value store, which does not answer
    ],
)
def test_hanging_or_stopped_process_is_named_and_killed(case, lost, line, tmp_path):
    """Within the timeout (here 3 seconds) plus 10 seconds."""
    both = [end(process) for process in srun(case, RUN_FOLDER=str(tmp_path))]
    found = re.findall(r"^error: (.*)", both[1 - lost].err, re.MULTILINE)
    assert len(found) == 1 and re.match(rf"rank {lost} \(process \d+ on .*\) {line}", found[0])
    assert (both[1 - lost].status, both[lost].status) == (1, -signal.SIGKILL)
    if case == "one_hangs":
        assert (status := read_json(tmp_path / STATUS))["state"] == "failed" and status["message"] == found[0]


@pytest.mark.slow
def test_process_without_its_launcher_exits_at_once():
    one_of_two = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2"}
    ended = end(start([sys.executable, WORKER, "agree"], **one_of_two, AMPVIT_PARENT_PID="1"))
    assert (ended.status, ended.out, ended.err) == (1, "", "")


def test_more_processes_than_gpus(monkeypatch):
    class Properties:
        uuid = "GPU-1"
        major, minor = 9, 0

    store = dist.HashStore()
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setattr(distributed, "visible_gpus", lambda wanted: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: Properties)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    assert distributed._claim_device(store, local_rank=0, local_world_size=2) == torch.device("cuda:0")
    with pytest.raises(UserError, match=r"2 processes on this host, but 1 visible"):
        distributed._claim_device(store, local_rank=1, local_world_size=2)


def test_gpu_that_is_full_at_the_start():
    nccl = "NCCL error in: x.cpp:1, unhandled cuda error\nLast error:\nCuda failure 2 'out of memory'"
    line = r"^out of GPU memory at the start \(.*out of memory'?\); .* CUDA_VISIBLE_DEVICES"
    for error in (dist.DistBackendError(nccl), torch.AcceleratorError("CUDA error: out of memory\nMore lines.")):
        with pytest.raises(UserError, match=line), distributed._report_full_gpu():
            raise error
    with pytest.raises(RuntimeError, match="a bug"), distributed._report_full_gpu():
        raise RuntimeError("a bug")


@pytest.mark.slow
def test_processes_wait_for_a_slow_one_longer_than_the_timeout():
    ended = run("one_is_slow")
    assert ended.status == 0, ended.err
    assert {"rank 0: 0", "rank 1: 1"} <= set(ended.out.splitlines())
