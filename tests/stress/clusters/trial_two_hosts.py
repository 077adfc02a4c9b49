"""Two hosts (network namespaces) under torchrun: equal weights, a pulled cable, a folder that is not shared. 5 minutes.

python -m pytest -q tests/stress/clusters/trial_two_hosts.py
"""

import subprocess
import sys

import pytest
import two_hosts
from cluster_runs import ROOT, assert_same_weights, flags, train_unbroken, wait_for_log

LIMIT_SECONDS = 600
TIMEOUT_SECONDS = 20
EPOCHS = 8
pytestmark = pytest.mark.skipif(two_hosts.missing_program() is not None, reason=str(two_hosts.missing_program()))


@pytest.fixture
def hosts(tmp_path):
    with two_hosts.two_hosts(tmp_path) as hosts:
        yield hosts


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    output = tmp_path_factory.mktemp("unbroken")
    train_unbroken(flags(output, EPOCHS))
    return output


def finish(started: list[subprocess.Popen], hosts: two_hosts.TwoHosts, name: str) -> None:
    two_hosts.wait_for_ends(started, LIMIT_SECONDS)
    assert [process.poll() for process in started] == [0, 0], [
        hosts.printed(f"{name}-{host}") for host in ("host-a", "host-b")
    ]


def test_two_hosts_train_as_two_processes_of_one(hosts, unbroken, tmp_path):
    finish(hosts.torchrun(flags(tmp_path / "out", EPOCHS), "run"), hosts, "run")
    assert_same_weights(tmp_path / "out", unbroken)


def test_node_variables_of_kubernetes(hosts, unbroken, tmp_path):
    """Every pod starts the same command; main_multi_gpu.py is its own torchrun."""
    node = {"PET_NNODES": "2", "PET_NPROC_PER_NODE": "1", "PET_MASTER_ADDR": "host-a", "PET_MASTER_PORT": "29500"}
    command = [sys.executable, str(ROOT / "main_multi_gpu.py"), *flags(tmp_path / "out", EPOCHS)]
    started = [
        hosts.run(host, command, f"run-{host}", PET_NODE_RANK=str(rank), **node)
        for rank, host in enumerate(two_hosts.ADDRESSES)
    ]
    finish(started, hosts, "run")
    assert_same_weights(tmp_path / "out", unbroken)


def test_hosts_that_are_cut_apart_end_and_resume(hosts, unbroken, tmp_path):
    arguments = flags(tmp_path / "out", EPOCHS, f"TIMEOUT_SECONDS={TIMEOUT_SECONDS}", "SAVE_FREQ_STEPS=5")
    started = hosts.torchrun(arguments, "cut")
    wait_for_log(tmp_path / "out", "Epoch[003", LIMIT_SECONDS)
    hosts.link("down")
    seconds = two_hosts.wait_for_workers(hosts, TIMEOUT_SECONDS + 60)
    print(f"workers ended after {seconds}")
    hosts.link("up")
    printed = [hosts.printed(f"cut-{host}") for host in two_hosts.ADDRESSES]
    assert max(seconds.values()) <= TIMEOUT_SECONDS + 10, (seconds, printed)
    for text, host, rank in zip(printed, ("host-b", "host-a"), (1, 0), strict=True):
        (line,) = [line for line in text.splitlines() if line.startswith("error: ")]
        print(line)
        assert f"rank {rank}" in line and host in line and "network" in line
    two_hosts.wait_for_ends(started, LIMIT_SECONDS)
    finish(hosts.torchrun(["-resume=auto", *arguments], "resumed"), hosts, "resumed")
    assert_same_weights(tmp_path / "out", unbroken)


def test_folder_that_one_host_does_not_see_is_refused(hosts, tmp_path):
    output = tmp_path / "out"
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
    print(errors)
    assert len(errors) == 1 and all(word in errors[0] for word in ("host-a", "host-b", str(output)))
