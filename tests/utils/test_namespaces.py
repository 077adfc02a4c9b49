"""Programs in namespaces: a run without a launcher listens on the loopback interface only."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import GREY, ROOT, TINY_VIT, noise_folder, run_folders
from rank_pool import environment

LIMIT_SECONDS = 300
LOOPBACK = {"0100007F", "00000000000000000000000001000000"}  # as in /proc
# A host with its own network, whose name is an address that other hosts reach. $1: its /etc/hosts
HOST = (
    "ip link set lo up && ip link add av0 type veth peer name av1 && ip addr add 10.213.9.1/24 dev av0 && "
    'ip link set av0 up && ip link set av1 up && hostname host-c && mount --bind "$1" /etc/hosts && shift && exec "$@"'
)


@pytest.fixture
def host(tmp_path) -> list[str]:
    """The start of a command line on this host."""
    (tmp_path / "hosts").write_text("127.0.0.1 localhost\n10.213.9.1 host-c\n")
    command = ["unshare", "--net", "--uts", "--mount", "sh", "-c", HOST, "sh", str(tmp_path / "hosts")]
    if not (shutil.which("unshare") and shutil.which("ip")):
        pytest.skip("needs unshare and ip")
    if subprocess.run([*command, "true"], capture_output=True).returncode:
        pytest.skip("may not make a network namespace")
    return command


def children(process: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def descendants(parent: int) -> list[int]:
    """A process and all processes below it."""
    return [parent, *(process for child in children(parent) for process in descendants(child))]


def listening(process: int) -> list[str]:
    """The addresses on which a process listens: the lines of its own sockets in state 0A."""
    tables = (Path(f"/proc/{process}/net/{name}").read_text().splitlines()[1:] for name in ("tcp", "tcp6"))
    fields = [line.split() for table in tables for line in table]
    own = set()
    for descriptor in Path(f"/proc/{process}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            own.add(os.readlink(descriptor))
    return [one[1].partition(":")[0] for one in fields if one[3] == "0A" and f"socket:[{one[9]}]" in own]


def wait_for_epoch(output: Path, launcher: subprocess.Popen) -> None:
    """Waits until the first epoch of the run has ended."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while time.monotonic() < deadline and launcher.poll() is None:
        if any((folder / "last.pth").exists() for folder in run_folders(output)):
            return
        time.sleep(0.1)
    raise AssertionError("no epoch has ended")


@pytest.mark.slow
def test_a_run_without_a_launcher_listens_on_loopback_only(host, tmp_path):
    """Its images are in files: the server of its workers is a fork of a rank."""
    root = noise_folder(tmp_path / "noise", 12, 4, (8, 8))
    flags = ["-ngpus=2", "-num_workers=1", f"-output={tmp_path / 'out'}", "-dataset=imagenet2012"]
    flags += [f"-data_path={root}", "-batch_size=2", "-opts", *TINY_VIT, *GREY]
    flags += ["MODEL.NUM_CLASSES=2", "TRAIN.NUM_EPOCHS=10000"]
    with open(tmp_path / "printed", "wb") as printed:
        command = [*host, sys.executable, "main_multi_gpu.py", *flags]
        launcher = subprocess.Popen(command, cwd=ROOT, env=environment(), stdout=printed, stderr=printed)
    try:
        wait_for_epoch(tmp_path / "out", launcher)
        processes = descendants(launcher.pid)
        addresses = {process: listening(process) for process in processes}
        ranks = children(launcher.pid)
    finally:
        launcher.send_signal(signal.SIGTERM)
        status = launcher.wait(LIMIT_SECONDS)
    assert status == 128 + signal.SIGTERM
    assert {address for found in addresses.values() for address in found} <= LOOPBACK
    assert all(addresses[process] for process in (launcher.pid, *ranks))
    assert len(processes) > 5  # loading workers, too
