"""The speed of square matrix products: a practical upper limit for the FLOP/s of a model."""

import torch

from engine.precision.policy import Precision
from utils.device import timed

SIZES = (256, 512, 1024, 2048, 4096, 8192)
_MAX_SECONDS = 0.03  # of one product; larger sizes are then not measured
_MAX_TRIALS, _MAX_TRIAL_SECONDS = 50, 0.1  # of each size


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
