"""The part `machine` of benchmark_gpu.py: the speed of matrix products and of copies, the two ceilings of a step.

Also counts the FLOPs of a training step. Each figure is written to the file of `-json` when it is measured.
"""

import sys
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[3]))

from engine.precision.policy import Precision, set_process_switches
from engine.run.flops import training_flops
from models.build import build_model
from scripts.benchmarks.programs import mode_config
from scripts.benchmarks.turns import write_json
from scripts.flags import flag_parser, split_flags
from utils.device import device_name, timed
from utils.distributed import single_process
from utils.processes.entry import run_and_report_errors

MODES = ("O1-bf16", "O1-fp16", "O2-bf16", "fp32", "tf32")
SIZES = (256, 512, 1024, 2048, 4096, 8192)
_MAX_SECONDS = 0.03  # of one product; larger sizes are then not measured
_TRIALS = 10  # of each size
_PRODUCTS = {"cuda": 10, "cpu": 1}  # of each trial, so that launching them does not count
COPY_BYTES = {"cuda": 2**31, "cpu": 2**28}  # larger than the caches
_COPIES, _COPY_TRIALS = 10, 3


def main(argv: list[str]) -> int:
    flags, rest = split_flags(flag_parser("benchmarks/gpu/machine.py", "Measures the speed of a device."), argv)
    device, config = single_process().device, mode_config(rest, MODES[0]).with_model(pretrained=None)
    model, _ = build_model(config.model, config.data, torch.device("cpu"))
    peaks: dict[str, float] = {}
    figures: dict[str, Any] = {"device": device_name(device), "torch": torch.__version__, "model": config.model.name}
    figures["training_flops_per_image"] = training_flops(model, config.data)
    figures["copy_bytes_per_second"] = copy_bytes_per_second(device)
    figures["peak_flops_per_second"] = peaks
    for mode in MODES:
        config = mode_config(rest, mode)
        set_process_switches(config, device)
        peaks[mode] = matmul_flops_per_second(Precision(config.amp, device))
        write_json(flags.json, figures)
    return 0


def matmul_flops_per_second(precision: Precision) -> float:
    """The best of several sizes, in the dtype that the run computes in."""
    device, products, best = precision.device, _PRODUCTS[precision.device.type], 0.0
    generator = torch.Generator(device).manual_seed(0)
    for size in SIZES:
        matrix = torch.randn(size, size, device=device, generator=generator).to(precision.dtype)

        def multiply(matrix: torch.Tensor = matrix) -> None:
            for _ in range(products):
                matrix @ matrix

        timed(multiply, device)
        seconds = min(timed(multiply, device) for _ in range(_TRIALS)) / products
        best = max(best, 2 * size**3 / seconds)
        if seconds > _MAX_SECONDS:
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
