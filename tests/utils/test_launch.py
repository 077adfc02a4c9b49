"""The environment variables of each launcher are read correctly; signals while a script starts."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from conftest import ROOT, each_row, refused
from pytest import mark

from utils.processes import launch
from utils.processes.launch import check_is_alone, detect_launcher, torchrun_variables


def env(*words: str) -> dict[str, str]:
    """'RANK=0 WORLD_SIZE=2' -> the variables of an environment; later ones win."""
    return dict(word.split("=", 1) for word in " ".join(words).split())


def under(variables: dict[str, str], function: Callable[[], Any]) -> Any:
    with patch.object(launch, "environ", variables):
        return function()


ONE_OF_16 = "RANK=0 WORLD_SIZE=16"
ONE_OF_2 = "RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1"
OPEN_MPI = "OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_SIZE=2"
OPEN_MPI_LOCAL = f"{OPEN_MPI} OMPI_COMM_WORLD_LOCAL_RANK=1"
SRUN_2 = "SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=2"
SRUN_16 = "SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=16"
SRUN = (
    "SLURM_PROCID=5 SLURM_LOCALID=1 SLURM_NODEID=2 SLURM_STEP_NUM_TASKS=7 SLURM_STEP_TASKS_PER_NODE=2(x3),1 "
    "SLURM_STEP_NODELIST=node[03-06] SLURM_NODELIST=node[01-09] SLURM_JOB_ID=1234 SLURM_STEP_ID=0"
)


LAUNCHERS = f"""
started_by | variables
srun | {SRUN_2} PMI_RANK=0  # srun --mpi=pmi2
mpirun | {SRUN_2} {OPEN_MPI_LOCAL}
torchrun | {SRUN_2} LOCAL_RANK=0 {ONE_OF_16}
srun | {SRUN_16} {ONE_OF_16}  # exported by a script; srun knows the local rank
"""


@each_row(LAUNCHERS)
def test_launcher(started_by, variables):
    assert under(env(variables), detect_launcher) == started_by


# The variables, and the words of the error
REFUSED = f"""
variables | words
PET_NNODES=2 RANK=1 WORLD_SIZE=8 | without LOCAL_RANK  # a PyTorchJob
{OPEN_MPI} | OMPI_COMM_WORLD_LOCAL_RANK: not set
PMI_RANK=1 MPI_LOCALRANKID=1 | PMI_SIZE: not set
{SRUN_2} | SLURM_LOCALID: not set
{SRUN} SLURM_NODEID=4 | SLURM_NODEID is '4'  # not in its list
{SRUN} SLURM_NODEID=x | SLURM_NODEID is 'x'
{OPEN_MPI_LOCAL} | MASTER_ADDR: not set  # on several hosts
{ONE_OF_2} RANK=abc | RANK is 'abc':
{ONE_OF_2} RANK=-1 | RANK is '?-1'?:
{ONE_OF_2} RANK= | RANK is '':
{ONE_OF_2} RANK=2 | RANK is '?2'?:
{ONE_OF_2} WORLD_SIZE=0 | WORLD_SIZE, 0
{ONE_OF_2} MASTER_PORT=99999 | MASTER_PORT is '99999':
{ONE_OF_2} MASTER_PORT= | MASTER_PORT is '':
PET_NNODES=1:2 | PET_NNODES is '1:2':
{SRUN_2} RANK=0 WORLD_SIZE=4 LOCAL_RANK=0 LOCAL_SIZE=4 CROSS_SIZE=1 | SLURM_STEP_NUM_TASKS  # srun -N2 deepspeed
{ONE_OF_2} MASTER_ADDR=tcp://me:pass@host | ^MASTER_ADDR: must be the host of rank 0 alone$
"""


@each_row(REFUSED)
def test_a_process_that_cannot_know_its_place_is_refused(variables, words):
    with refused(words):
        under(env(variables), torchrun_variables)


ALL_OF_2 = f"{ONE_OF_2} LOCAL_WORLD_SIZE=2"
TORCHRUN = f"{ALL_OF_2} TORCHELASTIC_RUN_ID=none"


@mark.parametrize("name", launch._OUTER_COUNTS)
def test_a_torchrun_of_one_host_that_is_started_several_times_is_refused(name):
    """Each would train apart, such as under `srun -N2 torchrun` without --nnodes."""
    outer = f"SLURM_NNODES=2 SLURM_NTASKS=2 {name}=2"
    with refused(f"^{name} is '2': .*unset {name} "):
        under(env(TORCHRUN, outer), detect_launcher)
    with refused(f"^{name} is '2': .*main_multi_gpu"):
        under(env(outer), check_is_alone)
    whole_runs = [
        env(TORCHRUN, f"{name}=1"),
        env(TORCHRUN, outer, "LOCAL_WORLD_SIZE=1"),  # on two hosts
        env(ALL_OF_2, outer),  # -ngpus=2, or a script has copied the variables of the outer launcher
        env(TORCHRUN, outer, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"),  # --nnodes=1:2 with one node left
        env(TORCHRUN, outer, "PET_NNODES=1:2"),
    ]
    assert [under(variables, detect_launcher) for variables in whole_runs] == 5 * ["torchrun"]


OF_THIS_HOST = """
variables | expected
LOCAL_SIZE=2 | 2  # deepspeed
LOCAL_SIZE=2 LOCAL_WORLD_SIZE=1 | 1
 | None
