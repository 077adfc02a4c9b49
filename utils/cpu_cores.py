"""The cores that this process may use: its affinity, shared with other ranks, and the CPU quota of its container."""

import math
import os
from collections.abc import Sequence, Set
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

import torch.distributed as dist

_GROUPS, _MOUNT = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


class CoreShare(NamedTuple):
    """The cores of one rank, and where the number comes from, for the log."""

    cores: int
    source: str


def usable_cores() -> Set[int]:
    """The cores on which this process may run; all of them where the system has no affinity, as macOS."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def own_share() -> CoreShare:
    """The cores of a process that shares them with no other rank."""
    return core_share(cores := usable_cores(), [cores], cpu_quota())


def share_on_host(store: dist.Store, rank: int, ranks: Sequence[int]) -> CoreShare:
    """The share of `rank`; `ranks` are all ranks of its host, and each of them must call this function."""
    cores = usable_cores()
    store.set(f"cores {rank}", " ".join(map(str, cores)))
    texts = store.multi_get([f"cores {other}" for other in ranks])
    return core_share(cores, [set(map(int, text.split())) for text in texts], cpu_quota())


def core_share(cores: Set[int], of_ranks: Sequence[Set[int]], quota: float) -> CoreShare:
    """The share of a rank with these cores: each core is divided by the number of ranks that may run on it.

    of_ranks: the cores of all ranks in the container, which share its `quota`.
    """
    ranks = len(of_ranks)
    share = sum((Fraction(1, sum(core in other for other in of_ranks)) for core in cores), Fraction(0))
    if quota / ranks < share:
        return CoreShare(int(quota / ranks), f"CPU quota of {quota:g} cores for {ranks} rank(s)")
    return CoreShare(int(share), f"{len(cores)} core(s)" + (f" for {ranks} ranks" if share < len(cores) else ""))


def control_groups(groups: Path = _GROUPS, mount: Path = _MOUNT) -> list[Path]:
    """The folders of this process's control group and of its parents.

    In a container, `groups` may have the path of the host, while `mount` has only the container's own group. Version 1
    of control groups, which Linux distributions no longer use, is not read.
    """
    lines = groups.read_text().splitlines() if groups.exists() else []
    found = [mount / line.removeprefix("0::").lstrip("/") for line in lines if line.startswith("0::")]
    return [folder for group in found for folder in (group, *group.parents) if folder.is_relative_to(mount)]


def cpu_quota(groups: Path = _GROUPS, mount: Path = _MOUNT) -> float:
    """The CPU quota in cores, the lowest of this process's control group and its parents; infinite if there is none."""
    return min(map(_quota, control_groups(groups, mount)), default=math.inf)


def _quota(group: Path) -> float:
    """The quota of one control group from its file 'QUOTA PERIOD', in which 'max' is none."""
    try:
        quota, period = (group / "cpu.max").read_text().split()
        return math.inf if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):  # the root group has no such file
        return math.inf
