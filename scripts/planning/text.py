"""A plan as text: its input, tables of memory and speed, and their uncertainty."""

from typing import Any

from utils.columns import format_duration
from utils.tables import aligned_table

_MAX_CELL = 100
_NAMES = ("strategy", "checkpointing")
_STATE = ("parameters", "gradients", "moments", "average")
_SPEED = (*_NAMES, "step", "images/s", "", "of the peak", "epoch", "run", "GPU hours")


def plan_text(plan: dict[str, Any]) -> str:
    """`plan`: the values of `scripts.plan.make_plan`."""
    return "\n\n".join((_head(plan), _memory(plan), _speed(plan), "\n".join(_notes(plan))))


def _head(plan: dict[str, Any]) -> str:
    frozen = f", {plan['trained'] / 1e6:.1f} M trained" if plan["trained"] < plan["parameters"] else ""
    return (
        f"{plan['model']}: {plan['parameters'] / 1e6:.1f} M parameters{frozen}, {plan['flops_per_image'] / 1e9:,.1f} "
        f"GFLOP per training image; {plan['precision']}; {plan['optimizer']}\n"
        f"{plan['cluster']}: {plan['memory_bytes'] / 1e9:.4g} GB and {plan['peak'] / 1e12:,.1f} TFLOP/s each"
    )


def _memory(plan: dict[str, Any]) -> str:
    rows = [
        [
            *_names(row),
            *(f"{row['state_bytes'][part] / 1e9:.2f}" for part in _STATE),
            *(f"{row[key] / 1e9:.2f}" for key in ("gathered_bytes", "activation_bytes", "total_bytes")),
            f"{row['largest_batch']:,}" if row["largest_batch"] else "none fits",
        ]
        for row in plan["strategies"]
    ]
    title = f"Memory of a device at batch size {plan['batch_size']}, GB of {plan['memory_bytes'] / 1e9:.4g}:"
    header = (*_NAMES, *_STATE, "gathered", "activations", "total", "largest batch")
    return f"{title}\n{aligned_table(header, rows, _MAX_CELL)}"


def _speed(plan: dict[str, Any]) -> str:
    rows = []
    for row in plan["strategies"]:
        if row["largest_batch"] < plan["batch_size"]:
            rows.append([*_names(row), "does not fit", *[""] * (len(_SPEED) - 3)])
            continue
        speed, run = row["images_per_second"], row["epoch_seconds"] * plan["epochs"]
        lower, higher = (speed * (1 + error) for error in plan["error"])
        peak = plan["peak"] * plan["devices"]
        cells = [f"{1e3 * row['step_seconds']:.1f} ms", f"{speed:,.0f}", f"({lower:,.0f} to {higher:,.0f})"]
        cells += [f"{speed * plan['flops_per_image'] / peak:.1%}", format_duration(row["epoch_seconds"])]
        rows.append([*_names(row), *cells, format_duration(run), f"{row['gpu_hours']:,.0f}"])
        if plan["price"]:
            rows[-1][-1] += f", {row['gpu_hours'] * plan['price']:,.0f} at {plan['price']:g} each"
    title = (
        f"Speed at batch size {plan['batch_size']}, global batch {plan['global_batch']:,}; an epoch of "
        f"{plan['images_per_epoch']:,} images, a run of {plan['epochs']} epochs:"
    )
    return f"{title}\n{aligned_table(_SPEED, rows, _MAX_CELL)}"


def _names(row: dict[str, Any]) -> tuple[str, str]:
    return row["strategy"], "on" if row["grad_checkpointing"] else "off"


def _notes(plan: dict[str, Any]) -> list[str]:
    lower, higher = plan["error"]
    notes = [
        f"Predicted, not measured. Images/s: {-lower:.0%} lower to {higher:.0%} higher; {plan['mfu_source']}. Memory: "
        "within 10%, less with -compile. Not included: loading, evaluation, checkpoints, a teacher, PARALLEL.OFFLOAD."
    ]
    if plan["devices"] > 1 and plan["sharding_problem"]:
        notes.append(f"No FSDP, no HSDP: {plan['sharding_problem']}.")
    if not any(row["grad_checkpointing"] for row in plan["strategies"]):
        notes.append("No checkpointing: timm does not support it for this model.")
    return notes
