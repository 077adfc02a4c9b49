"""scripts/slurm/train.sbatch under Slurm's real daemons: time limit, save, requeue, resume. About 4 minutes.

munged, slurmctld and one slurmd with four CPUs, which may be more than the host has, run on this host in a temporary
folder. They need root; nothing outside the folder is written or read.
"""

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from cluster_runs import PATH, assert_unbroken, flags, only_log, require, wait_for_log, wait_until
from conftest import ROOT
from pytest import fixture
from rank_pool import environment

EPOCHS = 10
# 719 images per rank and epoch, 0.02 s each: the first start of a job takes 144 s or more on any machine.
SLOW_START = ("DATA.HOST_AUGMENTATIONS={slow_start: {}}", f"-plugin={Path(__file__).with_name('slow_start.py')}")
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "squeue")
START_SECONDS = 30
STOP_SECONDS = 20
_CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmdPort={node_port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CryptoType=crypto/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/controller
SlurmdSpoolDir={folder}/node
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
PluginDir={plugins}
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=batch_sched_delay=0,sched_interval=2
SchedulerType=sched/builtin
ReturnToService=2
KillWait=30
MinJobAge=3600
SlurmdParameters=config_overrides
NodeName={host} NodeAddr=127.0.0.1 CPUs=4 RealMemory=1000 State=UNKNOWN
PartitionName=main Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


@fixture
def slurm(tmp_path) -> Iterator[dict[str, str]]:
    """The environment in which Slurm's commands reach the daemons; at the end it stops them and their jobs."""
    require(*PROGRAMS)
    folder = tmp_path / "daemons"
    folder.mkdir()
    (plugins,) = {path.parent for path in Path("/usr/lib").rglob("auth_munge.so")}
    host = socket.gethostname().partition(".")[0]
    ports = {"controller_port": _free_port(), "node_port": _free_port()}
    configuration = folder / "slurm.conf"
    configuration.write_text(_CONFIGURATION.format(host=host, folder=folder, plugins=plugins, **ports))
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    for name in ("controller", "node"):
        (folder / name).mkdir()
    env = environment() | {"SLURM_CONF": str(configuration), "PATH": PATH}
    files = {"socket": "socket", "log-file": "log", "pid-file": "pid", "seed-file": "seed"}
    options = [f"--{option}={folder}/munge.{name}" for option, name in files.items()]
    munged = ["munged", "--force", "--foreground", f"--key-file={key}", *options]
    daemons = []
    try:
        for command in (munged, ["slurmctld", "-D", "-i"], ["slurmd", "-D"]):
            with open(folder / f"{command[0]}.out", "w") as log:
                daemons.append(subprocess.Popen(command, env=env, stdout=log, stderr=log, start_new_session=True))
            if command[0] == "munged":
                wait_until((folder / "munge.socket").exists, "munged did not start", START_SECONDS)
        shows = partial(_output, ["sinfo", "-h", "-o", "%t"], env)
        wait_until(lambda: "idle" in shows(), "slurmd did not start; see its log", START_SECONDS)
        yield env
    finally:
        if len(daemons) == 3:
            _output(["scancel", "--state=RUNNING", "--signal=KILL", "--full"], env)
            _output(["scancel", "--user=root"], env)
            time.sleep(2)
        for daemon in reversed(daemons):
            daemon.send_signal(signal.SIGTERM)
            try:
                daemon.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(daemon.pid, signal.SIGKILL)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def _output(command: list[str], env: dict[str, str]) -> str:
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60).stdout


def edited(folder: Path, arguments: list[str]) -> str:
    """The batch file with other flags, as a user edits it."""
    text = (ROOT / "scripts/slurm/train.sbatch").read_text()
    text = re.sub(r"FLAGS=\(.*?\n\)", lambda _: f"FLAGS=({shlex.join(arguments)})", text, flags=re.DOTALL)
    text = text.replace("source .venv/bin/activate", f"export PATH={Path(sys.executable).parent}:$PATH")
    text = text.replace("#SBATCH --gpus-per-node=8\n", "")
    path = folder / "train.sbatch"
    path.write_text(text)
    return str(path)


def submit(slurm: dict[str, str], folder: Path, arguments: list[str], *options: str) -> str:
    sizes = ("--ntasks-per-node=2", "--cpus-per-task=1", f"--output={folder / 'job.log'}")
    command = ["sbatch", "--parsable", *sizes, *options, edited(folder, arguments)]
    return subprocess.run(command, cwd=ROOT, env=slurm, capture_output=True, text=True, check=True).stdout.strip()


def job(slurm: dict[str, str], number: str) -> dict[str, str]:
    shown = subprocess.run(["scontrol", "show", "job", number], env=slurm, capture_output=True, text=True).stdout
    return dict(word.split("=", 1) for word in shown.split() if "=" in word)


def wait_for_end(slurm: dict[str, str], number: str) -> dict[str, str]:
    ends = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
    wait_until(lambda: job(slurm, number)["JobState"] in ends, f"job {number} does not end")
    return job(slurm, number)


def test_a_run_of_several_time_limits_has_the_weights_of_an_unbroken_one(slurm, tmp_path):
    """Slurm counts time limits in minutes, and sends the signal up to a minute early: after 30 to 90 s."""
    output = tmp_path / "out"
    number = submit(slurm, tmp_path, flags(output, EPOCHS, *SLOW_START), "--time=2", "--signal=USR1@30")
    ended = wait_for_end(slurm, number)
    assert ended["JobState"] == "COMPLETED" and int(ended["Restarts"]) >= 1, (tmp_path / "job.log").read_text()
    assert "Interrupted by SIGUSR1; saved" in only_log(output)
    assert_unbroken(output, EPOCHS, *SLOW_START)


def test_cancelled_and_refused_jobs_are_not_requeued(slurm, tmp_path):
    output = tmp_path / "out"
    (tmp_path / "failing").mkdir()
    failing = submit(slurm, tmp_path / "failing", [*flags(output, 2), "DATA.DATASET=nothing"])
    number = submit(slurm, tmp_path, flags(output, 1000), "--time=10")
    wait_for_log(output, "Epoch[002")
    subprocess.run(["scancel", number], env=slurm, check=True)
    ended = wait_for_end(slurm, number)
    assert (ended["JobState"], ended["Restarts"]) == ("CANCELLED", "0")
    ended = wait_for_end(slurm, failing)
    assert (ended["JobState"], ended["Restarts"], ended["ExitCode"]) == ("FAILED", "0", "2:0")
    assert (tmp_path / "failing/job.log").read_text().count("error: DATA.DATASET: unknown data set nothing") == 1
