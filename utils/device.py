"""What a device is called."""

import platform
from pathlib import Path

import torch


def device_name(device: torch.device) -> str:
    """As its maker has it; 'NVIDIA H200', 'CPU AMD EPYC 9354'. For a GPU it opens the driver."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"CPU {names[0] if names else platform.machine()}"
