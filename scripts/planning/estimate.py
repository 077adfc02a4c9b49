"""Memory and time of a training step with DDP, FSDP or HSDP, with or without gradient checkpointing.

docs/clusters.md has the sources. NVIDIA's published rates of ViT-g/14 on 8 to 128 GPUs confirm the formula
(tests/scripts/test_plan.py), torch's memory tracker the memory of FSDP (tests/scripts/test_plan_memory.py).
"""

from math import log2
from typing import NamedTuple

from configs.schema import Parallel
from scripts.planning.devices import Cluster
from scripts.planning.workload import Workload
from utils.errors import UserError

GATHERED_BLOCKS = 3  # one computes, one is prefetched, the gradient of one is summed
NETWORK_EFFICIENCY, MEMORY_EFFICIENCY = 0.75, 0.7  # of the bandwidth of the datasheet
HIDDEN = 0.9  # traffic behind the backward pass with DDP, behind both passes with FSDP
COST_OF_DOUBLING = 0.015  # of the hosts: stragglers and longer rings
RECOMPUTED = 1 / 3  # of the FLOPs
_FP32, _HALF = 4, 2


class Strategy(NamedTuple):
    """A way to share a model: `ranks` share one copy of parameters, gradients and moments; 1 with DDP."""

    name: str
    cluster: Cluster
    ranks: int

    def __str__(self) -> str:
        if self.cluster.size == 1:
            return "one device"
        return f"hsdp in groups of {self.ranks}" if self.name == "hsdp" else self.name


class Estimate(NamedTuple):
    """A step: bytes of a device, seconds, images/s of all devices.

    state_bytes: between steps: parameters (with the half copy of O2), gradients, moments, average.
    gathered_bytes: whole parameters during the passes.
    total_bytes: the peak.
    largest_batch: the largest batch size that fits; 0: not even one image.
    """

    strategy: str
    grad_checkpointing: bool
    state_bytes: dict[str, float]
    gathered_bytes: float
    activation_bytes: float
    total_bytes: float
    largest_batch: int
    step_seconds: float
    images_per_second: float


def strategies(workload: Workload, options: Parallel, cluster: Cluster) -> dict[str, Strategy]:
    """DDP, and for several devices FSDP and HSDP, as far as the trainer supports them for this model.

    Raises:
        UserError: SHARDS_PER_GROUP does not divide the number of devices.
    """
    found = {"ddp": Strategy("ddp", cluster, 1)}
    if cluster.size == 1 or workload.sharding_problem:
        return found
    group = options.shards_per_group or cluster.per_node
    if cluster.size % group:
        raise UserError(
            f"PARALLEL.SHARDS_PER_GROUP {group} does not divide {cluster.size} devices; use {cluster.per_node}"
        )
    found["fsdp"] = Strategy("fsdp", cluster, cluster.size)
    if 1 < group < cluster.size:
        found["hsdp"] = Strategy("hsdp", cluster, group)
    return found


def estimate(
    workload: Workload, strategy: Strategy, batch_size: int, accumulation: int, mfu: float, checkpointing: bool
) -> Estimate:
    """A step of `accumulation` micro-steps of `batch_size` images per device.

    Raises:
        UserError: the datasheet has no peak for this dtype.
    """
    cluster, passes = strategy.cluster, workload.passes[checkpointing]
    state, update = _state_bytes(workload, strategy)
    is_sharded = strategy.name != "ddp"
    gathered = is_sharded * workload.value_bytes * (workload.rest + GATHERED_BLOCKS * workload.block)
    kept = sum(state.values())

    def total(images: int) -> float:
        return kept + max(gathered + passes.fixed + passes.per_image * images, update)

    free = cluster.memory_bytes - kept - gathered - passes.fixed
    flops = workload.flops_per_image * (1 + RECOMPUTED * checkpointing)
    micro_step = batch_size * flops / (cluster.peak(workload.precision) * mfu)
    traffic = _exposed_seconds(workload, strategy, accumulation, micro_step)
    optimizer = _optimizer_bytes(workload, strategy) / (MEMORY_EFFICIENCY * 1e9 * cluster.gpu.memory_gb_per_second)
    seconds = (accumulation * micro_step + traffic + optimizer) * (1 + COST_OF_DOUBLING * log2(cluster.nodes))
    return Estimate(
        str(strategy),
        checkpointing,
        state,
        gathered,
        passes.per_image * batch_size + passes.fixed,
        total(batch_size),
        int(free / passes.per_image) if total(1) <= cluster.memory_bytes else 0,
        seconds,
        batch_size * accumulation * cluster.size / seconds,
    )


