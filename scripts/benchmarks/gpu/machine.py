"""The part `machine` of benchmark_gpu.py: the speed of matrix products and of copies, the two ceilings of a step.

Also counts the FLOPs of a training step.
"""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[3]))

from engine.precision.policy import Precision
from engine.run.mfu.flops import training_flops
from scripts.benchmarks.common import mode_config, write_json
from scripts.benchmarks.training_parts import build_plain_model
from scripts.flags import flag_parser, split_flags
from utils.device import device_name, timed
from utils.distributed import single_process
from utils.errors import UserError
from utils.processes.entry import run_and_report_errors

MODES = ("O1-bf16", "O1-fp16", "O2-bf16", "fp32", "tf32")
SIZES = (256, 512, 1024, 2048, 4096, 8192)
_MAX_SECONDS = 0.03  # of one product; larger sizes are then not measured
_MAX_TRIALS, _MAX_TRIAL_SECONDS = 50, 0.1  # of each size
_PRODUCTS = {"cuda": 10, "cpu": 1}  # of each trial, so that launching them does not count
COPY_BYTES = {"cuda": 2**31, "cpu": 2**28}  # larger than the caches
_COPIES, _COPY_TRIALS = 10, 3


def main(argv: list[str]) -> int:
    """Writes each figure to the file of `-json` when it is measured.

    Raises:
        UserError: measurements failed; the file has the others.
    """
    flags, rest = split_flags(flag_parser("benchmarks/gpu/machine.py", "Measures the speed of a device."), argv)
    context, config = single_process(), mode_config(rest, MODES[0])
    peaks: dict[str, float] = {}
    figures = {"device": device_name(context.device), "torch": torch.__version__, "model": config.model.name}
    figures["peak_flops_per_second"] = peaks

    def matmul_peak(mode: str) -> float:
        return matmul_flops_per_second(Precision(mode_config(rest, mode).amp, context.device))

    measurements: list[tuple[dict, str, Callable[[], float]]] = [
        (figures, "training_flops_per_image", lambda: training_flops(build_plain_model(config), config.data)),
        *((peaks, mode, partial(matmul_peak, mode)) for mode in MODES),
        (figures, "copy_bytes_per_second", partial(copy_bytes_per_second, context.device)),
    ]
    failures = []
    for target, name, run in measurements:
        try:
            target[name] = run()
        except Exception as error:  # of many types; the other measurements continue
            failures.append(f"{name}: {type(error).__name__}: {error}")
        write_json(flags.json, figures)
    if failures:
        raise UserError(f"not measured: {'; '.join(failures)}")
    return 0


def matmul_flops_per_second(precision: Precision) -> float:
    """The best of several sizes, in the dtype that the run computes in."""
    device = precision.device
    generator = torch.Generator(device).manual_seed(0)
    best, products = 0.0, _PRODUCTS[device.type]
    for size in SIZES:
        matrix = torch.randn(size, size, device=device, generator=generator).to(precision.dtype)
        seconds: list[float] = []

        def multiply(matrix: torch.Tensor = matrix) -> None:
            for _ in range(products):
                matrix @ matrix

        timed(multiply, device)
        while len(seconds) < _MAX_TRIALS and sum(seconds) * products < _MAX_TRIAL_SECONDS:
            seconds.append(timed(multiply, device) / products)
        best = max(best, 2 * size**3 / min(seconds))
        if min(seconds) > _MAX_SECONDS:
            break
    return best


def copy_bytes_per_second(device: torch.device) -> float:
    """The best of several copies from the memory of the device to the same memory; bytes read and written count."""
    source = torch.ones(COPY_BYTES[device.type], dtype=torch.uint8, device=device)
    target = torch.zeros_like(source)

    def copy() -> None:
        for _ in range(_COPIES):
            target.copy_(source)

    return 2 * source.numel() * _COPIES / min(timed(copy, device) for _ in range(_COPY_TRIALS))


if __name__ == "__main__":
    sys.exit(run_and_report_errors(main, sys.argv[1:]))
