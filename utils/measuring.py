"""What is measured on a device: how long, and on what."""

import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch


def timed(work: Callable[[], Any], device: torch.device) -> float:
    """Seconds until the device has done the work."""
    wait_for(device)
    started = time.perf_counter()
    work()
    wait_for(device)
    return time.perf_counter() - started


def wait_for(device: torch.device) -> None:
    """Returns when the device has done all it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else _cpu_name()


def measured_on(device: torch.device) -> dict[str, Any]:
    """What every measured speed depends on, for the questions of `utils.cache.found_once`."""
    return {"device": device_name(device), "torch": torch.__version__, "threads": torch.get_num_threads()}


def _cpu_name() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"CPU {names[0] if names else platform.machine()}"
