"""Two hosts under torchrun, fixed and elastic: weights, faults of the network. 9 minutes.

The hosts are network namespaces of this machine with an address and a host name each, and a link that can be cut.
"""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cluster_runs import LIMIT_SECONDS, assert_unbroken, flags, only_log, require, wait_for_log, wait_until
from conftest import ROOT
from pytest import fixture
from rank_pool import environment

EPOCHS = 8
ADDRESSES = {"host-a": "10.213.7.1", "host-b": "10.213.7.2"}
_ENTER = 'hostname "$1" && mount --bind "$2" /etc/hosts && eval "$3" && shift 3 && exec "$@"'


@dataclass
class TwoHosts:
    """`folder` receives the output of the processes. Both hosts see all files, unless `run` mounts others."""

    folder: Path

    def namespace(self, host: str) -> str:
        return f"ampvit-{os.getpid()}-{host[-1]}"

    def interface(self, host: str) -> str:
        return f"av{os.getpid()}{host[-1]}"

    def link(self, state: str) -> None:
        """Cuts ('down') or restores ('up') the link between the hosts."""
        _ip("-n", self.namespace("host-a"), "link", "set", self.interface("host-a"), state)

    def run(self, host: str, command: list[str], name: str, mount: str = "true", **variables: str) -> subprocess.Popen:
        """Starts `command` on a host; `mount` is a shell command that changes the files that the host sees."""
        hosts = self.folder / "hosts"
        enter = ["ip", "netns", "exec", self.namespace(host), "unshare", "--uts", "--mount", "sh", "-c", _ENTER, "sh"]
        with open(self.folder / f"{name}.log", "w") as log:
            return subprocess.Popen(
                [*enter, host, str(hosts), mount, *command],
                cwd=ROOT, env=environment() | variables, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    def torchrun(self, arguments: list[str], name: str, mount_on_b: str = "true") -> list:
        """Starts torchrun with one process on each host, as in docs/clusters.md."""
        nodes = ("--nnodes=2", "--nproc_per_node=1", "--master_addr=host-a", "--master_port=29500")
        torchrun = [sys.executable, "-m", "torch.distributed.run", *nodes]
        commands = [[*torchrun, f"--node_rank={rank}", "main_multi_gpu.py", *arguments] for rank in range(2)]
        return [
            self.run(host, command, f"{name}-{host}", mount)
            for host, command, mount in zip(ADDRESSES, commands, ("true", mount_on_b), strict=True)
        ]

    def printed(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()


@fixture
def hosts(tmp_path) -> Iterator[TwoHosts]:
    """Makes the hosts, and at the end removes them with all their processes."""
    require("ip", "unshare")
    hosts = TwoHosts(tmp_path)
    lines = "".join(f"{address} {host}\n" for host, address in ADDRESSES.items())
    (tmp_path / "hosts").write_text(f"127.0.0.1 localhost\n{lines}")
    try:
        for host in ADDRESSES:
            _ip("netns", "add", hosts.namespace(host))
        one, other = (hosts.interface(host) for host in ADDRESSES)
        _ip("link", "add", one, "type", "veth", "peer", "name", other)
        for host, address in ADDRESSES.items():
            namespace = hosts.namespace(host)
            interface = hosts.interface(host)
            _ip("link", "set", interface, "netns", namespace)
            _ip("-n", namespace, "addr", "add", f"{address}/24", "dev", interface)
            _ip("-n", namespace, "link", "set", interface, "up")
            _ip("-n", namespace, "link", "set", "lo", "up")
        yield hosts
    finally:
        for host in ADDRESSES:
            for pid in processes(hosts, host):
                os.kill(pid, signal.SIGKILL)
            subprocess.run(["ip", "netns", "delete", hosts.namespace(host)], capture_output=True)
        subprocess.run(["ip", "link", "delete", hosts.interface("host-a")], capture_output=True)


def processes(hosts: TwoHosts, host: str) -> list[int]:
    command = ["ip", "netns", "pids", hosts.namespace(host)]
    return [int(word) for word in subprocess.run(command, capture_output=True, text=True).stdout.split()]


def wait_for_ends(started: list[subprocess.Popen]) -> list[int]:
    """The exit statuses of the processes."""
    return [process.wait(LIMIT_SECONDS) for process in started]


def wait_for_workers(hosts: TwoHosts, *names: str) -> None:
    """Waits until the workers of these hosts have ended; their launchers may run on."""

    def is_worker(pid: int) -> bool:
        return "main_multi_gpu.py" in _command(pid) and "torch.distributed.run" not in _command(pid)

    wait_until(lambda: not any(is_worker(pid) for name in names for pid in processes(hosts, name)), "a worker lives on")


def _command(pid: int) -> str:
    """The command line of a process; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


def finish(started: list[subprocess.Popen], hosts: TwoHosts, name: str) -> None:
    assert wait_for_ends(started) == [0, 0], [hosts.printed(f"{name}-{host}") for host in ADDRESSES]


def errors(hosts: TwoHosts, name: str) -> list[str]:
    return [line for line in hosts.printed(name).splitlines() if line.startswith("error: ")]


def test_node_variables_of_kubernetes(hosts, tmp_path):
    """Every pod starts the same command."""
    node = {"PET_NNODES": "2", "PET_NPROC_PER_NODE": "1", "PET_MASTER_ADDR": "host-a", "PET_MASTER_PORT": "29500"}
    torchrun = [sys.executable, "-m", "torch.distributed.run"]
    command = [*torchrun, str(ROOT / "main_multi_gpu.py"), *flags(tmp_path / "out", EPOCHS)]
    started = [
        hosts.run(host, command, f"run-{host}", PET_NODE_RANK=str(rank), **node) for rank, host in enumerate(ADDRESSES)
    ]
    finish(started, hosts, "run")
    assert_unbroken(tmp_path / "out", EPOCHS)


def test_a_run_is_resumed_after_a_cut_network(hosts, tmp_path):
    arguments = flags(tmp_path / "out", EPOCHS, "TIMEOUT_SECONDS=20", "SAVE_FREQ_STEPS=5")
    started = hosts.torchrun(arguments, "cut")
    wait_for_log(tmp_path / "out", "Epoch[003")
    hosts.link("down")
    wait_for_workers(hosts, *ADDRESSES)
    hosts.link("up")
    for rank, host in enumerate(ADDRESSES):
        (line,) = errors(hosts, f"cut-{host}")
        assert f"rank {rank} ({host})" in line and "network" in line, line
    wait_for_ends(started)
    finish(hosts.torchrun(["-resume=auto", *arguments], "resumed"), hosts, "resumed")
    assert_unbroken(tmp_path / "out", EPOCHS)


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


def test_an_elastic_run_survives_a_lost_node_and_its_return(hosts, tmp_path):
    output = tmp_path / "out"
    one = start_elastic(hosts, "host-a", output, "a", epochs=40)
    start_elastic(hosts, "host-b", output, "b", epochs=40)
    wait_for_log(output, "Epoch[003")
    for pid in processes(hosts, "host-b"):
        os.kill(pid, signal.SIGKILL)
    wait_for_count(output, r"Resume: from", 1)
    wait_for_log(output, "Epoch[006")
    other = start_elastic(hosts, "host-b", output, "b2", epochs=40)
    wait_for_count(output, r"Resume: from", 2)
    assert wait_for_ends([one, other]) == [0, 0], hosts.printed("a") + hosts.printed("b2")
