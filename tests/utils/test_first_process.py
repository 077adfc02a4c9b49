"""A signal ends process 1 of a container at any time: while it imports, and while it waits for another host."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import ROOT

NAMESPACE = ["unshare", "-rpf", "--mount-proc"]
TORCHRUN = ["scripts/kubernetes/torchrun.py", "--nnodes=2", "--node_rank=0", "--master_addr=127.0.0.1", "--master_port"]
RANK = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}


def wait_until(condition):
    for _ in range(6000):
        if found := condition():
            return found
        time.sleep(0.01)
    raise TimeoutError


def children(process: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def listens(port: str) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", int(port))) == 0


@pytest.mark.slow
@pytest.mark.skipif(os.system(" ".join([*NAMESPACE, "true 2>/dev/null"])) != 0, reason="no process namespaces")
@pytest.mark.parametrize(
    ("command", "variables", "waits"),
    [
        (["main_multi_gpu.py"], {}, False),
        (["main_multi_gpu.py"], RANK, True),
        (TORCHRUN, {}, False),
        (TORCHRUN, {}, True),
    ],
)
def test_a_signal_ends_process_1(command, variables, waits, tmp_path):
    """waits: the signal arrives while the process waits for the other host; otherwise before its imports."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    command = [*command, port, "main_multi_gpu.py"] if command is TORCHRUN else command
    command = [*NAMESPACE, sys.executable, *command, "-cfg=configs/vit_digits.yaml", f"-output={tmp_path}"]
    env = os.environ | variables | {"MASTER_PORT": port}
    with subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as unshare:
        (first,) = wait_until(lambda: children(unshare.pid))
        wait_until(lambda: listens(port) if waits else children(first))
        os.kill(first, signal.SIGTERM)
        assert unshare.wait(timeout=60) == 128 + signal.SIGTERM, unshare.stderr.read()
        assert not any(tmp_path.iterdir())
