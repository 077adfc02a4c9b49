"""The part `machine` of benchmark_gpu.py: the speed of copies, and the floor of each training part's step, run eagerly.

The floor (roofline model of Williams et al., 2009) is the time of its matrix products, convolutions and attention
kernels, each timed alone on its own operands, plus the bytes that all other ops move at the speed of copies.
"""

import sys
from collections import Counter
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

from configs.command_line import parse_command_line
from configs.schema import Config
from engine.precision.policy import set_process_switches
from engine.run.flops import training_flops
from engine.training.batch_size import build_state, ready_batches
from engine.training.step import train_steps
from scripts.benchmarks.benchmark_gpu import WORKS
from scripts.benchmarks.benchmark_train import DEFAULTS
from scripts.benchmarks.programs import MODES, READY_OPTIONS
from scripts.benchmarks.turns import write_json
from scripts.flags import add_flag, flag_parser, positive, split_flags
from utils.device import device_name, timed
from utils.distributed import ProcessContext, single_process
from utils.processes.entry import run_and_report_errors
from utils.torch_compat import DispatchMode, op_name, returns_view, tree_leaves

ATTENTION = "_scaled_dot_product_"
_PRODUCTS = ("mm", "addmm", "bmm", "convolution", "convolution_backward")
_FREE = ("device", "empty", "new_empty", "_unsafe_view", "_record_function", "lift_fresh")
_OVERWRITES = ("copy_", "_foreach_copy_", "fill_", "zero_", "random_", "uniform_", "normal_")
COPY_BYTES = {"cuda": 2**31, "cpu": 2**28}  # larger than the caches
_CALLS = {"cuda": 10, "cpu": 1}  # of each trial, so that launching them does not count
_TRIALS = 3


def main(argv: list[str]) -> int:
    parser = flag_parser("benchmarks/machine.py", "Measures copies, and the floors of the training parts.")
    add_flag(parser, "small_batch", type=positive, required=True, metavar="N")
    add_flag(parser, "large_batch", type=positive, required=True, metavar="N")
    flags, rest = split_flags(parser, argv)
    context, floors = single_process(), dict[str, Any]()
    figures = {"device": device_name(context.device), "torch": torch.__version__, "floors": floors}
    figures["copy_bytes_per_second"] = copy_bytes_per_second(context.device)
    for setting, name in WORKS.items():
        size = flags.small_batch if setting.small else flags.large_batch
        words = [*DEFAULTS, *(setting.model or rest), f"-batch_size={size}"]
        config = parse_command_line([*words, "-opts", *MODES[setting.mode], *READY_OPTIONS, *setting.options]).config
        set_process_switches(config, context.device)
        floors[name] = {"batch_size": size, **floor_of_step(config.with_model(pretrained=None), context)}
        write_json(flags.json, figures)
    return 0


def copy_bytes_per_second(device: torch.device) -> float:
    """Of copies from the memory of the device to the same memory; bytes read and written count."""
    source = torch.ones(COPY_BYTES[device.type], dtype=torch.uint8, device=device)
    target = torch.zeros_like(source)
    return 2 * source.numel() / _fastest(lambda: target.copy_(source), device)


def floor_of_step(config: Config, context: ProcessContext) -> dict[str, float]:
    """Of the second step of a run: `flops`, `kernel_seconds` of products and attention, `other_bytes` of other ops."""
    state, batches = build_state(config, context), cycle(ready_batches(config, context))
    progress = state.new_progress(0)
    train_steps(state, batches, progress, 1, lambda _: None)  # creates the state of the optimizer
    with TrafficCounter(context.device, times_kernels=True) as step:
        train_steps(state, batches, progress, 2, lambda _: None)
    others = sum(moved for name, moved in step.num_bytes.items() if not name.startswith(ATTENTION))
    flops = training_flops(state.meta_model, config.data) * config.data.batch_size
    return {"kernel_seconds": step.seconds, "other_bytes": others, "flops": flops}


class TrafficCounter(DispatchMode):
    """The ops inside the context that are neither matrix products nor views, and the bytes that they move, by op.

    An op reads its inputs once and writes its outputs once. The fused attention kernels count, too.

    seconds: of the matrix products, convolutions and attention kernels with `times_kernels`: the first of equal calls,
    by shapes, strides and dtypes, is repeated and timed.
    """

    def __init__(self, device: torch.device, times_kernels: bool = False) -> None:
        super().__init__()
        self.device, self.times_kernels, self.seconds = device, times_kernels, 0.0
        self.ops: Counter[str] = Counter()
        self.num_bytes: Counter[str] = Counter()
        self._seconds_by_call: dict[tuple, float] = {}

    def __torch_dispatch__(self, op: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        result, name = op(*args, **kwargs), op_name(op)
        if not (returns_view(op) or name.startswith(_FREE) or name in _PRODUCTS):
            moved = sum(map(self._bytes_of, tree_leaves(_moved(op, name, args, kwargs, result))))
            self.ops[name] += bool(moved)
            self.num_bytes[name] += moved
        if self.times_kernels and (name in _PRODUCTS or name.startswith(ATTENTION)):
            call = (name, *map(_layout, tree_leaves([args, kwargs])))
            if call not in self._seconds_by_call:
                self._seconds_by_call[call] = _fastest(lambda: op(*args, **kwargs), self.device)
            self.seconds += self._seconds_by_call[call]
        return result

    def _bytes_of(self, value: Any) -> int:
        """The bytes of the distinct elements of a tensor on the device."""
        if not isinstance(value, torch.Tensor) or value.device.type != self.device.type:
            return 0
        sizes = [size for size, stride in zip(value.shape, value.stride(), strict=True) if stride]
        return torch.Size(sizes).numel() * value.itemsize


def _fastest(work: Callable[[], Any], device: torch.device) -> float:
    """Seconds of one call, the best of several trials of several calls."""
    calls = _CALLS[device.type]

    def repeat() -> None:
        for _ in range(calls):
            work()

    return min(timed(repeat, device) for _ in range(_TRIALS)) / calls


def _layout(value: Any) -> Any:
    return (value.shape, value.stride(), value.dtype) if isinstance(value, torch.Tensor) else repr(value)


def _moved(op: Any, name: str, args: tuple, kwargs: dict, result: Any) -> list[Any]:
    arguments = op._schema.arguments
    values = {argument.name: value for argument, value in zip(arguments, args, strict=False)} | kwargs
    is_written = {argument.name: bool(argument.alias_info and argument.alias_info.is_write) for argument in arguments}
    if name == "_fused_sgd_" and values.get("grad_scale") is None:
        is_written["grads"] = False  # the kernel stores them if it unscales them
    written = [value for name, value in values.items() if is_written[name]] or result
    read = [value for key, value in values.items() if not (is_written[key] and name in _OVERWRITES)]
    return [read, written]


if __name__ == "__main__":
    sys.exit(run_and_report_errors(main, sys.argv[1:]))