LOCAL_SIZE=20GB | None
LOCAL_SIZE=8 | None  # of another program
"""


@each_row(OF_THIS_HOST)
def test_ranks_of_this_host(variables, expected):
    place = under(env("RANK=0 WORLD_SIZE=2 LOCAL_RANK=0", variables), torchrun_variables)
    assert str(place.get("LOCAL_WORLD_SIZE")) == expected


def test_srun_variables():
    under(env("SLURM_STEP_NUM_TASKS=1 SLURM_NTASKS=8"), check_is_alone)
    ports = [int(under(env(SRUN, step), torchrun_variables)["MASTER_PORT"]) for step in ("", "SLURM_STEP_ID=1")]
    assert 20000 <= ports[0] < 30000
    assert ports[0] != ports[1]
    assert len(under(env(SRUN), torchrun_variables)) == 6


TRANSLATED = f"""
variables | expected
{SRUN} | RANK=5 WORLD_SIZE=7 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 MASTER_ADDR=node03
{SRUN} SLURM_NODEID=3 | LOCAL_WORLD_SIZE=1
{SRUN} SLURM_STEP_NODELIST=node1 | MASTER_ADDR=node1
{SRUN} SLURM_STEP_NODELIST=node[03-05,9],x | MASTER_ADDR=node03
{SRUN} SLURM_STEP_NODELIST=rack[2-3]-gpu[01,04].org,x | MASTER_ADDR=rack2-gpu01.org
{OPEN_MPI_LOCAL} MASTER_ADDR=head MASTER_PORT=1234 | MASTER_ADDR=head MASTER_PORT=1234 LOCAL_WORLD_SIZE=2
{OPEN_MPI_LOCAL} SLURM_NODELIST=node[1-2] | MASTER_ADDR=node1
"""


@each_row(TRANSLATED)
def test_variables_of_launchers_become_those_of_torchrun(variables, expected):
    assert under(env(variables), torchrun_variables).items() >= env(expected).items()


@mark.parametrize("launcher, status", [(0, 0), (1, -signal.SIGTERM)])  # this process; process 1, as if it had ended
def test_a_rank_whose_launcher_ended_during_its_start_ends_too(launcher, status):
    code = "from utils.processes.launch import exit_with_launcher; exit_with_launcher()"
    environment = os.environ | {"AMPVIT_LAUNCHER_PID": str(launcher or os.getpid())}
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment).returncode == status


SCRIPTS = ["main_single_gpu.py", "main_multi_gpu.py", "scripts/kubernetes/torchrun.py"]


def end_while_importing(
    folder: Path, script: str, text: str, *launcher: str, names: tuple[str, ...] = ("yaml", "torch")
) -> subprocess.CompletedProcess[str]:
    """Runs a script whose first import of one of these names, by default the first slow one, runs this text."""
    for name in names:
        (folder / f"{name}.py").write_text(f"import os, signal, time\n{text}\ntime.sleep(5)\nos._exit(0)")
    env = os.environ | {"PYTHONPATH": str(folder)}
    default = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # a shell may have it ignored
    command = [*launcher, sys.executable, *script.split()]
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, preexec_fn=default)


@mark.skipif(os.system("unshare -rpf true 2>/dev/null") != 0, reason="needs namespaces of processes")
@mark.parametrize("script", SCRIPTS)
def test_sigterm_ends_the_first_process_of_a_container_while_it_imports(tmp_path, script):
    """For docker and Kubernetes without an init process: the kernel drops signals to process 1 without a handler."""
    ended = end_while_importing(tmp_path, script, "os.kill(1, signal.SIGTERM)", "unshare", "-rpf")
    assert (ended.returncode, ended.stderr) == (143, "")


@mark.skipif(os.system("unshare -rpf true 2>/dev/null") != 0, reason="needs namespaces of processes")
@mark.parametrize("words, status", [("-h", 0), ("-unknown", 2)])
def test_the_first_process_of_a_container_has_the_status_of_the_script(words, status):
    command = ["unshare", "-rpf", sys.executable, "main_single_gpu.py", words]
    assert subprocess.run(command, cwd=ROOT, capture_output=True).returncode == status


@mark.parametrize("script", SCRIPTS)
def test_ctrl_c_while_a_script_imports_prints_no_traceback(tmp_path, script):
    ended = end_while_importing(tmp_path, script, "os.kill(os.getpid(), signal.SIGINT)")
    assert (ended.returncode, ended.stderr) == (-signal.SIGINT, "")


@mark.parametrize("script", ["main_single_gpu.py", "main_multi_gpu.py -ngpus=2"])
def test_sigterm_while_torch_imports_numpy_ends_the_run(tmp_path, script):
    """torch's C++ code hides exceptions there: the run would go on, and the scheduler kill it without a checkpoint."""
    words = f"{script} -device=cpu -dataset=digits -output={tmp_path}"
    ended = end_while_importing(tmp_path, words, "os.kill(os.getpid(), signal.SIGTERM)", names=("numpy",))
    assert (ended.returncode, ended.stderr) == (-signal.SIGTERM, "")
