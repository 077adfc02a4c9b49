"""The cores of a rank: affinity sets of the ranks of a host, and CPU quotas of containers."""

import math
import os

import pytest
from torch.distributed import HashStore

from utils.system import core_share, cpu_quota, share_on_host, usable_cores


def bound(ranks: int, cores: int) -> list[set[int]]:
    """As Slurm binds them: each rank to cores of its own."""
    return [set(range(rank * cores, (rank + 1) * cores)) for rank in range(ranks)]


@pytest.mark.parametrize(
    ("of_ranks", "quota", "expected"),
    [
        ([set(range(16))] * 8, math.inf, 2),  # torchrun: all ranks may use all cores
        (bound(8, 16), math.inf, 16),  # srun
        ([set(range(128))] * 4, 30.0, 7),
        ([{0, 1, 2, 3}, {2, 3, 4, 5}], math.inf, 3),
        ([{0}] * 4, math.inf, 0),
    ],
)
def test_share_of_a_rank(of_ranks, quota, expected):
    share = core_share(of_ranks[0], of_ranks, quota)
    assert share.cores == expected
    assert f"{quota:g}" in share.source or str(len(of_ranks[0])) in share.source


def test_ranks_of_a_host_exchange_their_cores(monkeypatch):
    """Ranks 2 and 3 of four are on this host."""
    store = HashStore()
    store.set("cores 3", "2 3")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2})
    monkeypatch.setattr("utils.system.cpu_quota", lambda: math.inf)
    assert share_on_host(store, 2, [2, 3]).cores == 2
    assert store.get("cores 2") == b"0 1 2"


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        ("0::/", {"cpu.max": "800000 100000\n"}, 8.0),  # in a container, its own group is the root
        ("0::/", {"cpu.max": "max 100000\n"}, math.inf),
        ("0::/pod/job", {"pod/cpu.max": "250000 100000\n", "pod/job/cpu.max": "max 100000\n"}, 2.5),
        ("0::/docker/of-the-host", {"cpu.max": "300000 100000"}, 3.0),
        ("0::/", {"cpu.max": "damaged"}, math.inf),
    ],
)
def test_cpu_quota(tmp_path, groups, files, expected):
    (tmp_path / "groups").write_text(groups)
    for name, text in files.items():
        path = tmp_path / "mount" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert cpu_quota(tmp_path / "groups", tmp_path / "mount") == expected


def test_no_quota_without_control_groups(tmp_path):
    assert cpu_quota(tmp_path / "missing", tmp_path) == math.inf


def test_cores_without_affinity(monkeypatch):
    """A Mac has none."""
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 10)
    assert len(usable_cores()) == 10
