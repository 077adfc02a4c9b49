"""The device of a run: its name, timing on it, and the memory allocator on a CPU."""

import ctypes
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # parameters of glibc's mallopt
_NEVER_TRIM, _NO_MMAP = -1, 0


def device_name(device: torch.device) -> str:
    """The product name: 'NVIDIA H200', 'CPU AMD EPYC 9354'. For a GPU this initializes the driver."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"CPU {names[0] if names else platform.machine()}"


def gpu_kind(device: torch.device) -> str:
    """The product name and the number of multiprocessors, which differs between parts of a GPU (MIG)."""
    properties = torch.cuda.get_device_properties(device)
    return f"{properties.name} with {properties.multi_processor_count} multiprocessors"


def timed(work: Callable[[], Any], device: torch.device) -> float:
    """Seconds that `work` takes on the device."""
    synchronize(device)
    started = time.perf_counter()
    work()
    synchronize(device)
    return time.perf_counter() - started


def synchronize(device: torch.device) -> None:
    """Waits until the device has finished all queued work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def keep_freed_memory() -> None:
    """Makes glibc reuse freed memory instead of returning it to the operating system.

    Each step allocates activations of the same sizes. The operating system clears new pages, which takes a seventh of
    ViT-Tiny's step on a CPU. The peak memory does not change. With other C libraries this function does nothing.
    """
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt:
        mallopt(_TRIM_THRESHOLD, _NEVER_TRIM)
        mallopt(_MMAP_MAX, _NO_MMAP)
