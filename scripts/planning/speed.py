"""The time of a training step: compute, the part of the traffic that it does not hide, and the optimizer.

- Compute: FLOPs / (datasheet peak x MFU). Checkpointing adds a forward pass, a third of the FLOPs.
- Traffic (in a ring of n ranks times (n - 1) / n): DDP sums the gradients, twice their bytes. FSDP gathers the
  parameters before the forward and the backward pass, and reduce-scatters the gradients, in each micro-step. HSDP does
  so in each group, and sums the shards over the groups once a step. Within a host the bytes take NVLink or PCIe;
  between hosts each GPU of a host carries its share of them. The slower of the two decides.
- Bandwidth in practice is `EFFICIENCY` of the datasheet's. `HIDDEN` of the compute hides traffic: of the backward pass
  with DDP, of both passes with FSDP.
- The optimizer reads and writes weights, gradients and moments at `MEMORY_EFFICIENCY` of the memory's bandwidth.
- A doubling of the hosts costs 1.5%: stragglers and longer rings.

It was checked against NVIDIA's published rates of ViT-g/14 on 8 to 128 GPUs (tests/scripts/test_plan.py).
"""

from dataclasses import dataclass
from math import log2

from scripts.planning.devices import Cluster
from scripts.planning.layout import DDP, HSDP, Layout
from scripts.planning.workload import Workload

ASSUMED_MFU, ASSUMED_ERROR = 0.33, (0.25, 0.35)  # lower, higher: published ViTs have an MFU of 25% to 45%
CALIBRATED_ERROR = (0.08, 0.08)
EFFICIENCY, MEMORY_EFFICIENCY = 0.75, 0.7
HIDDEN = 0.9
COST_OF_DOUBLING = 0.015
RECOMPUTED = 1 / 3  # of the FLOPs
HOST_SECONDS_PER_OP = 10e-6


@dataclass(frozen=True)
class Step:
    """Seconds of an optimizer step.

    compute: of all micro-steps. exposed: traffic that compute does not hide. images: of all devices.
    """

    compute: float
    exposed: float
    optimizer: float
    seconds: float
    images: int

    @property
    def images_per_second(self) -> float:
        return self.images / self.seconds


def predict(
    workload: Workload, layout: Layout, batch_size: int, accumulation: int, mfu: float, checkpointing: bool
) -> Step:
    """A step of `accumulation` micro-steps of `batch_size` images per device.

    Raises:
        UserError: the datasheets have no peak for this device and dtype.
    """
    cluster = layout.cluster
    flops = workload.flops_per_image * (1 + RECOMPUTED * checkpointing)
    micro_step = batch_size * flops / (cluster.peak(workload.dtype, workload.tf32) * mfu)
    each, last = _traffic_seconds(workload, layout)
    hiding = HIDDEN * micro_step * (2 / 3 if layout.strategy == DDP else 1)
    exposed = (accumulation - 1) * max(0.0, each - hiding) + max(0.0, each + last - hiding)
    optimizer = _optimizer_bytes(workload, layout) / (MEMORY_EFFICIENCY * cluster.memory_bytes_per_second)
    compute = accumulation * micro_step
    seconds = (compute + exposed + optimizer) * (1 + COST_OF_DOUBLING * log2(cluster.nodes))
    return Step(compute, exposed, optimizer, seconds, batch_size * accumulation * cluster.size)


def _traffic_seconds(workload: Workload, layout: Layout) -> tuple[float, float]:
    """Of the exchange in each micro-step, and of that which only the last one has."""
    cluster, gradients = layout.cluster, layout.reduce_bytes * workload.trained
    if layout.strategy == DDP:
        return 0.0, _ring_seconds(2 * gradients, cluster, cluster.size)
    gathers = 1 if layout.keeps_gathered else 2
    each = _ring_seconds(gathers * layout.gather_bytes * workload.parameters + gradients, cluster, layout.shards)
    return each, _between_groups(2 * gradients / layout.shards, layout) if layout.strategy == HSDP else 0.0


def _ring_seconds(size: float, cluster: Cluster, ranks: int) -> float:
    """Moves `size` bytes through each of `ranks` neighbouring ranks."""
    in_host = min(ranks, cluster.per_node)
    hosts = -(-ranks // in_host)
    inside = size * (1 - 1 / ranks) / cluster.link if in_host > 1 else 0.0
    between = size / in_host * (1 - 1 / hosts) / cluster.network
    return max(inside, between) / EFFICIENCY


def _between_groups(size: float, layout: Layout) -> float:
    """Moves `size` bytes, twice those of a shard's gradients, through each of the ranks that hold this shard."""
    cluster, groups = layout.cluster, layout.cluster.size // layout.shards
    in_host = max(1, cluster.per_node // layout.shards)  # groups of a host
    inside = size * (1 - 1 / groups) / cluster.link if in_host > 1 else 0.0
    between = size / in_host * (1 - in_host / groups) / cluster.network
    return max(inside, between) / EFFICIENCY


def _optimizer_bytes(workload: Workload, layout: Layout) -> float:
    """AdamW moves 24 bytes per parameter; an average 12, copies to and from a half model 12."""
    per_parameter = 8 * (1 + workload.moments) + 12 * workload.has_average
    per_parameter += 12 * (workload.is_half and not layout.is_sharded)
    return per_parameter * workload.trained / layout.shards


def fit_mfu(
    workload: Workload, layout: Layout, batch_size: int, accumulation: int, checkpointing: bool, measured: float
) -> float | None:
    """The MFU with which `predict` gives the `measured` images/s; None if no MFU up to 100% does.

    This MFU is that of compute alone: exchange and optimizer are accounted for besides.
    """

    def images_per_second(mfu: float) -> float:
        return predict(workload, layout, batch_size, accumulation, mfu, checkpointing).images_per_second

    low, high = 0.0, 1.0
    if measured > images_per_second(high):
        return None
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if images_per_second(middle) < measured else (low, middle)
    return high
