"""The environment variables of each launcher are read correctly."""

import os

import pytest

from utils.errors import UserError
from utils.launch import detect_launcher, first_host, torchrun_variables


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
        ("torchrun", {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2", "RANK": "0", "WORLD_SIZE": "16"}),
    ],
)
def test_launcher(started_by, env):
    assert detect_launcher(env) == started_by


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
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "2",
    "SLURM_STEP_NUM_TASKS": "7",
    "SLURM_STEP_TASKS_PER_NODE": "2(x3),1",
    "SLURM_STEP_NODELIST": "node[03-06]",
    "SLURM_NODELIST": "node[01-09]",
    "SLURM_JOB_ID": "1234",
    "SLURM_STEP_ID": "0",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}


def test_srun_variables():
    translated = torchrun_variables(SRUN)
    port = int(translated.pop("MASTER_PORT"))
    assert translated == {
        "RANK": "5",
        "WORLD_SIZE": "7",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "node03",
    }
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
