"""Two hosts (network namespaces) under torchrun: weights, a cut network, a folder that is not shared. 5 minutes."""

import subprocess
import sys
from pathlib import Path

from clusters import two_hosts
from clusters.cluster_runs import LIMIT_SECONDS, ROOT, assert_unbroken, flags, wait_for_log
from clusters.two_hosts import TwoHosts, on_hosts

TIMEOUT_SECONDS = 20
EPOCHS = 8
missing_program = two_hosts.missing_program


def finish(started: list[subprocess.Popen], hosts: TwoHosts, name: str) -> None:
    two_hosts.wait_for_ends(started, LIMIT_SECONDS)
    assert [process.poll() for process in started] == [0, 0], [
        hosts.printed(f"{name}-{host}") for host in ("host-a", "host-b")
    ]


def _trains_as_one_host(hosts: TwoHosts, folder: Path) -> None:
    finish(hosts.torchrun(flags(folder / "out", EPOCHS), "run"), hosts, "run")
    assert_unbroken(folder / "out", EPOCHS)


def _kubernetes(hosts: TwoHosts, folder: Path) -> None:
    """Every pod starts the same command; main_multi_gpu.py is its own torchrun."""
    node = {"PET_NNODES": "2", "PET_NPROC_PER_NODE": "1", "PET_MASTER_ADDR": "host-a", "PET_MASTER_PORT": "29500"}
    command = [sys.executable, str(ROOT / "main_multi_gpu.py"), *flags(folder / "out", EPOCHS)]
    started = [
        hosts.run(host, command, f"run-{host}", PET_NODE_RANK=str(rank), **node)
        for rank, host in enumerate(two_hosts.ADDRESSES)
    ]
    finish(started, hosts, "run")
    assert_unbroken(folder / "out", EPOCHS)


def _cut_network(hosts: TwoHosts, folder: Path) -> None:
    arguments = flags(folder / "out", EPOCHS, f"TIMEOUT_SECONDS={TIMEOUT_SECONDS}", "SAVE_FREQ_STEPS=5")
    started = hosts.torchrun(arguments, "cut")
    wait_for_log(folder / "out", "Epoch[003")
    hosts.link("down")
    seconds = two_hosts.wait_for_workers(hosts, LIMIT_SECONDS)
    hosts.link("up")
    printed = [hosts.printed(f"cut-{host}") for host in two_hosts.ADDRESSES]
    assert max(seconds.values()) < float("inf"), (seconds, printed)
    for text, host, rank in zip(printed, ("host-b", "host-a"), (1, 0), strict=True):
        (line,) = [line for line in text.splitlines() if line.startswith("error: ")]
        assert f"rank {rank}" in line and host in line and "network" in line
    two_hosts.wait_for_ends(started, LIMIT_SECONDS)
    finish(hosts.torchrun(["-resume=auto", *arguments], "resumed"), hosts, "resumed")
    assert_unbroken(folder / "out", EPOCHS)


def _folder_not_shared(hosts: TwoHosts, folder: Path) -> None:
    output = folder / "out"
    output.mkdir()
    started = hosts.torchrun(flags(output, EPOCHS), "run", mount_on_b=f"mount -t tmpfs tmpfs {output}")
    two_hosts.wait_for_ends(started, LIMIT_SECONDS)
    assert all(process.returncode for process in started)
    errors = [
        line
        for host in two_hosts.ADDRESSES
        for line in hosts.printed(f"run-{host}").splitlines()
        if line.startswith("error: ")
    ]
    assert len(errors) == 1 and all(word in errors[0] for word in ("host-a", "host-b", str(output))), errors


TRIALS = {
    "the weights of one host": on_hosts(_trains_as_one_host),
    "node variables of Kubernetes": on_hosts(_kubernetes),
    "a cut network, and the run is resumed": on_hosts(_cut_network),
    "a folder that is not shared": on_hosts(_folder_not_shared),
}
