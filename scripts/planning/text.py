"""A plan as text: what was planned, tables of memory and speed, and how far to trust them."""

from scripts.planning.plan import Plan, Row
from scripts.planning.speed import HOST_SECONDS_PER_OP
from utils.columns import format_duration
from utils.tables import aligned_table

MEMORY_HEADER = (
    *("strategy", "checkpointing", "parameters", "gradients", "moments", "average", "gathered", "activations"),
    *("total", "largest batch"),
)
SPEED_HEADER = ("strategy", "checkpointing", "step", "images/s", "", "of the peak", "epoch", "run")
_MAX_CELL = 100
_OTHER_BATCHES = (0.25, 0.5, 2, 4)  # times the planned one


def plan_text(plan: Plan) -> str:
    return "\n\n".join((_head(plan), _memory(plan), _activations(plan), _speed(plan), "\n".join(_notes(plan))))


def _head(plan: Plan) -> str:
    work, cluster, train = plan.workload, plan.cluster, plan.config.train
    frozen = f", {work.trained / 1e6:.1f} M trained" if work.trained < work.parameters else ""
    optimizer = f"{train.optimizer.name}{', average' if train.model_ema else ''}"
    network = f", network {8e-9 * cluster.network:.4g} Gbit/s" if cluster.nodes > 1 else ""
    link = f"; per device: link {cluster.link / 1e9:.4g} GB/s in a host{network}" if cluster.size > 1 else ""
    peak = cluster.peak(work.dtype, work.tf32)
    return "\n".join(
        (
            f"{work.name}: {work.parameters / 1e6:.1f} M parameters{frozen}, "
            f"{work.flops_per_image / 1e9:,.1f} GFLOP per training image; {work.precision}; {optimizer}",
            f"{cluster}: {cluster.memory_bytes / 1e9:.4g} GB and {peak / 1e12:,.1f} TFLOP/s each{link}",
        )
    )


def _memory(plan: Plan) -> str:
    rows = []
    for row in plan.rows:
        memory = row.memory
        parts = (memory.parameters, memory.gradients, memory.moments, memory.average, memory.gathered)
        passes = memory.activations * plan.batch_size + memory.fixed
        cells = [f"{part / 1e9:.2f}" for part in (*parts, passes, memory.total(plan.batch_size))]
        rows.append([*_names(row), *cells, f"{row.largest_batch:,}" if row.largest_batch else "none fits"])
    title = f"Memory of a device at batch size {plan.batch_size}, GB of {plan.cluster.memory_bytes / 1e9:.4g}:"
    return f"{title}\n{aligned_table(MEMORY_HEADER, rows, _MAX_CELL)}"


def _activations(plan: Plan) -> str:
    sizes = sorted({plan.batch_size, *(max(1, int(plan.batch_size * factor)) for factor in _OTHER_BATCHES)})
    rows = [
        ["on" if checkpointing else "off", *(f"{passes.at(size) / 1e9:.2f}" for size in sizes)]
        for checkpointing, passes in plan.workload.passes.items()
    ]
    header = ("checkpointing", *(f"batch {size}" for size in sizes))
    return f"Activations by batch size, GB:\n{aligned_table(header, rows, _MAX_CELL)}"


def _speed(plan: Plan) -> str:
    rows = []
    for row in plan.rows:
        if not plan.fits(row):
            rows.append([*_names(row), "does not fit", "", "", "", "", ""])
            continue
        speed, epoch = row.step.images_per_second, plan.epoch_seconds(row)
        low, high = plan.range_of(speed)
        peak = plan.cluster.peak(plan.workload.dtype, plan.workload.tf32) * plan.cluster.size
        rows.append(
            [
                *_names(row),
                f"{1e3 * row.step.seconds:.1f} ms",
                f"{speed:,.0f}",
                f"({low:,.0f} to {high:,.0f})",
                f"{speed * plan.workload.flops_per_image / peak:.1%}",
                format_duration(epoch),
                format_duration(epoch * plan.config.train.num_epochs),
            ]
        )
    images = plan.batch_size * plan.accumulation * plan.cluster.size
    title = (
        f"Speed at batch size {plan.batch_size}, global batch {images:,}; an epoch of "
        f"{plan.images_per_epoch:,} images, a run of {plan.config.train.num_epochs} epochs:"
    )
    return f"{title}\n{aligned_table(SPEED_HEADER, rows, _MAX_CELL)}"


def _names(row: Row) -> tuple[str, str]:
    return row.layout.name, "on" if row.checkpointing else "off"


def _notes(plan: Plan) -> list[str]:
    work, calibration = plan.workload, plan.calibration
    if calibration is None:
        source = (
            f"an MFU of {plan.mfu:.0%} is assumed (published ViTs: 25% to 45%; convolutional networks reach less); "
            "-calibrate RUN takes that of a measured run"
        )
    else:
        where = f"{calibration.model} on {calibration.device}, {calibration.images_per_second:,.1f} images/s"
        source = f"an MFU of {plan.mfu:.1%} in compute, from {where}"
        if calibration.device != plan.cluster.device:
            source += ", another device than the planned one"
    lower, higher = plan.error
    error = f"within {lower:.0%}" if lower == higher else f"{lower:.0%} lower to {higher:.0%} higher"
    notes = [
        f"Predicted, not measured. Images/s: {error}; {source}. Memory: within 10%, less with "
        "-compile. Loading, evaluation and checkpoints are not included."
    ]
    host = plan.workload.passes[False].ops * HOST_SECONDS_PER_OP
    compute = min(row.step.compute for row in plan.rows) / plan.accumulation
    if plan.config.train.compile == "none" and host > compute:
        notes.append(
            f"The host starts the ops of a micro-step in about {1e3 * host:.0f} ms, longer than the device computes: "
            "raise -batch_size, or use -compile."
        )
    if plan.cluster.size > 1 and work.sharding_problem:
        notes.append(f"No FSDP, no HSDP: {work.sharding_problem}.")
    if True not in work.passes:
        notes.append("No checkpointing: timm does not support it for this model.")
    if plan.config.parallel.offload:
        notes.append("PARALLEL.OFFLOAD is not planned: its speed depends on the host.")
    if plan.config.train.distillation_type != "none":
        notes.append("The teacher's memory and time are not included.")
    return notes
