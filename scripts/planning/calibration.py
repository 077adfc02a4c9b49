"""`-calibrate RUN`: the MFU of a measured run, from its result.json, status.json and config.yaml."""

import re
from bisect import bisect_left
from collections.abc import Callable
from pathlib import Path

from configs.reading.command_line import parse_command_line
from configs.reading.option_layers import RUN_OPTIONS
from configs.resolve import resolve
from scripts.planning.devices import parse_cluster
from scripts.planning.estimate import estimate, strategies
from scripts.planning.workload import measure_workload
from utils.errors import UserError
from utils.files import read_json
from utils.status import STATUS

RESULT = "result.json"
_STEPS = 10**12  # of the MFU
_HOST_SIZE = 8  # most GPUs of a host: status.json has the number of ranks only


def calibrate(folder: Path) -> tuple[float, str, str]:
    """The MFU of compute with which the formula gives the images/s of a training run; its GPU, its model.

    Raises:
        UserError: the run has no figures of a known GPU, or its options cannot be read.
    """
    result, ranks = read_json(folder / RESULT), read_json(folder / STATUS).get("world_size")
    measured = result.get("images_per_second")
    if not (isinstance(measured, int | float) and isinstance(ranks, int) and measured > 0 and ranks > 0):
        raise UserError(
            f"-calibrate {folder}: has no measured speed; give the folder of a training run that ended, with its "
            f"{RESULT}, {STATUS} and {RUN_OPTIONS}"
        )
    per_host = max(size for size in range(1, _HOST_SIZE + 1) if ranks % size == 0)
    device = re.sub(r"[^\w .-]", "", str(result.get("device")))  # such as CPU Intel(R) Xeon(R)
    cluster = parse_cluster(f"{per_host}x{device}", ranks // per_host, None, f"-calibrate {folder}")
    config = parse_command_line([f"-cfg={folder / RUN_OPTIONS}"]).config
    workload = measure_workload(config)
    found = strategies(workload, config.parallel, cluster)
    strategy = found.get(config.parallel.strategy, found["ddp"])
    accumulation, checkpointing = resolve(config, None, cluster.size).train.accum_iter, config.model.grad_checkpointing

    def predicted(mfu: float) -> float:
        return estimate(workload, strategy, config.data.batch_size, accumulation, mfu, checkpointing).images_per_second

    if measured > predicted(1.0):
        raise UserError(f"-calibrate {folder}: {measured:.1f} images/s are more than {cluster} can compute")
    return find_mfu(predicted, measured), cluster.device, config.model.name


def find_mfu(images_per_second: Callable[[float], float], measured: float) -> float:
    """The MFU, 0 to 1, at which `images_per_second`, an increasing function, is `measured`."""
    candidates = range(1, _STEPS + 1)
    return candidates[bisect_left(candidates, measured, key=lambda step: images_per_second(step / _STEPS))] / _STEPS
