"""`-calibrate RUN`: the MFU of a measured run, from its result.json, status.json and config.yaml."""

from pathlib import Path
from typing import Any, NamedTuple

from configs.reading.command_line import parse_command_line
from configs.reading.option_layers import RUN_OPTIONS
from configs.resolve import resolve
from configs.schema import Config
from engine.run.summary import read_json
from scripts.planning.devices import find_device, parse_cluster
from scripts.planning.strategies import Strategy, fit_mfu, predict, strategies
from scripts.planning.workload import Workload, measure_workload
from utils.errors import UserError
from utils.status import STATUS

RESULT = "result.json"
_HOST_SIZE = 8  # most GPUs of a host: status.json has the number of ranks only


class Calibration(NamedTuple):
    """mfu: 0 to 1, of the computation alone. device: key of `PEAKS`. images_per_second: as the run measured it."""

    mfu: float
    device: str
    model: str
    images_per_second: float


def calibrate(path: Path) -> Calibration:
    """The MFU with which the formula gives the images/s of a training run.

    Args:
        path: the folder of a run, or its result.json.

    Raises:
        UserError: the run has no figures of a known GPU, or its options cannot be read.
    """
    folder = path if path.is_dir() else path.parent
    result, status = read_json(folder / RESULT if path.is_dir() else path), read_json(folder / STATUS)
    speed, ranks = _positive(result, "images_per_second"), int(_positive(status, "world_size"))
    if not speed or not ranks or not (folder / RUN_OPTIONS).is_file():
        raise UserError(
            f"-calibrate {path}: has no measured speed; give the folder of a training run that ended, with its "
            f"{RESULT}, {STATUS} and {RUN_OPTIONS}"
        )
    device = str(result.get("device"))
    try:
        find_device(device)
    except UserError:
        raise UserError(
            f"-calibrate {path}: no datasheet figures of its device {device[:80]}; give a run on a known GPU"
        ) from None
    per_host = max(size for size in range(1, _HOST_SIZE + 1) if ranks % size == 0)
    cluster = parse_cluster(f"{per_host}x{device}", ranks // per_host)
    config = parse_command_line([f"-cfg={folder / RUN_OPTIONS}"]).config
    workload = measure_workload(config)
    found = strategies(workload, config.parallel, cluster)
    mfu = mfu_of_run(workload, found.get(config.parallel.strategy, found["ddp"]), config, speed)
    if mfu is None:
        raise UserError(f"-calibrate {path}: {speed:.1f} images/s are more than {cluster} can compute")
    return Calibration(mfu, cluster.device, config.model.name, speed)


def mfu_of_run(workload: Workload, strategy: Strategy, config: Config, images_per_second: float) -> float | None:
    """The MFU of compute that explains the images/s of a run with these options; None if none does."""
    batch_size, steps = config.data.batch_size, resolve(config, None, strategy.cluster.size).train.accum_iter

    def predicted(mfu: float) -> float:
        checkpointing = config.model.grad_checkpointing
        return predict(workload, strategy, batch_size, steps, mfu, checkpointing).images_per_second

    return fit_mfu(predicted, images_per_second)


def _positive(values: dict[str, Any], key: str) -> float:
    """The value; 0 if it is missing, or no positive number."""
    value = values.get(key)
    return float(value) if isinstance(value, int | float) and value > 0 else 0.0
