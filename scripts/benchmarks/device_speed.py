"""The speed of a device: matrix products, a practical upper limit for the FLOP/s of a model, and copies of memory."""

import torch

from engine.precision.policy import Precision
from utils.device import timed

SIZES = (256, 512, 1024, 2048, 4096, 8192)
_MAX_SECONDS = 0.03  # of one product; larger sizes are then not measured
_MAX_TRIALS, _MAX_TRIAL_SECONDS = 50, 0.1  # of each size
_COPY_BYTES, _COPIES, _COPY_TRIALS = 2**28, 10, 3  # larger than the caches


def matmul_flops_per_second(precision: Precision) -> float:
    """The best of several sizes, in the dtype that the run computes in."""
    device = precision.device
    generator = torch.Generator(device).manual_seed(0)
    best = 0.0
    for size in SIZES:
        matrix = torch.randn(size, size, device=device, generator=generator).to(precision.dtype)
        seconds: list[float] = []
        while len(seconds) < _MAX_TRIALS and sum(seconds) < _MAX_TRIAL_SECONDS:
            seconds.append(timed(lambda matrix=matrix: matrix @ matrix, device))
        best = max(best, 2 * size**3 / min(seconds))
        if min(seconds) > _MAX_SECONDS:
            break
    return best


def copy_bytes_per_second(device: torch.device) -> float:
    """The best of several copies from the memory of the device to the same memory; bytes read and written count."""
    source = torch.ones(_COPY_BYTES, dtype=torch.uint8, device=device)
    target = torch.zeros_like(source)

    def copy() -> None:
        for _ in range(_COPIES):
            target.copy_(source)

    return 2 * _COPY_BYTES * _COPIES / min(timed(copy, device) for _ in range(_COPY_TRIALS))
