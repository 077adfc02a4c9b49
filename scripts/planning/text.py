"""A plan as text: its input, tables of memory and speed, and their uncertainty."""

from typing import Any

from utils.columns import format_duration
from utils.tables import aligned_table

_MAX_CELL = 100
_STATE = ("parameters", "gradients", "moments", "average")
_MEMORY = ("strategy", "checkpointing", *_STATE, "gathered", "activations", "total", "largest batch")
_SPEED = ("strategy", "checkpointing", "step", "images/s", "", "of the peak", "epoch", "run", "GPU hours")


def plan_text(plan: dict[str, Any]) -> str:
    """`plan`: the values of `scripts.plan.make_plan`."""
    frozen = f", {plan['trained'] / 1e6:.1f} M trained" if plan["trained"] < plan["parameters"] else ""
    gigabytes, (lower, higher) = f"{plan['memory_bytes'] / 1e9:.4g}", plan["error"]
    lines = [
        f"{plan['model']}: {plan['parameters'] / 1e6:.1f} M parameters{frozen}, {plan['flops_per_image'] / 1e9:,.1f} "
        f"GFLOP per training image; {plan['precision']}; {plan['optimizer']}",
        f"{plan['cluster']}: {gigabytes} GB and {plan['peak'] / 1e12:,.1f} TFLOP/s each",
        f"\nMemory of a device at batch size {plan['batch_size']}, GB of {gigabytes}:",
        aligned_table(_MEMORY, map(_memory_row, plan["strategies"]), _MAX_CELL),
        f"\nSpeed at batch size {plan['batch_size']}, global batch {plan['global_batch']:,}; an epoch of "
        f"{plan['images_per_epoch']:,} images, a run of {plan['epochs']} epochs:",
        aligned_table(_SPEED, [_speed_row(row, plan) for row in plan["strategies"]], _MAX_CELL),
        f"\nPredicted, not measured. Images/s: {-lower:.0%} lower to {higher:.0%} higher; {plan['mfu_source']}. "
        "Memory: within 10%, less with -compile. Not included: loading, the start of ops by the host (small models and "
        "batches), evaluation, checkpoints, a teacher.",
    ]
    if plan["devices"] > 1 and plan["sharding_problem"]:
        lines.append(f"No FSDP, no HSDP: {plan['sharding_problem']}.")
    if not any(row["grad_checkpointing"] for row in plan["strategies"]):
        lines.append("No checkpointing: timm does not support it for this model.")
    return "\n".join(lines)


def _memory_row(row: dict[str, Any]) -> list[str]:
    parts = [row["state_bytes"][part] for part in _STATE]
    parts += [row["gathered_bytes"], row["activation_bytes"], row["total_bytes"]]
    largest = f"{row['largest_batch']:,}" if row["largest_batch"] else "none fits"
    return [*_names(row), *(f"{part / 1e9:.2f}" for part in parts), largest]


def _speed_row(row: dict[str, Any], plan: dict[str, Any]) -> list[str]:
    if row["largest_batch"] < plan["batch_size"]:
        return [*_names(row), "does not fit", *[""] * (len(_SPEED) - 3)]
    speed = row["images_per_second"]
    lower, higher = (speed * (1 + error) for error in plan["error"])
    cost = f"; cost {row['gpu_hours'] * plan['price']:,.2f}" if plan["price"] else ""
    return [
        *_names(row),
        f"{1e3 * row['step_seconds']:.1f} ms",
        f"{speed:,.0f}",
        f"({lower:,.0f} to {higher:,.0f})",
        f"{speed * plan['flops_per_image'] / (plan['peak'] * plan['devices']):.1%}",
        format_duration(row["epoch_seconds"]),
        format_duration(row["epoch_seconds"] * plan["epochs"]),
        f"{row['gpu_hours']:,.1f}{cost}",
    ]


def _names(row: dict[str, Any]) -> list[str]:
    return [row["strategy"], "on" if row["grad_checkpointing"] else "off"]
