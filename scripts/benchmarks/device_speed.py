"""The speed of a device: matrix products and copies of memory, the two ceilings of a training step.

    python scripts/benchmarks/device_speed.py -json speed.json

Also counts the FLOPs of a training step.
"""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

from engine.precision.policy import Precision
from engine.run.mfu.flops import training_flops
from scripts.benchmarks.common import mode_config, write_json
from scripts.benchmarks.training_parts import build_plain_model
from scripts.flags import flag_parser, split_flags
from utils.device import device_name, timed
from utils.distributed import single_process
from utils.entry import run_and_report_errors
from utils.errors import UserError

MODES = ("O1-bf16", "O1-fp16", "O2-bf16", "fp32", "tf32")
SIZES = (256, 512, 1024, 2048, 4096, 8192)
_MAX_SECONDS = 0.03  # of one product; larger sizes are then not measured
_MAX_TRIALS, _MAX_TRIAL_SECONDS = 50, 0.1  # of each size
_PRODUCTS = {"cuda": 10, "cpu": 1}  # of each trial, so that launching them does not count
_COPY_BYTES = {"cuda": 2**31, "cpu": 2**28}  # larger than the caches
_COPIES, _COPY_TRIALS = 10, 3


def main(argv: list[str]) -> int:
    flags, rest = split_flags(flag_parser("benchmarks/device_speed.py", "Measures the speed of a device."), argv)
    measure(rest, flags.json)
    return 0


def measure(rest: list[str], file: Path | None) -> None:
    """Writes the device, its speed by mode, and the FLOPs of a training step per image, after each measurement.

    Raises:
        UserError: measurements failed; the file has the others.
    """
    context = single_process()
    config = mode_config(rest, MODES[0])
    peaks: dict[str, float] = {}
    figures = {"device": device_name(context.device), "torch": torch.__version__, "model": config.model.name}
    figures["peak_flops_per_second"] = peaks

    def count_flops() -> int:
        return training_flops(build_plain_model(config), config.data)

    def matmul_peak(mode: str) -> float:
        return matmul_flops_per_second(Precision(mode_config(rest, mode).amp, context.device))

    measurements: list[tuple[dict, str, Callable[[], float | str]]] = [
        (figures, "training_flops_per_image", count_flops),
        *((peaks, mode, partial(matmul_peak, mode)) for mode in MODES),
        (figures, "copy_bytes_per_second", partial(copy_bytes_per_second, context.device)),
    ]
    failures = []
    for target, name, run in measurements:
        try:
            target[name] = run()
        except Exception as error:  # of many types; the other measurements continue
            failures.append(f"{name}: {type(error).__name__}: {error}")
        write_json(file, figures)
    if failures:
        raise UserError(f"not measured: {'; '.join(failures)}")


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
    source = torch.ones(_COPY_BYTES[device.type], dtype=torch.uint8, device=device)
    target = torch.zeros_like(source)

    def copy() -> None:
        for _ in range(_COPIES):
            target.copy_(source)

    return 2 * source.numel() * _COPIES / min(timed(copy, device) for _ in range(_COPY_TRIALS))


if __name__ == "__main__":
    sys.exit(run_and_report_errors(main, sys.argv[1:]))
