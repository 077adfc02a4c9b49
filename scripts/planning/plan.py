"""All figures of a plan, by strategy and checkpointing."""

from dataclasses import dataclass

from configs.resolve import accumulation_steps
from configs.schema import Config
from scripts.planning.calibration import Calibration
from scripts.planning.devices import Cluster
from scripts.planning.layout import Layout, layouts
from scripts.planning.memory import Memory, memory_of
from scripts.planning.speed import ASSUMED_ERROR, ASSUMED_MFU, CALIBRATED_ERROR, Step, predict
from scripts.planning.workload import Workload, measure_workload


@dataclass(frozen=True)
class Row:
    """A strategy, with or without gradient checkpointing. largest_batch: per device; 0: nothing fits."""

    layout: Layout
    checkpointing: bool
    memory: Memory
    largest_batch: int
    step: Step


@dataclass(frozen=True)
class Plan:
    """error: of images/s, (lower, higher) as shares. images_per_epoch: of the training data."""

    config: Config
    workload: Workload
    cluster: Cluster
    accumulation: int
    mfu: float
    error: tuple[float, float]
    calibration: Calibration | None
    images_per_epoch: int
    rows: list[Row]

    @property
    def batch_size(self) -> int:
        return self.config.data.batch_size

    def fits(self, row: Row) -> bool:
        return row.largest_batch >= self.batch_size

    def range_of(self, images_per_second: float) -> tuple[float, float]:
        lower, higher = self.error
        return images_per_second * (1 - lower), images_per_second * (1 + higher)

    def epoch_seconds(self, row: Row) -> float:
        return self.images_per_epoch / row.step.images_per_second


def make_plan(config: Config, cluster: Cluster, images_per_epoch: int, calibration: Calibration | None) -> Plan:
    """Raises UserError: the model, the optimizer, the batch size or the device has no plan."""
    workload = measure_workload(config)
    accumulation = accumulation_steps(config, cluster.size)
    mfu = calibration.mfu if calibration else ASSUMED_MFU
    is_same_device = calibration is not None and calibration.device == cluster.device
    rows = []
    for layout in layouts(workload, config.parallel, cluster):
        for checkpointing in workload.passes:
            memory = memory_of(workload, layout, checkpointing)
            step = predict(workload, layout, config.data.batch_size, accumulation, mfu, checkpointing)
            rows.append(Row(layout, checkpointing, memory, memory.largest_batch(cluster.memory_bytes), step))
    error = CALIBRATED_ERROR if is_same_device else ASSUMED_ERROR
    return Plan(config, workload, cluster, accumulation, mfu, error, calibration, images_per_epoch, rows)
