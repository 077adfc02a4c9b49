"""What the planner (scripts/planning) predicts for the variants of benchmark_parallel.py."""

from typing import Any

from configs.resolve import accumulation_steps
from configs.schema import Config
from scripts.planning.calibration import mfu_of_run
from scripts.planning.devices import find_device, parse_cluster
from scripts.planning.strategies import memory_of, predict, strategies
from scripts.planning.workload import measure_workload
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
    found = strategies(workload, first.parallel, cluster)
    base = found.get(first.parallel.strategy)
    mfu = base and mfu_of_run(workload, base, first, measured[calibrated_on]["images_per_second"])
    predicted: dict[str, dict[str, float]] = {}
    for key in measured:
        config = configs[key]
        strategy = strategies(workload, config.parallel, cluster).get(config.parallel.strategy)
        checkpointing = config.model.grad_checkpointing
        if strategy is None or checkpointing not in workload.passes:
            continue
        predicted[key] = {"predicted_bytes": memory_of(workload, strategy, checkpointing).total(config.data.batch_size)}
        if mfu and key != calibrated_on:
            steps = accumulation_steps(config, cluster.size)
            step = predict(workload, strategy, config.data.batch_size, steps, mfu, checkpointing)
            predicted[key]["predicted_images_per_second"] = step.images_per_second
    return predicted
