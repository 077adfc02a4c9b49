"""The device of a run: its name, its speed, and how a CPU process keeps its memory."""

import ctypes
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # parameters of glibc's mallopt
_NEVER, _NONE = -1, 0


def device_name(device: torch.device) -> str:
    """As its maker has it; 'NVIDIA H200', 'CPU AMD EPYC 9354'. For a GPU it opens the driver."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"CPU {names[0] if names else platform.machine()}"


def timed(work: Callable[[], Any], device: torch.device) -> float:
    """Seconds until the device has done the work."""
    synchronize(device)
    started = time.perf_counter()
    work()
    synchronize(device)
    return time.perf_counter() - started


def synchronize(device: torch.device) -> None:
    """Returns when the device has done all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def keep_freed_memory() -> None:
    """Lets glibc keep what is freed, for the next tensor of that size, in place of giving it back to the system.

    A step frees its activations and needs as many again in the next. What the system hands out it clears page by page,
    which took a seventh of ViT-Tiny's step on a CPU. The peak stays as it was. Other C libraries are left alone.
    """
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt:
        mallopt(_TRIM_THRESHOLD, _NEVER)
        mallopt(_MMAP_MAX, _NONE)
