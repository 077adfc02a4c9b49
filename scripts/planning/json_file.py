"""A plan as JSON: bytes, seconds, images/s."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from scripts.planning.plan import Plan, Row
from utils.atomic_file import atomic_write


def write_plan(path: Path | None, plan: Plan) -> None:
    """Does nothing without a path."""
    if path:
        atomic_write(path, (json.dumps(plan_values(plan), indent=2) + "\n").encode())


def plan_values(plan: Plan) -> dict[str, Any]:
    workload = plan.workload
    return {
        "model": workload.name,
        "parameters": workload.parameters,
        "flops_per_image": workload.flops_per_image,
        "devices": asdict(plan.cluster),
        "batch_size": plan.batch_size,
        "accumulation_steps": plan.accumulation,
        "mfu": plan.mfu,
        "error_lower": plan.error[0],
        "error_higher": plan.error[1],
        "strategies": [_row_values(plan, row) for row in plan.rows],
    }


def _row_values(plan: Plan, row: Row) -> dict[str, Any]:
    return {
        "strategy": row.layout.strategy,
        "shards": row.layout.shards,
        "grad_checkpointing": row.checkpointing,
        "memory_bytes": asdict(row.memory),
        "total_bytes": row.memory.total(plan.batch_size),
        "largest_batch": row.largest_batch,
        "step_seconds": row.step.seconds,
        "images_per_second": row.step.images_per_second,
        "epoch_seconds": plan.epoch_seconds(row),
    }
