"""How long a device takes: it works on while the host goes on."""

import time
from collections.abc import Callable
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
    """Returns when the device has done all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