def _state_bytes(workload: Workload, strategy: Strategy) -> tuple[dict[str, float], float]:
    """The bytes between steps, and the additional ones of the optimizer step, when the activations are free."""
    weight, gradient, update = _FP32, _FP32, 0
    if workload.is_half and strategy.ranks == 1:  # FSDP keeps fp32 weights under O2, and gathers them in half
        is_o2 = workload.precision.level == "O2"
        weight, gradient, update = (_FP32 + _HALF, _HALF, _FP32) if is_o2 else (_HALF, _HALF, 2 * _FP32)
    average = _FP32 * workload.has_average  # its update takes the difference of all weights
    parameters, trained = workload.parameters / strategy.ranks, workload.trained / strategy.ranks
    state = {
        "parameters": weight * parameters,
        "gradients": gradient * trained,
        "moments": _FP32 * workload.moments * trained,
        "average": average * parameters,
    }
    return state, (update + average) * trained


def _exposed_seconds(workload: Workload, strategy: Strategy, accumulation: int, micro_step: float) -> float:
    """The traffic of a step that compute does not hide.

    DDP sums the gradients once a step. FSDP gathers the parameters before the forward and the backward pass, and
    reduce-scatters the gradients in fp32; HSDP does so in each group, and sums the gradients of the groups once a step.
    """
    cluster, gradients = strategy.cluster, _FP32 * workload.trained
    if strategy.name == "ddp":
        last = _ring_seconds(2 * workload.value_bytes * workload.trained, cluster, cluster.size)
        return max(0.0, last - HIDDEN * micro_step * 2 / 3)
    last, hiding = 0.0, HIDDEN * micro_step
    each = _ring_seconds(2 * workload.value_bytes * workload.parameters + gradients, cluster, strategy.ranks)
    if strategy.name == "hsdp":
        groups, of_host = cluster.size // strategy.ranks, max(1, cluster.per_node // strategy.ranks)
        last = _seconds(2 * gradients / strategy.ranks, cluster, groups, of_host, groups / of_host)
    return (accumulation - 1) * max(0.0, each - hiding) + max(0.0, each + last - hiding)


def _ring_seconds(size: float, cluster: Cluster, ranks: int) -> float:
    """Moves `size` bytes through each of `ranks` neighboring ranks."""
    in_host = min(ranks, cluster.per_node)
    return _seconds(size, cluster, ranks, in_host, -(-ranks // in_host))


def _seconds(size: float, cluster: Cluster, members: int, in_host: int, hosts: float) -> float:
    """A ring of `members`, `in_host` of them on each of `hosts`."""
    inside = size * (1 - 1 / members) / (1e9 * cluster.gpu.link_gb_per_second) if in_host > 1 else 0.0
    between = size / in_host * (1 - 1 / hosts) / cluster.network
    return max(inside, between) / NETWORK_EFFICIENCY


def _optimizer_bytes(workload: Workload, strategy: Strategy) -> float:
    """AdamW moves 24 bytes per parameter; an average 12, copies to and from a half model 12."""
    per_parameter = 8 * (1 + workload.moments) + 12 * workload.has_average
    per_parameter += 12 * (workload.is_half and strategy.ranks == 1)
    return per_parameter * workload.trained / strategy.ranks
