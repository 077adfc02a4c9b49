"""Two hosts (network namespaces) under torchrun, fixed and elastic: weights, faults of the network. 11 minutes."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from clusters import cluster_runs, two_hosts
from clusters.cluster_runs import LIMIT_SECONDS, assert_unbroken, flags, only_log, wait_for_log, wait_until
from clusters.two_hosts import TwoHosts, wait_for_ends, wait_for_workers
from conftest import ROOT

EPOCHS = 8


def missing_program() -> str | None:
    return cluster_runs.missing_program("ip", "unshare")


def finish(started: list[subprocess.Popen], hosts: TwoHosts, name: str) -> None:
    assert wait_for_ends(started) == [0, 0], [hosts.printed(f"{name}-{host}") for host in two_hosts.ADDRESSES]


def errors(hosts: TwoHosts, name: str) -> list[str]:
    return [line for line in hosts.printed(name).splitlines() if line.startswith("error: ")]


def _trains_as_one_host(hosts: TwoHosts, folder: Path) -> None:
    finish(hosts.torchrun(flags(folder / "out", EPOCHS), "run"), hosts, "run")
    assert_unbroken(folder / "out", EPOCHS)


def _kubernetes(hosts: TwoHosts, folder: Path) -> None:
    """Every pod starts the same command."""
    node = {"PET_NNODES": "2", "PET_NPROC_PER_NODE": "1", "PET_MASTER_ADDR": "host-a", "PET_MASTER_PORT": "29500"}
    torchrun = [sys.executable, "-m", "torch.distributed.run"]
    command = [*torchrun, str(ROOT / "main_multi_gpu.py"), *flags(folder / "out", EPOCHS)]
    started = [
        hosts.run(host, command, f"run-{host}", PET_NODE_RANK=str(rank), **node)
        for rank, host in enumerate(two_hosts.ADDRESSES)
    ]
    finish(started, hosts, "run")
    assert_unbroken(folder / "out", EPOCHS)


def _cut_network(hosts: TwoHosts, folder: Path) -> None:
    arguments = flags(folder / "out", EPOCHS, "TIMEOUT_SECONDS=20", "SAVE_FREQ_STEPS=5")
    started = hosts.torchrun(arguments, "cut")
    wait_for_log(folder / "out", "Epoch[003")
    hosts.link("down")
    wait_for_workers(hosts, *two_hosts.ADDRESSES)
    hosts.link("up")
    for host, other, rank in (("host-a", "host-b", 1), ("host-b", "host-a", 0)):
        (line,) = errors(hosts, f"cut-{host}")
        assert f"rank {rank}" in line and other in line and "network" in line, line
    wait_for_ends(started)
    finish(hosts.torchrun(["-resume=auto", *arguments], "resumed"), hosts, "resumed")
    assert_unbroken(folder / "out", EPOCHS)


def _folder_not_shared(hosts: TwoHosts, folder: Path) -> None:
    output = folder / "out"
    output.mkdir()
    started = hosts.torchrun(flags(output, EPOCHS), "run", mount_on_b=f"mount -t tmpfs tmpfs {output}")
    assert all(wait_for_ends(started))
    (line,) = [line for host in two_hosts.ADDRESSES for line in errors(hosts, f"run-{host}")]
    assert all(word in line for word in ("host-a", "host-b", str(output))), line


def start_elastic(hosts: TwoHosts, host: str, output: Path, name: str, epochs: int) -> subprocess.Popen:
    """The command of docs/clusters.md, with shorter timeouts of the rendezvous."""
    rendezvous = ("--rdzv_backend=c10d", "--rdzv_endpoint=host-a:29500", "--rdzv_id=run")
    short = "--rdzv_conf=last_call_timeout=5,keep_alive_interval=1,keep_alive_max_attempt=3"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes=1:2", "--nproc_per_node=1", "--max_restarts=3"]
    options = ("DATA.GLOBAL_BATCH_SIZE=64", "SAVE_FREQ_STEPS=5", "TIMEOUT_SECONDS=30")
    arguments = ["-resume=auto", *flags(output, epochs, *options)]
    command = [*torchrun, *rendezvous, short, "main_multi_gpu.py", *arguments]
    return hosts.run(host, command, name, TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")


def wait_for_count(output: Path, pattern: str, count: int) -> None:
    wait_until(lambda: len(re.findall(pattern, only_log(output))) >= count, f"not {count} times: {pattern}")


def _lost_node(hosts: TwoHosts, folder: Path) -> None:
    output = folder / "out"
    one = start_elastic(hosts, "host-a", output, "a", epochs=40)
    start_elastic(hosts, "host-b", output, "b", epochs=40)
    wait_for_log(output, "Epoch[003")
    for pid in two_hosts.processes(hosts, "host-b"):
        os.kill(pid, signal.SIGKILL)
    wait_for_count(output, r"Resume: from", 1)
    wait_for_log(output, "Epoch[006")
    other = start_elastic(hosts, "host-b", output, "b2", epochs=40)
    wait_for_count(output, r"Resume: from", 2)
    assert wait_for_ends([one, other]) == [0, 0], hosts.printed("a") + hosts.printed("b2")


def _killed_agent(hosts: TwoHosts, folder: Path) -> None:
    output = folder / "out"
    one = start_elastic(hosts, "host-a", output, "a", epochs=12)
    other = start_elastic(hosts, "host-b", output, "b", epochs=12)
    wait_for_log(output, "Epoch[003")
    (agent,) = [pid for pid in two_hosts.processes(hosts, "host-b") if two_hosts.is_torchrun(pid)]
    os.kill(agent, signal.SIGKILL)
    other.wait(LIMIT_SECONDS)
    wait_for_workers(hosts, "host-b")
    wait_for_count(output, r"Resume: from", 1)
    assert one.wait(LIMIT_SECONDS) == 0, hosts.printed("a")


def _on_hosts(trial: Callable[[TwoHosts, Path], None], folder: Path) -> None:
    with two_hosts.two_hosts(folder) as hosts:
        trial(hosts, folder)


TRIALS = {
    "the weights of one host": partial(_on_hosts, _trains_as_one_host),
    "node variables of Kubernetes": partial(_on_hosts, _kubernetes),
    "a cut network, and the run is resumed": partial(_on_hosts, _cut_network),
    "a folder that is not shared": partial(_on_hosts, _folder_not_shared),
    "elastic: a lost node, and its return": partial(_on_hosts, _lost_node),
    "elastic: a killed agent leaves no worker": partial(_on_hosts, _killed_agent),
}
