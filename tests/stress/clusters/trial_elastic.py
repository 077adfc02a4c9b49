"""torchrun elastic over two hosts: a lost node, a returned node, an agent that is killed alone. About 6 minutes.

python -m pytest -q tests/stress/clusters/trial_elastic.py
"""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import two_hosts
from cluster_runs import flags, only_log, wait_for_log

LIMIT_SECONDS = 300
pytestmark = pytest.mark.skipif(two_hosts.missing_program() is not None, reason=str(two_hosts.missing_program()))


@pytest.fixture
def hosts(tmp_path):
    with two_hosts.two_hosts(tmp_path) as hosts:
        yield hosts


def start(hosts: two_hosts.TwoHosts, host: str, output: Path, name: str, epochs: int) -> subprocess.Popen:
    """The command of docs/clusters.md, with shorter timeouts of the rendezvous."""
    rendezvous = ("--rdzv_backend=c10d", "--rdzv_endpoint=host-a:29500", "--rdzv_id=run")
    short = "--rdzv_conf=last_call_timeout=5,keep_alive_interval=1,keep_alive_max_attempt=3"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes=1:2", "--nproc_per_node=1", "--max_restarts=3"]
    options = ("DATA.GLOBAL_BATCH_SIZE=64", "SAVE_FREQ_STEPS=5", "TIMEOUT_SECONDS=30")
    arguments = ["-resume=auto", *flags(output, epochs, *options)]
    command = [*torchrun, *rendezvous, short, "main_multi_gpu.py", *arguments]
    return hosts.run(host, command, name, TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")


def kill_host(hosts: two_hosts.TwoHosts, host: str) -> None:
    for pid in two_hosts.processes(hosts, host):
        os.kill(pid, signal.SIGKILL)


def wait_for_count(output: Path, pattern: str, count: int) -> None:
    deadline = time.monotonic() + LIMIT_SECONDS
    while len(re.findall(pattern, only_log(output))) < count:
        assert time.monotonic() < deadline, only_log(output)[-3000:]
        time.sleep(0.2)


def test_lost_node_and_its_return(hosts, tmp_path):
    output = tmp_path / "out"
    one = start(hosts, "host-a", output, "a", epochs=40)
    start(hosts, "host-b", output, "b", epochs=40)
    wait_for_log(output, "Epoch[003", LIMIT_SECONDS)
    kill_host(hosts, "host-b")
    killed = time.monotonic()
    wait_for_count(output, r"Resume: from", 1)
    print(f"resumed on one host after {time.monotonic() - killed:.0f} s")
    wait_for_log(output, "Epoch[006", LIMIT_SECONDS)
    other = start(hosts, "host-b", output, "b2", epochs=40)
    wait_for_count(output, r"Resume: from", 2)
    two_hosts.wait_for_ends([one, other], LIMIT_SECONDS)
    assert [one.poll(), other.poll()] == [0, 0], hosts.printed("a") + hosts.printed("b2")


def test_killed_agent_leaves_no_worker(hosts, tmp_path):
    output = tmp_path / "out"
    one = start(hosts, "host-a", output, "a", epochs=12)
    other = start(hosts, "host-b", output, "b", epochs=12)
    wait_for_log(output, "Epoch[003", LIMIT_SECONDS)
    (agent,) = [pid for pid in two_hosts.processes(hosts, "host-b") if two_hosts.is_torchrun(pid)]
    os.kill(agent, signal.SIGKILL)
    other.wait(LIMIT_SECONDS)
    seconds = two_hosts.wait_for_workers(hosts, LIMIT_SECONDS, "host-b")
    print(f"its worker ended after {seconds}")
    assert max(seconds.values()) < 30
    wait_for_count(output, r"Resume: from", 1)
    assert one.wait(LIMIT_SECONDS) == 0, hosts.printed("a")
