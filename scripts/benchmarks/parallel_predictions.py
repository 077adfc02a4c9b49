"""What the planner (scripts/planning) predicts for the variants of benchmark_parallel.py."""

from typing import Any

from configs.resolve import accumulation_steps
from configs.schema import Config
from scripts.planning.devices import Cluster, find_device, parse_cluster
from scripts.planning.layout import Layout, layouts
from scripts.planning.memory import memory_of
from scripts.planning.speed import fit_mfu, predict
from scripts.planning.workload import Workload, measure_workload
from utils.errors import UserError


def predictions(configs: dict[str, Config], result: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Predicted images/s and bytes by variant; {} for a device without datasheet figures.

    The MFU is that of the first variant that was measured, so its own images/s are no prediction and are left out. The
    planner has no figures of a sharded model on one device.
    """
    measured = {key: one for key, one in result["variants"].items() if "failed" not in one}
    try:
        find_device(result["device"])
    except UserError:
        return {}
    if not measured:
        return {}
    cluster = parse_cluster(f"{result['ranks']}x{result['device']}", 1)
    calibrated_on = next(iter(measured))
    first = configs[calibrated_on]
    workload = measure_workload(first)
    mfu = _fitted(workload, first, cluster, measured[calibrated_on]["images_per_second"])
    found: dict[str, dict[str, float]] = {}
    for key in measured:
        config, layout = configs[key], _layout(workload, configs[key], cluster)
        checkpointing = config.model.grad_checkpointing
        if layout is None or checkpointing not in workload.passes:
            continue
        found[key] = {"predicted_bytes": memory_of(workload, layout, checkpointing).total(config.data.batch_size)}
        if mfu and key != calibrated_on:
            steps = accumulation_steps(config, cluster.size)
            step = predict(workload, layout, config.data.batch_size, steps, mfu, checkpointing)
            found[key]["predicted_images_per_second"] = step.images_per_second
    return found


def _fitted(workload: Workload, config: Config, cluster: Cluster, images_per_second: float) -> float | None:
    layout, steps = _layout(workload, config, cluster), accumulation_steps(config, cluster.size)
    checkpointing = config.model.grad_checkpointing
    return layout and fit_mfu(workload, layout, config.data.batch_size, steps, checkpointing, images_per_second)


def _layout(workload: Workload, config: Config, cluster: Cluster) -> Layout | None:
    """None: the planner has no figures of this strategy here."""
    found = layouts(workload, config.parallel, cluster)
    return next((layout for layout in found if layout.strategy == config.parallel.strategy), None)
