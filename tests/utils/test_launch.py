"""The environment variables of each launcher are read correctly."""

import os

import pytest

from main_multi_gpu import check_num_processes
from utils.errors import UserError
from utils.processes.launch import silence_launcher
from utils.processes.launcher import detect_launcher, first_host, several_were_started, torchrun_variables

ONE_OF_16 = {"RANK": "0", "WORLD_SIZE": "16"}
NO_NUMBERS = {"RANK": "abc", "WORLD_SIZE": "two", "LOCAL_RANK": "-1", "LOCAL_WORLD_SIZE": "1.5"}
NO_NUMBERS |= {"SLURM_STEP_NUM_TASKS": "x", "SLURM_PROCID": "", "OMPI_COMM_WORLD_RANK": "a", "PMI_RANK": " "}
SRUN_16 = {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "16"}


@pytest.mark.parametrize(
    ("started_by", "env"),
    [
        (None, {}),
        (None, {"SLURM_NTASKS": "8", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}),  # a batch script's shell
        (None, {"SLURM_NTASKS": "8", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}),  # an interactive shell
        ("srun", {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2"}),
        ("srun", {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2", "PMI_RANK": "0"}),  # srun --mpi=pmi2
        ("mpirun", {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2", "OMPI_COMM_WORLD_RANK": "5"}),
        ("mpirun", {"PMI_RANK": "0", "PMI_SIZE": "1", "MPI_LOCALRANKID": "0"}),
        ("torchrun", {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2", "LOCAL_RANK": "0", **ONE_OF_16}),
        ("torchrun", {"RANK": "0", "WORLD_SIZE": "1"}),
        ("srun", SRUN_16 | ONE_OF_16),  # exported by a script; srun knows the local rank
        (None, {"SKYPILOT_NUM_NODES": "1", "PET_NNODES": "1"}),
        *(("torchrun", {name: "2", "LOCAL_RANK": "0", **ONE_OF_16}) for name in ("SKYPILOT_NUM_NODES", "PET_NNODES")),
    ],
)
def test_launcher(started_by, env):
    assert detect_launcher(env) == started_by


@pytest.mark.parametrize(
    ("env", "words"),
    [
        *((env, "without LOCAL_RANK") for env in (ONE_OF_16, {"WORLD_SIZE": "2"}, {"RANK": "1"})),
        (SRUN_16 | {"RANK": "0", "WORLD_SIZE": "32"}, "without LOCAL_RANK"),
        ({"SKYPILOT_NUM_NODES": "2", "SKYPILOT_NODE_RANK": "0"}, "SKYPILOT_NUM_NODES is 2"),
        ({"PET_NNODES": "1:2", "PET_NPROC_PER_NODE": "8"}, "PET_NNODES is 1:2"),
        ({"PET_NNODES": "2", "RANK": "1", "WORLD_SIZE": "8"}, "without LOCAL_RANK"),  # a PyTorchJob
        *(({name: value}, f"{name} is '{value}'") for name, value in NO_NUMBERS.items()),
        (ONE_OF_16 | {"LOCAL_RANK": "first"}, "LOCAL_RANK is 'first'"),
    ],
)
def test_environment_of_several_runs_is_refused(env, words):
    with pytest.raises(UserError, match=words):
        detect_launcher(env)


def test_number_of_processes_against_a_launcher():
    check_num_processes(None, started=2)
    check_num_processes(2, started=2)
    with pytest.raises(
        UserError, match=r"-ngpus 4: a launcher started 2 process\(es\) on this host .*leave -ngpus out"
    ):
        check_num_processes(4, started=2)


def test_several_started_processes_are_noticed():
    one = dict.fromkeys(("OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "WORLD_SIZE", "PET_NNODES"), "1")
    one |= {"SKYPILOT_NUM_NODES": "1"}
    assert not several_were_started(one | {"SLURM_NTASKS": "8"})
    for name in one:
        assert several_were_started(one | {name: "2"})


@pytest.mark.parametrize(
    ("nodelist", "host"),
    [
        ("node1", "node1"),
        ("x,node[1-2]", "x"),
        ("node[03-05,9],x", "node03"),
        ("node[7,9-12]", "node7"),
        ("rack[2-3]-gpu[01,04].cluster,x", "rack2-gpu01.cluster"),
    ],
)
def test_first_host(nodelist, host):
    assert first_host(nodelist) == host


SRUN = {
    "SLURM_PROCID": "5", "SLURM_LOCALID": "1", "SLURM_NODEID": "2", "SLURM_STEP_NUM_TASKS": "7",
    "SLURM_STEP_TASKS_PER_NODE": "2(x3),1", "SLURM_STEP_NODELIST": "node[03-06]", "SLURM_NODELIST": "node[01-09]",
    "SLURM_JOB_ID": "1234", "SLURM_STEP_ID": "0",
}  # fmt: skip
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}


def test_srun_variables():
    translated = torchrun_variables(SRUN)
    port = int(translated.pop("MASTER_PORT"))
    expected = {"RANK": "5", "WORLD_SIZE": "7", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "node03"}
    assert translated == expected
    assert 20000 <= port < 30000
    assert port != int(torchrun_variables(SRUN | {"SLURM_STEP_ID": "1"})["MASTER_PORT"])
    assert torchrun_variables(SRUN | {"SLURM_NODEID": "3"})["LOCAL_WORLD_SIZE"] == "1"


def test_mpirun_over_several_hosts_needs_an_address():
    with pytest.raises(UserError, match="MASTER_ADDR"):
        torchrun_variables(OPEN_MPI)
    told = torchrun_variables(OPEN_MPI | {"MASTER_ADDR": "head", "MASTER_PORT": "1234"})
    assert (told["MASTER_ADDR"], told["MASTER_PORT"], told["LOCAL_WORLD_SIZE"]) == ("head", "1234", "2")
    assert torchrun_variables(OPEN_MPI | {"SLURM_NODELIST": "node[1-2]"})["MASTER_ADDR"] == "node1"


def test_torchrun_variables_are_unchanged():
    env = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    env |= {"MASTER_ADDR": "head", "MASTER_PORT": "1", "PATH": os.defpath}
    assert torchrun_variables(env) == {name: value for name, value in env.items() if name != "PATH"}


def test_a_process_tells_the_launcher_that_it_has_named_the_cause(monkeypatch, tmp_path):
    monkeypatch.setenv("AMPVIT_REPORT", str(tmp_path / "report"))
    silence_launcher()
    assert (tmp_path / "report").stat().st_size > 0
    monkeypatch.setenv("AMPVIT_REPORT", str(tmp_path / "gone" / "report"))
    silence_launcher()  # the launcher has ended
