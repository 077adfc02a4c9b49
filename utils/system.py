"""Checks of system and packages, settings of OpenMP, cores and free memory of a process. It imports no other package.

The cores that a process may use: its affinity, shared with other ranks, and the CPU quota of its container.
"""

import atexit
import gc
import importlib.util
import math
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence, Set
from contextlib import contextmanager, suppress
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from utils.errors import UserError

if TYPE_CHECKING:  # torch is imported later
    import torch.distributed as dist

_REQUIRED = ("torch", "torchvision", "timm", "pydantic", "yaml", "tqdm", "numpy", "PIL", "safetensors")


def why_unusable() -> str | None:
    """The problem that would make a later import fail, such as torch's, and its remedy; None if there is none."""
    if sys.platform not in ("linux", "darwin"):
        return f"this system ({sys.platform}) is not supported; use Linux, macOS, or WSL 2 on Windows"
    folders = [
        ("the current folder", os.getcwd, "change to one that exists"),
        ("TMPDIR", tempfile.gettempdir, "set it to a folder that can be written"),
    ]
    for name, find, fix in folders:
        try:
            find()
        except OSError as error:
            return f"{name}: {error.strerror}; {fix}"
    if missing := _missing_packages(_REQUIRED):
        return f"not installed: {', '.join(missing)}; source .venv/bin/activate, or pip install -r requirements.txt"
    return None


DEVICE_FILES = Path("/dev")
EXCLUDES_GPUS = ("", "-1", "NoDevFiles")  # values of CUDA_VISIBLE_DEVICES; the last one is Slurm's
_SPINS = "GOMP_SPINCOUNT"
_POLICY = "OMP_WAIT_POLICY"
# Tens of microseconds to 1 ms, and a tenth of it beside many programs; libgomp's default is 30 times as long.
_DEFAULT_SPINS = "10000"
_SPINS_WHEN_BUSY = "1000"
_LOAD = Path("/proc/loadavg")


def limit_spinning(device: str | None) -> None:
    """Lets idle threads of libgomp sleep early, unless there is a GPU or the user's variables say how threads wait.

    If other programs use the cores, a thread that spins takes time from the thread for which it waits. Call it before
    torch is imported. Other OpenMP libraries ignore the variable. The results are bit-identical. device: of -device.
    """
    if lacks_gpus(device) and not os.environ.keys() & {_SPINS, _POLICY}:
        running = 0  # threads of other programs that run or wait for a core at this moment
        with suppress(OSError, ValueError, IndexError):  # the system does not say
            running = int(_LOAD.read_text().split()[3].partition("/")[0]) - 1
        os.environ[_SPINS] = _SPINS_WHEN_BUSY if running > (os.cpu_count() or 1) else _DEFAULT_SPINS


def lacks_gpus(device: str | None) -> bool:
    """Returns whether this process uses no GPU, without asking the driver. device: of -device."""
    is_excluded = device == "cpu" or os.environ.get("CUDA_VISIBLE_DEVICES") in EXCLUDES_GPUS
    return is_excluded or not has_nvidia_gpu()


def has_nvidia_gpu() -> bool:
    """Whether this machine or container has the device file of a GPU."""
    return any(DEVICE_FILES.glob("nvidia[0-9]*"))


@contextmanager
def without_collections() -> Iterator[None]:
    """For imports: Python collects no garbage in the block, and later ignores the objects that are there at its end.

    Collections take a quarter of the time in which torch and timm import. A signal ends the process at once: torch
    hides the exception of a handler that runs while its C++ code imports numpy.
    """
    from utils.signals import TERMINATION_SIGNALS  # late: Windows lacks some

    handlers = {number: signal.signal(number, signal.SIG_DFL) for number in TERMINATION_SIGNALS}
    gc.disable()
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        gc.enable()
        gc.freeze()
        atexit.register(_unfreeze)


def _unfreeze() -> None:
    """For Triton, which reports objects that are left at exit. To collect all imported ones takes a second."""
    if "triton" in sys.modules:
        gc.unfreeze()


_PIP_NAMES = {
    "PIL": "pillow", "sklearn": "scikit-learn", "yaml": "pyyaml",
}  # fmt: skip


def is_installed(module: str) -> bool:
    """Returns whether a module can be imported. Of `package.module` this imports the package."""
    with suppress(ModuleNotFoundError):
        return sys.modules.get(module) is not None or importlib.util.find_spec(module) is not None
    return False


def package_folder(name: str) -> Path:
    """The folder of a required package, without its import."""
    return Path(importlib.util.find_spec(name).origin).parent  # type: ignore[union-attr, arg-type]


def require(feature: str, *modules: str) -> None:
    """Raises UserError if the user asks for a feature, such as 'DATA.DATASET digits', and a module is not installed."""
    if missing := _missing_packages(modules):
        raise UserError(f"{feature}: needs {', '.join(missing)}; pip install {' '.join(missing)}")


def _missing_packages(modules: Sequence[str]) -> list[str]:
    """The names by which pip installs the modules that are not installed."""
    return [_PIP_NAMES.get(module, module) for module in modules if not is_installed(module)]


def seconds_since_start() -> float:
    """Of this process; 0 where the system does not tell."""
    with suppress(OSError), open("/proc/self/stat") as file:
        ticks = int(file.read().rpartition(")")[2].split()[19])
        return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return 0.0


_GROUPS = Path("/proc/self/cgroup")
_MOUNT = Path("/sys/fs/cgroup")
# Of a control group and its children, in version 2 and 1: files of the limit and of the use, and the key of memory.stat
# for pages of files that were not used lately.
_MEMORY_FILES = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
_QUOTA_FILES = (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us"))  # in version 2 and 1; -1 is no quota


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


def share_on_host(store: "dist.Store", rank: int, ranks: Sequence[int]) -> CoreShare:
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


def control_groups(controller: str) -> list[Path]:
    """The folders of this process's control group and of its parents; in version 1 of `controller`: memory, cpu.

    In a container, `_GROUPS` may have the path of the host, while `_MOUNT` has only the container's own group.
    """
    lines = _GROUPS.read_text().splitlines() if _GROUPS.exists() else []
    found = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:  # version 2
            found.append(_MOUNT / path.lstrip("/"))
        elif controller in controllers.split(","):
            found.append(_MOUNT / controller / path.lstrip("/"))  # a link, if a folder has several controllers
    return [folder for group in found for folder in (group, *group.parents) if folder.is_relative_to(_MOUNT)]


def cpu_quota() -> float:
    """The CPU quota in cores, the lowest of this process's control group and its parents; infinite if there is none."""
    quotas = [math.inf]
    for group in control_groups("cpu"):
        for names in _QUOTA_FILES:
            with suppress(OSError, ValueError):  # the root group has no such file; 'max' is no quota
                quota, period = map(int, " ".join((group / name).read_text() for name in names).split())
                quotas.append(quota / period if quota > 0 else math.inf)
    return min(quotas)


def available_bytes() -> float:
    """Free host memory without swapping, within the limit of the job's control group; 0 if it is unknown."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        on_host = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return 0
    return min(on_host, *map(_free_bytes_in, control_groups("memory")))


def _free_bytes_in(group: Path) -> float:
    """Pages of files that were not used lately count as free, as Docker and Kubernetes count them."""
    for limit, used, unused_pages in _MEMORY_FILES:
        with suppress(OSError, ValueError):  # no such group, or the limit is 'max'
            free = int((group / limit).read_text()) - int((group / used).read_text())
            pages = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
            return free + int(pages.get(unused_pages, 0))
    return math.inf
