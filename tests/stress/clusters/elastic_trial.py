"""torchrun elastic over two hosts: a lost node, a returned node, an agent that is killed alone. About 6 minutes."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from clusters import two_hosts
from clusters.cluster_runs import LIMIT_SECONDS, flags, only_log, wait_for_log
from clusters.two_hosts import TwoHosts, on_hosts
from results import show_progress

missing_program = two_hosts.missing_program


def start(hosts: TwoHosts, host: str, output: Path, name: str, epochs: int) -> subprocess.Popen:
    """The command of docs/clusters.md, with shorter timeouts of the rendezvous."""
    rendezvous = ("--rdzv_backend=c10d", "--rdzv_endpoint=host-a:29500", "--rdzv_id=run")
    short = "--rdzv_conf=last_call_timeout=5,keep_alive_interval=1,keep_alive_max_attempt=3"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes=1:2", "--nproc_per_node=1", "--max_restarts=3"]
    options = ("DATA.GLOBAL_BATCH_SIZE=64", "SAVE_FREQ_STEPS=5", "TIMEOUT_SECONDS=30")
    arguments = ["-resume=auto", *flags(output, epochs, *options)]
    command = [*torchrun, *rendezvous, short, "main_multi_gpu.py", *arguments]
    return hosts.run(host, command, name, TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")


def kill_host(hosts: TwoHosts, host: str) -> None:
    for pid in two_hosts.processes(hosts, host):
        os.kill(pid, signal.SIGKILL)


def wait_for_count(output: Path, pattern: str, count: int) -> None:
    deadline = time.monotonic() + LIMIT_SECONDS
    while len(re.findall(pattern, only_log(output))) < count:
        assert time.monotonic() < deadline, only_log(output)[-3000:]
        time.sleep(0.2)


def _lost_node(hosts: TwoHosts, folder: Path) -> None:
    output = folder / "out"
    one = start(hosts, "host-a", output, "a", epochs=40)
    start(hosts, "host-b", output, "b", epochs=40)
    wait_for_log(output, "Epoch[003")
    kill_host(hosts, "host-b")
    killed = time.monotonic()
    wait_for_count(output, r"Resume: from", 1)
    show_progress(f"resumed on one host after {time.monotonic() - killed:.0f} s")
    wait_for_log(output, "Epoch[006")
    other = start(hosts, "host-b", output, "b2", epochs=40)
    wait_for_count(output, r"Resume: from", 2)
    two_hosts.wait_for_ends([one, other], LIMIT_SECONDS)
    assert [one.poll(), other.poll()] == [0, 0], hosts.printed("a") + hosts.printed("b2")


def _killed_agent(hosts: TwoHosts, folder: Path) -> None:
    output = folder / "out"
    one = start(hosts, "host-a", output, "a", epochs=12)
    other = start(hosts, "host-b", output, "b", epochs=12)
    wait_for_log(output, "Epoch[003")
    (agent,) = [pid for pid in two_hosts.processes(hosts, "host-b") if two_hosts.is_torchrun(pid)]
    os.kill(agent, signal.SIGKILL)
    other.wait(LIMIT_SECONDS)
    seconds = two_hosts.wait_for_workers(hosts, LIMIT_SECONDS, "host-b")
    show_progress(f"its worker ended after {seconds}")
    assert max(seconds.values()) < float("inf")
    wait_for_count(output, r"Resume: from", 1)
    assert one.wait(LIMIT_SECONDS) == 0, hosts.printed("a")


TRIALS = {
    "a lost node, and its return": on_hosts(_lost_node),
    "a killed agent leaves no worker": on_hosts(_killed_agent),
}
