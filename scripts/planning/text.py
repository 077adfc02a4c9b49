"""A plan as text: its input, tables of memory and speed, and their uncertainty."""

import argparse

from configs.resolve import resolve
from configs.schema import Config
from engine.precision.policy import precision_name
from scripts.planning.devices import parse_cluster
from scripts.planning.estimate import Estimate, estimate, strategies
from scripts.planning.workload import GPU, measure_workload
from utils.columns import format_duration
from utils.errors import UserError
from utils.tables import aligned_table

ASSUMED_MFU, ASSUMED_ERROR = 0.33, (-0.25, 0.35)  # published ViTs have an MFU of 25% to 45%
_MAX_CELL = 100
_STATE = ("parameters", "gradients", "moments", "average")
_MEMORY = ("strategy", "checkpointing", *_STATE, "gathered", "activations", "total", "largest batch")
_SPEED = ("strategy", "checkpointing", "step", "images/s", "", "of the peak", "epoch", "run", "GPU hours", "cost")


def plan_text(config: Config, flags: argparse.Namespace) -> str:
    """The plan of a run on the devices of `flags`, for each strategy with and without gradient checkpointing.

    Raises:
        UserError: the model, the optimizer, the batch size or the device has no plan.
    """
    if not config.data.batch_size:
        raise UserError("-batch_size=auto: is found by the run; give a size here, the plan has the largest one")
    if config.model.tuned == "probe":
        raise UserError("MODEL.TUNE probe: is one pass over the images, not a training; plan MODEL.TUNE=head")
    cluster = parse_cluster(flags.devices, flags.nodes, flags.network)
    workload, batch_size, train = measure_workload(config), config.data.batch_size, config.train
    accumulation, peak = resolve(config, None, cluster.size).train.accum_iter, cluster.peak(workload.precision)
    rows = [
        estimate(workload, strategy, batch_size, accumulation, ASSUMED_MFU, checkpointing)
        for strategy in strategies(workload, config.parallel, cluster).values()
        for checkpointing in workload.passes
    ]

    def speed_row(row: Estimate) -> list[str]:
        if row.largest_batch < batch_size:
            return [*_names(row), "does not fit", *[""] * (len(_SPEED) - 3)]
        speed = row.images_per_second
        lower, higher = (speed * (1 + part) for part in ASSUMED_ERROR)
        epoch = flags.images / speed
        gpu_hours = epoch * train.num_epochs * cluster.size / 3600
        mfu_of_row = f"{speed * workload.flops_per_image / (peak * cluster.size):.1%}"
        speeds = [f"{1e3 * row.step_seconds:.1f} ms", f"{speed:,.0f}", f"({lower:,.0f} to {higher:,.0f})", mfu_of_row]
        durations = [format_duration(epoch), format_duration(epoch * train.num_epochs), f"{gpu_hours:,.1f}"]
        return [*_names(row), *speeds, *durations, f"{gpu_hours * flags.price:,.2f}" if flags.price else ""]

    frozen = f", {workload.trained / 1e6:.1f} M trained" if workload.trained < workload.parameters else ""
    precision = precision_name(workload.precision.options, GPU)
    average = ", average" if train.model_ema else ""
    gigabytes = f"{cluster.memory_bytes / 1e9:.4g}"
    lines = [
        f"{config.model.name}: {workload.parameters / 1e6:.1f} M parameters{frozen}, "
        f"{workload.flops_per_image / 1e9:,.1f} GFLOP per training image; {precision}; {train.optimizer.name}{average}",
        f"{cluster}: {gigabytes} GB and {peak / 1e12:,.1f} TFLOP/s each",
        f"\nMemory of a device at batch size {batch_size}, GB of {gigabytes}:",
        aligned_table(_MEMORY, map(_memory_row, rows), _MAX_CELL),
        f"\nSpeed at batch size {batch_size}, global batch {batch_size * accumulation * cluster.size:,}; an epoch of "
        f"{flags.images:,} images (-images; the data is not read), a run of {train.num_epochs} epochs:",
        aligned_table(_SPEED, map(speed_row, rows), _MAX_CELL),
        f"\nPredicted, not measured. Images/s: {-ASSUMED_ERROR[0]:.0%} lower to {ASSUMED_ERROR[1]:.0%} higher, at an "
        f"assumed MFU of {ASSUMED_MFU:.0%}; the log of a run on such a device has the real one. "
        "Memory: within 10%, less with -compile. Not included: loading, the start of ops by the host (small models and "
        "batches), evaluation, checkpoints, a teacher, the options of PARALLEL but SHARDS_PER_GROUP.",
    ]
    if cluster.size > 1 and workload.sharding_problem:
        lines.append(f"No FSDP, no HSDP: they do not support {workload.sharding_problem}.")
    if True not in workload.passes:
        lines.append("No checkpointing: timm does not support it for this model.")
    return "\n".join(lines)


def _memory_row(row: Estimate) -> list[str]:
    parts = [*(row.state_bytes[part] for part in _STATE), row.gathered_bytes, row.activation_bytes, row.total_bytes]
    largest = f"{row.largest_batch:,}" if row.largest_batch else "none fits"
    return [*_names(row), *(f"{part / 1e9:.2f}" for part in parts), largest]


def _names(row: Estimate) -> list[str]:
    return [row.strategy, "on" if row.grad_checkpointing else "off"]
