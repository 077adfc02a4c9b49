"""Two hosts on this one: network namespaces with an address and a host name each, and a link that can be cut."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from clusters.cluster_runs import LIMIT_SECONDS, wait_until
from conftest import ROOT
from rank_pool import environment

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


@contextmanager
def two_hosts(folder: Path) -> Iterator[TwoHosts]:
    """Makes the hosts, and at the end removes them with all their processes."""
    hosts = TwoHosts(folder)
    lines = "".join(f"{address} {host}\n" for host, address in ADDRESSES.items())
    (folder / "hosts").write_text(f"127.0.0.1 localhost\n{lines}")
    try:
        for host in ADDRESSES:
            _ip("netns", "add", hosts.namespace(host))
        one, other = (hosts.interface(host) for host in ADDRESSES)
        _ip("link", "add", one, "type", "veth", "peer", "name", other)
        for host, address in ADDRESSES.items():
            namespace, interface = hosts.namespace(host), hosts.interface(host)
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
        return "main_multi_gpu.py" in _command(pid) and not is_torchrun(pid)

    wait_until(lambda: not any(is_worker(pid) for name in names for pid in processes(hosts, name)), "a worker lives on")


def is_torchrun(pid: int) -> bool:
    return "torch.distributed.run" in _command(pid)


def _command(pid: int) -> str:
    """The command line of a process; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)
