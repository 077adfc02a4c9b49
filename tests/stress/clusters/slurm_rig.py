"""Slurm's real daemons on this host, in a temporary folder: munged, slurmctld and one slurmd with four CPUs.

The CPUs may be more than the host has. The daemons need root; nothing outside the folder is written or read.
"""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from clusters.cluster_runs import PATH, wait_until
from rank_pool import environment

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


@contextmanager
def slurm(folder: Path) -> Iterator[dict[str, str]]:
    """Yields the environment in which Slurm's commands reach the daemons; at the end stops them and their jobs."""
    (plugins,) = {path.parent for path in Path("/usr/lib").rglob("auth_munge.so")}
    host, ports = socket.gethostname().partition(".")[0], {"controller_port": _free_port(), "node_port": _free_port()}
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
